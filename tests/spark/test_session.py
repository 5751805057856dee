"""A session that is thrown away."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import NotSeeded, PipelineError
from penstock.interrupts import Interrupts
from penstock.spark import session
from penstock.spark.class_archive import archive_file
from penstock.spark.session import (
    SparkEnded,
    SparkFailed,
    _environment,
    _settings,
    throwaway_session,
)


def test_when_spark_does_not_start_it_is_told_what_spark_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with (
        pytest.raises(SparkFailed, match="/nonexistent/bin/java: No such file") as caught,
        Interrupts() as interrupts,
        throwaway_session("penstock tests", tmp_path / "spark", interrupts),
    ):
        pass
    assert "Java" in caught.value.remedy


def test_the_workers_of_a_cluster_can_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    # M5.7
    assert "SPARK_LOCAL_IP" not in _environment("spark://host:7077")
    assert _environment("spark://host:7077")["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/there/python3")
    assert _environment("spark://host:7077")["PYSPARK_PYTHON"] == "/there/python3"
    # On this machine it is ours, whatever was meant for another program.
    assert _environment("local[2]")["PYSPARK_PYTHON"] == sys.executable
    assert _environment("local[2]")["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("master", "said"),
    [("nonsense", "Master must either be yarn"), ("local[x]", "Could not parse Master URL")],
)
def test_a_master_that_is_none_is_named_without_java_s_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, said: str
) -> None:  # M5.7, M7.3
    # Other tests may have a session in this process, which pyspark would take instead.
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    for name in ("_active_spark_context", "_gateway", "_jvm"):
        monkeypatch.setattr(SparkContext, name, None)
    with (
        pytest.raises(SparkFailed, match=said) as caught,
        Interrupts() as interrupts,
        throwaway_session("penstock tests", tmp_path / "spark", interrupts, master=master),
    ):
        pass
    assert f"Check that {master} is" in caught.value.remedy
    assert "\tat " not in caught.value.problem


def test_spark_takes_its_classes_from_the_archive_of_make_install(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    java = jvm.java.lang.ProcessHandle.current().pid()
    assert archive_file().exists()
    # Java would go on without it, and say nothing.
    assert str(archive_file()) in Path(f"/proc/{java}/maps").read_text()


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports on which a process accepts connections, all of them on loopback."""
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                listening[f"socket:[{inode}]"] = address
    held = {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    addresses = [listening[socket] for socket in held & listening.keys()]
    assert all(address.split(":")[0].endswith("0100007F") for address in addresses)
    return {int(address.split(":")[1], 16) for address in addresses}


def answer(port: int) -> str:
    """Return what Spark's transport answers to a call by a stranger."""
    call = b"who are you"
    head = struct.pack(">QBQI", 21 + len(call), 3, 1, len(call))
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall(head + call)
        return stranger.recv(2**16).decode(errors="replace")


def test_the_ports_of_a_local_session_refuse_strangers(spark: SparkSession) -> None:  # M7.6
    context = spark.sparkContext
    assert context._jvm is not None
    assert context._gateway is not None
    java = context._jvm.java.lang.ProcessHandle.current().pid()
    # The gateway to Python has a secret of its own, and does not speak this protocol.
    ports = listening_ports(java) - {context._gateway.gateway_parameters.port}
    assert int(context.getConf().get("spark.driver.port") or 0) in ports
    assert len(ports) == 2  # the driver's calls, and its blocks
    for port in ports:
        assert "Expected SaslMessage, received something else" in answer(port)
    assert not [key for key, _ in context.getConf().getAll() if "secret" in key]


def test_a_cluster_s_secret_is_its_operator_s() -> None:  # M7.6: without one Spark would not start
    for master in ("local", "local[*]", "local[2,3]"):
        assert _settings(master)["spark.authenticate"] == "true"
    for master in ("spark://host:7077", "yarn", "local-cluster[2,1,1024]"):
        assert "spark.authenticate" not in _settings(master)


def test_of_a_process_that_ended_no_value_is_told() -> None:  # M7.3
    said = (
        "12:00:00 ERROR Executor: Exception in task 0.0\n"
        "org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'secret'\n"
        "Terminating due to java.lang.OutOfMemoryError: Java heap space\n"
    )
    assert str(SparkEnded(3, said)) == (
        "Spark's process ended while it was at work, with exit code 3: java.lang.OutOfMemoryError: "
        f"Java heap space. {SparkEnded(3, '').remedy}"
    )
    assert "secret" not in repr(SparkEnded(-9, said))


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40")])
def test_a_process_may_be_ended_by_a_signal_without_a_name(number: int, name: str) -> None:  # M7.3
    assert SparkEnded(-number, "").problem.endswith(f", killed by {name}")


SECRET = PySparkException("[CAST_INVALID_INPUT] The value 'secret' cannot be cast")


@pytest.mark.parametrize(
    ("is_killed", "error", "told"),
    [
        (False, SECRET, "Spark's work failed: CAST_INVALID_INPUT"),
        (True, SECRET, "Spark's process ended while it was at work, killed by SIGKILL"),
        (True, ConnectionError("refused"), "Spark's process ended"),
        # What has nothing to do with Spark is told as it is.
        (True, NotSeeded("the aggregate waits", remedy=""), "the aggregate waits"),
        (False, ValueError("another"), "another"),
    ],
)
def test_what_goes_wrong_at_work_is_told_without_a_value(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_killed: bool,
    error: Exception,
    told: str,
) -> None:  # M7.3: with a process that stands for Spark's
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, start_new_session=True)
    made = SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=SimpleNamespace()))
    monkeypatch.setattr(session, "_start_jvm", lambda *_: process)
    monkeypatch.setattr(session, "_connection", lambda *_: {})
    monkeypatch.setattr(session, "_build", lambda *_: made)
    monkeypatch.setattr(session, "_GONE_S", 0.2)
    directory = tmp_path / "spark"

    def work() -> None:
        (directory / "spark.log").write_text("12:00:00 ERROR Executor: the value 'secret'\n")
        if is_killed:
            process.kill()
        raise error

    with (
        pytest.raises(type(error) if told in str(error) else PipelineError, match=told) as caught,
        Interrupts() as interrupts,
        throwaway_session("penstock tests", directory, interrupts),
    ):
        work()
    assert "secret" not in str(caught.value)
