"""Reads the event log, and says what is wrong with it."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import events, trust
from runtime_wrapper.errors import GpulatchError, errno_name

Event = dict[str, Any]

_KEYS = events.event("", None).keys()
_DEVICE = {"index", "uuid", "pci"}
_LOW_SPACE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Log:
    """The events there are, oldest first, and how many lines could not be read."""

    events: tuple[Event, ...]
    damaged: int


def read() -> Log:
    """Every event that is still kept. Raises UntrustedPathError, OSError."""
    found: list[Event] = []
    damaged = 0
    for line in _lines():
        event = _event(line)
        if event is not None:
            found.append(event)
        elif line.strip():
            damaged += 1
    return Log(tuple(found), damaged)


def problems() -> list[str]:
    """Why events might not be written; a create goes on without a word then."""
    where = f"{events.DIRECTORY}/{events.FILE}"
    try:
        os.close(trust.open_directory(events.DIRECTORY, "event log directory"))
        found = os.lstat(where)
    except FileNotFoundError:
        return [f"there is no event log {where}: it was removed, or nothing was started by gpulatch yet"]
    except GpulatchError as error:
        return [f"no event can be written: {error}"]
    except OSError as error:
        return [f"no event can be written: {where}: {errno_name(error)}"]
    if not events.usable(found):
        return [f"no event is written: {where} is no plain file that only root can change; move it away"]
    space = os.statvfs(where)
    if space.f_bavail * space.f_frsize < _LOW_SPACE_BYTES:
        return [f"the file system of {where} is full: events are lost"]
    return []


def _lines() -> Iterator[bytes]:
    try:
        directory = trust.open_directory(events.DIRECTORY, "event log directory")
    except FileNotFoundError:
        return
    try:
        for name in (events.OLDER, events.FILE):
            yield from _lines_of(directory, name)
    finally:
        os.close(directory)


def _lines_of(directory: int, name: str) -> Iterator[bytes]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return
    with open(fd, "rb") as file:
        yield from file


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(event, dict) and event.get("schema") == events.SCHEMA and event.keys() >= _KEYS
    return event if whole and _makes_sense(event) else None


def _makes_sense(event: Event) -> bool:
    """Whether the parts that are read have the types that they are read as."""
    container, error = event["container"], event["error"]
    lists = all(isinstance(event[key], list) for key in ("said", "devices", "reasons", "edits", "notes"))
    devices = lists and all(isinstance(device, dict) and device.keys() >= _DEVICE for device in event["devices"])
    named = container is None or (isinstance(container, dict) and container.keys() >= {*events.CONTAINER})
    told = error is None or (isinstance(error, dict) and error.keys() >= {"code", "message"})
    return isinstance(event["time"], str) and devices and named and told and isinstance(event["phases_ms"], dict)
