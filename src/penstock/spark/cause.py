"""Why Spark failed, in one sentence that holds no value of any row.

Spark's messages quote values and have hundreds of lines. Only words that are in the tables here, or
that name a file of an installed module, are passed on.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_AGAIN = "Start it again, and it goes on from where it was"
_MEMORY = (
    f"{_AGAIN}. If it fails again, give it more memory: SPARK_DRIVER_MEMORY=2g in the environment, "
    "and free memory on the machine for Python's processes"
)
_DISK = f"Make room where temporary files are (TMPDIR, else /tmp). {_AGAIN}"
_SYSTEM = f"Correct that on this machine. {_AGAIN}"
_BUG = f"{_AGAIN}. If it fails again, report this as a bug"


@dataclass(frozen=True, slots=True)
class Cause:
    sentence: str
    remedy: str


_PYTHON_DIED = Cause(
    "a Python process of Spark's died, most often because the machine's memory was short", _MEMORY
)
# As Spark, Java and the system say it. The first that is found counts.
_PHRASES = {
    "No space left on device": Cause("there is no space left on a disk", _DISK),
    "Disk quota exceeded": Cause("the disk quota is used up", _DISK),
    "Java heap space": Cause("Spark's process has too little memory", _MEMORY),
    "GC overhead limit exceeded": Cause("Spark's process has too little memory", _MEMORY),
    "unable to create native thread": Cause("the system lets it start no more threads", _SYSTEM),
    "Cannot allocate memory": Cause("the machine has too little memory", _MEMORY),
    "Python worker exited unexpectedly": _PYTHON_DIED,
    "pyspark.daemon": _PYTHON_DIED,
    "Python worker failed to connect back": Cause(
        "a Python process of Spark's did not start in time", _SYSTEM
    ),
    "Too many open files": Cause("too many files are open", _SYSTEM),
    "Permission denied": Cause("the system denies access to a file", _SYSTEM),
    "Read-only file system": Cause("a file system can only be read", _SYSTEM),
    "Input/output error": Cause("a disk failed", _SYSTEM),
    "Total size of serialized results": Cause("a result was too large for the driver", _MEMORY),
    # Last of all: what Spark reads from is its Python processes.
    "java.io.EOFException": _PYTHON_DIED,
    "java.nio.channels.ClosedChannelException": _PYTHON_DIED,
    "Broken pipe": _PYTHON_DIED,
    "Connection reset": _PYTHON_DIED,
}
# How Python ends a traceback, and where an exception was raised.
_PYTHON = re.compile(r"^([A-Z]\w+)(?::|$)", re.MULTILINE)
_FRAME = re.compile(r'^ +File "([^"\n]+)", line (\d+), in ', re.MULTILINE)
_JAVA = re.compile(r"\b((?:[a-z]\w*\.)+[A-Z]\w*)")
_JAVA_CLASSES = frozenset(
    f"{package}.{name}"
    for package, names in {
        "java.io": "IOException FileNotFoundException",
        "java.lang": "ArrayIndexOutOfBoundsException ClassNotFoundException ExceptionInInitializer"
        "Error IllegalArgumentException IllegalStateException InterruptedException LinkageError "
        "NoClassDefFoundError NoSuchMethodError NullPointerException StackOverflowError "
        "UnsupportedOperationException OutOfMemoryError",
        "java.net": "BindException ConnectException SocketException SocketTimeoutException "
        "UnknownHostException",
        "java.nio.file": "AccessDeniedException NoSuchFileException",
        "java.util.concurrent": "RejectedExecutionException TimeoutException",
        "org.apache.hadoop.fs": "FSError ParentNotDirectoryException",
        "org.apache.spark.memory": "SparkOutOfMemoryError",
    }.items()
    for name in names.split()
)


def cause(said: str) -> Cause:
    """Return why Spark failed, as far as its message `said` has words that are known."""
    for phrase, found in _PHRASES.items():
        if phrase in said:
            return found
    if exceptions := [name for name in _PYTHON.findall(said) if _is_exception(name)]:
        place = "".join(f" in {file}, line {line}" for file, line in _places(said))
        return Cause(f"{exceptions[-1]}{place}", _BUG)
    if classes := [name for name in _JAVA.findall(said) if name in _JAVA_CLASSES]:
        return Cause(classes[-1], _BUG)
    return Cause("Spark gives no reason that can be shown", _BUG)


def _is_exception(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _places(said: str) -> Iterator[tuple[str, str]]:
    """Yield the last place in Penstock's own code; a value cannot imitate it, the file exists."""
    ours = Path(__file__).parents[1]
    for file, line in reversed(_FRAME.findall(said)):
        found = Path(file)
        if ours in found.parents and found.is_file():
            yield str(found.relative_to(ours.parent)), line
            return
