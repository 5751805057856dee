"""Parts of `penstock run` that do nothing but what a test's script says.

usage: python parts.py SCRIPT LIVES PART

SCRIPT is a JSON file: for each part a list of lives; each life is a list of steps, of which
`{"event": …}` is said, `{"end": code}`, `{"kill": number}`, `{"ignore": number}` and
`{"sleep": seconds}` are done. `{"drain": code}` waits for a line of input before it ends, and
`{"wait_for": "PART.0"}` for another part's life. What has no more steps waits for SIGTERM, or for
the end of its input. Files in LIVES count the lives.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main(script: str, lives: str, part: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    folder = Path(lives)
    number = len(list(folder.glob(f"{part}.*")))
    (folder / f"{part}.{number}").write_text(str(os.getpid()))
    script_lives = json.loads(Path(script).read_text())[part]
    for step in script_lives[min(number, len(script_lives) - 1)]:
        match step:
            case {"end": code}:
                os._exit(code)
            case {"drain": code}:
                os.read(0, 1)
                say(json.dumps({"event": "drained"}))
                os._exit(code)
            case {"wait_for": life}:
                while not (folder / life).exists():
                    time.sleep(0.01)
            case {"sleep": seconds}:
                time.sleep(seconds)
            case {"kill": what}:
                os.kill(os.getpid(), what)
            case {"ignore": what}:
                signal.signal(what, signal.SIG_IGN)
            case {"raw": text}:
                say(text)
            case _:
                say(json.dumps(step))
    while os.read(0, 1):
        pass


def say(text: str) -> None:
    os.write(2, f"{text}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
