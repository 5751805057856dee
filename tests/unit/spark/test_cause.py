"""Why Spark failed, from its own messages and without a value of any row. M7.3"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark import reading
from penstock.spark.cause import cause

OURS = Path(reading.__file__)
TRACEBACK = f"""[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Traceback
  File "/usr/lib/python3.11/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "{OURS}", line 120, in read
    int(text)
    ^^^^^^^^^
ValueError: invalid literal for int() with base 10: 'secret'
 SQLSTATE: 39000 SQLSTATE: XXKST
"""


@pytest.mark.parametrize(
    ("said", "sentence", "remedy"),
    [
        ("java.io.IOException: No space left on device: 'secret'", "no space left", "TMPDIR"),
        ("SparkException: Python worker exited unexpectedly (crashed)", "died", "memory"),
        (
            "EOFException while reading the port number from pyspark.daemon's stdout",
            "died",
            "again",
        ),
        ("org.x.Y: z\nCaused by: java.io.EOFException\n\tat java.base/", "died", "memory"),
        ("java.lang.OutOfMemoryError: Java heap space", "too little memory", "DRIVER_MEMORY"),
        ("PermissionError: [Errno 13] Permission denied: 'x'", "denies access", "Correct that"),
        (TRACEBACK, "ValueError in penstock/spark/reading.py, line 120", "report this as a bug"),
        (
            "java.lang.IllegalStateException: 'secret'\nCaused by: java.io.FileNotFoundException",
            "java.io.FileNotFoundException",
            "bug",
        ),
        ("secret", "Spark gives no reason that can be shown", "bug"),
    ],
)
def test_the_cause_is_one_sentence_with_a_remedy(said: str, sentence: str, remedy: str) -> None:
    found = cause(said)
    assert sentence in found.sentence
    assert remedy in found.remedy
    assert "\n" not in found.sentence
    assert "secret" not in found.sentence


@pytest.mark.parametrize(
    "value",
    [
        "SecretError: x",
        "org.apache.spark.SecretException",
        f'\n  File "{OURS.parent}/secret.py", line 1, in x\n',
        '\n  File "secret", line 1, in x\n',
    ],
)
def test_a_value_that_looks_like_an_error_is_not_shown(value: str) -> None:
    assert "secret" not in cause(TRACEBACK.replace("secret", value)).sentence.lower()
    assert "secret" not in cause(f"Job aborted: {value}").sentence.lower()
