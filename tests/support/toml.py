"""Settings as a configuration file, for tests that run commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_toml(file: Path, settings: Mapping[str, Any]) -> Path:
    """Of sections, and of lists of sections."""
    lines = []
    for name, value in settings.items():
        heading = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
        for section in value if isinstance(value, list) else [value]:
            lines += [heading, *(f"{_key(key)} = {_value(each)}" for key, each in section.items())]
    file.write_text("\n".join(lines) + "\n")
    return file


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
