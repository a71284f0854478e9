"""The event log: what gpulatch decided for each container, and what became of it, one JSON line each (`event.json`).

Hot: one short append at each create. Size-capped: a full file becomes `events.1.jsonl` in place of the one before.
A log that cannot be written changes nothing else; `gpulatch explain` says what is wrong with it. Not guaranteed: a line
is not synced to disk, and may be cut short on a full one.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns, process_time_ns
from typing import Any

from runtime_wrapper import clock, trust
from runtime_wrapper.errors import GpulatchError

DIRECTORY = "/var/log/gpulatch"
FILE, OLDER = "events.jsonl", "events.1.jsonl"
MAX_BYTES = 16 << 20
MAX_TEXT, MAX_LINES = 300, 64  # of a tenant's text, and of wishes, reasons, edits and notes

SCHEMA = "gpulatch-event/1"

# What a start ended with: GPUs given, refused, none asked for; in observe mode: only decided, refused but let pass.
GRANTED, REFUSED, NO_GPU, OBSERVED, PASSED = "granted", "refused", "no-gpu", "observed", "passed"
STARTS = (GRANTED, REFUSED, NO_GPU, OBSERVED, PASSED)
# What happens later: a container was found running unbooked, has ended, was released by hand; the ledger was lost.
FOUND, ENDED, RELEASED, REBUILT = "found", "ended", "released", "rebuilt"

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(slots=True)
class Story:
    """One start of a container as it is told afterwards; filled in step by step."""

    id: str
    root: str
    bundle: str
    runtime: str
    low_level: str
    kind: str = NO_GPU
    engine: str = ""
    name: str | None = None
    mode: str | None = None
    said: list[dict[str, str]] = field(default_factory=list)
    request: str | None = None
    policy: str | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    engine_gpus: list[int] | None = None
    reasons: Iterable[str] = ()
    edits: Iterable[str] = ()
    notes: list[str] = field(default_factory=list)
    error: GpulatchError | None = None
    phases_ms: dict[str, float] = field(default_factory=lambda: {"python": process_time_ns() / 1e6})
    began: int = field(default_factory=perf_counter_ns)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase, in milliseconds; one that is cut short by an error counts too."""
        start = perf_counter_ns()
        try:
            yield
        finally:
            self.phases_ms[name] = (perf_counter_ns() - start) / 1e6

    def heard(self, source: str, place: str, text: str, verdict: str) -> None:
        """Note what one source said, and what became of it."""
        self.said.append({"source": source, "place": place, "text": text[:MAX_TEXT], "verdict": verdict})

    def to_json(self) -> dict[str, Any]:
        """The event; keys as in `schemas/event.json`."""
        told = event(self.kind, {key: getattr(self, key) for key in CONTAINER})
        told |= {key: getattr(self, key) for key in ("mode", "request", "policy", "devices", "engine_gpus")}
        told |= {key: [*getattr(self, key)][:MAX_LINES] for key in ("said", "reasons", "edits", "notes")}
        told["request"] = self.request and self.request[:MAX_TEXT]
        if self.error:
            told["error"] = {"code": self.error.code, "message": str(self.error)}
        phases = {**self.phases_ms, "all": (perf_counter_ns() - self.began) / 1e6}
        told["phases_ms"] = {name: round(duration, 3) for name, duration in phases.items()}
        return told


CONTAINER = ("id", "name", "engine", "root", "bundle", "runtime", "low_level")


def event(kind: str, container: dict[str, Any] | None) -> dict[str, Any]:
    """An event that tells nothing yet but its kind and its container."""
    return {
        "schema": SCHEMA,
        "time": clock.now(),
        "kind": kind,
        "container": container,
        "mode": None,
        "said": [],
        "request": None,
        "policy": None,
        "devices": [],
        "engine_gpus": None,
        "reasons": [],
        "edits": [],
        "notes": [],
        "error": None,
        "phases_ms": {},
    }


def append(events: Iterable[dict[str, Any]]) -> None:
    """Add events to the log, as well as that can be done."""
    lines = "".join(json.dumps(one) + "\n" for one in events).encode(errors="backslashreplace")
    if not lines:
        return
    try:
        directory = _directory()
        try:
            _append(directory, lines)
        finally:
            os.close(directory)
    except (OSError, GpulatchError):
        return  # a failed event never fails a create


def _directory() -> int:
    try:
        return trust.open_directory(DIRECTORY, "event log directory")
    except FileNotFoundError:
        os.mkdir(DIRECTORY, 0o755)
        return trust.open_directory(DIRECTORY, "event log directory")


def _append(directory: int, lines: bytes) -> None:
    for _ in range(2):  # a second time after the full file has been put aside
        fd = os.open(FILE, _FLAGS, 0o640, dir_fd=directory)
        try:
            found = os.fstat(fd)
            if not usable(found):
                return
            if found.st_size + len(lines) <= MAX_BYTES or not _put_aside(directory, fd, found):
                os.write(fd, lines)
                return
        finally:
            os.close(fd)


def usable(found: os.stat_result) -> bool:
    """Whether a file can be the log: a plain file of root that nobody else can change under any name."""
    plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    return plain and found.st_uid == trust.ROOT_UID and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _put_aside(directory: int, fd: int, found: os.stat_result) -> bool:
    """Rename the full file, unless another process is doing or has done it: then False, and the line goes in beyond."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = os.stat(FILE, dir_fd=directory, follow_symlinks=False)
        if not found.st_size or not os.path.samestat(found, current):
            return False
        os.rename(FILE, OLDER, src_dir_fd=directory, dst_dir_fd=directory)
        return True
    except OSError:
        return False
