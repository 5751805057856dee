"""Who reads the log, and how far each has come: one small file each, written by the consumer.

A consumer says what it has *applied*: after a crash it may come back there and must find it. The
Spark source says what Spark tells it, one batch late, or all of it when nothing comes any more.

One that will not come back after a crash is temporary, and goes with its process: whoever prunes
forgets it when its lock is free. Invariant: the lock is taken before the consumer is registered,
is held until it is forgotten, and is tried only by who has seen it registered, with the list held.
So a lock that is free while its consumer is registered was that of a process that is gone.
"""

from __future__ import annotations

import errno
import json
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.changelog.storage import Storage
from penstock.errors import (
    ConfigError,
    ConsumerInvalidated,
    ConsumerUnwritable,
    LogForeign,
    LogForeignPosition,
    LogInUse,
    LogNotWritten,
    LogOfAnotherUser,
)
from penstock.lsn import Lsn

FOLDER = "consumers"
_LOCK = "consumers.lock"
_PATIENCE_S = 10.0
# Waiting does not help: a person must change permissions.
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True, slots=True)
class Consumer:
    name: str
    log_id: str
    applied_lsn: Lsn
    updated_at: str
    # Released to save the disk: it must seed again.
    invalidated: bool = False
    # It goes with its process.
    temporary: bool = False


def register(storage: Storage, name: str, log_id: str, applied_lsn: Lsn) -> Consumer:
    """Note what a consumer has applied; the first time makes it known, and keeps what it needs.

    Raises `ConsumerInvalidated` if it was released meanwhile, `LogForeignPosition` if it belongs to
    another log, `ConsumerUnwritable` if this user may not write there, `LogNotWritten` if the disk
    is full or failed.
    """
    if not is_name(name):
        raise ConfigError(
            f"{name!r} is not a name for a consumer",
            remedy="Use up to 100 letters, digits, - and _",
        )
    with _written(storage, name), _exclusively(storage):
        return _register(storage, name, log_id, applied_lsn)


@contextmanager
def held(storage: Storage, purpose: str, log_id: str, applied_lsn: Lsn) -> Iterator[None]:
    """A temporary consumer: what comes after a position is kept while the block runs, and not
    when its process is gone.

    Raises `ConsumerUnwritable` if this user may not write there, `LogNotWritten` if the disk is
    full or failed.
    """
    # Long enough that nobody else has the same, and with it the lock.
    name = f"{purpose}-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        with _written(storage, name):
            stack.enter_context(storage.lock(_lock_of(name)))
            stack.callback(_remove, storage, name)
            with _exclusively(storage):
                _write(storage, Consumer(name, log_id, applied_lsn, _now(), temporary=True))
        yield


def forget_left(storage: Storage) -> None:
    """Forget the temporary ones whose process is gone. Called by who prunes, each time."""
    if not any(consumer.temporary for consumer in consumers(storage)):
        return
    with _exclusively(storage):
        # Only now, for one that has been forgotten since would get a new file for its lock.
        for consumer in consumers(storage):
            if not consumer.temporary:
                continue
            with storage.lock(_lock_of(consumer.name)) as is_free:
                if is_free:
                    _remove_files(storage, consumer.name)


def is_name(text: str) -> bool:
    """Whether a consumer may be called so: it becomes the name of a file."""
    return re.fullmatch(r"[A-Za-z0-9_-]{1,100}", text) is not None


def _register(storage: Storage, name: str, log_id: str, applied_lsn: Lsn) -> Consumer:
    known = {consumer.name: consumer for consumer in consumers(storage)}.get(name)
    if known is not None and known.log_id != log_id:
        raise LogForeignPosition(
            f'consumer "{name}" is registered for log {known.log_id}, not {log_id}',
            remedy="Seed its target again, and forget it: penstock log consumers --forget",
            consumer=name,
        )
    if known is not None and known.invalidated:
        raise ConsumerInvalidated(name)
    consumer = Consumer(name, log_id, applied_lsn, _now())
    _write(storage, consumer)
    return consumer


def invalidate(storage: Storage, consumer: Consumer) -> None:
    """Release what it holds back."""
    with _exclusively(storage):
        _write(storage, replace(consumer, invalidated=True))


def forget(storage: Storage, name: str) -> bool:
    """It will not come back; says whether it was known."""
    # By the name of its file: one that is damaged can be forgotten too.
    if f"{name}.json" not in storage.names(FOLDER):
        return False
    _remove(storage, name)
    return True


def _remove(storage: Storage, name: str) -> None:
    with _exclusively(storage):
        _remove_files(storage, name)


def _remove_files(storage: Storage, name: str) -> None:
    # In this order: what is left of one that is killed in between holds nothing back.
    storage.remove(_file(name))
    storage.remove(_lock_of(name))


def consumers(storage: Storage) -> list[Consumer]:
    found = (_read(storage, name) for name in storage.names(FOLDER) if name.endswith(".json"))
    return [consumer for consumer in found if consumer is not None]


@contextmanager
def _written(storage: Storage, name: str) -> Iterator[None]:
    """What the disk refuses is one of our own errors, by whether it may pass."""
    where = str(getattr(storage, "root", "log"))
    try:
        yield
    except LogOfAnotherUser as error:
        raise ConsumerUnwritable(name, where, "it belongs to another user") from error
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NOT_OURS:
            raise ConsumerUnwritable(name, where, reason) from error
        raise LogNotWritten(where, reason) from error


@contextmanager
def _exclusively(storage: Storage) -> Iterator[None]:
    """One change at a time: a consumer's news must not undo that it was released."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with storage.lock(_LOCK) as mine:
            if mine:
                yield
                return
        if time.monotonic() > deadline:
            raise LogInUse(
                "another process holds the list of the log's consumers",
                remedy="Find out which one hangs: it should take a millisecond",
            )
        time.sleep(0.005)


def _file(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def _lock_of(name: str) -> str:
    return f"{FOLDER}/{name}.lock"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(storage: Storage, consumer: Consumer) -> None:
    fields = {
        "log": consumer.log_id,
        "applied_lsn": str(consumer.applied_lsn),
        "updated_at": consumer.updated_at,
        "invalidated": consumer.invalidated,
        "temporary": consumer.temporary,
    }
    storage.replace(_file(consumer.name), json.dumps(fields, indent=2).encode() + b"\n")


def _read(storage: Storage, file: str) -> Consumer | None:
    """None: it has been forgotten just now."""
    try:
        fields = json.loads(storage.read(f"{FOLDER}/{file}"))
        return Consumer(
            file.removesuffix(".json"),
            fields["log"],
            Lsn.parse(fields["applied_lsn"]),
            fields["updated_at"],
            bool(fields["invalidated"]),
            bool(fields.get("temporary")),  # older versions did not write it
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        # To go on without it would remove what it needs.
        raise LogForeign(
            f"{FOLDER}/{file} is not that of a consumer",
            remedy="Remove the file if no consumer of that name will come back",
        ) from None
