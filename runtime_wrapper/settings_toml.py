"""One settings file: its sections, each value with its place, and everything that is wrong with it.

Pure. Not hot: used where the compiled settings do not hold, and by the command line.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import settings_values
from runtime_wrapper.errors import SettingsError, quoted
from runtime_wrapper.settings_values import CHOICES, LISTS, NAMES, VARIABLE_LISTS, Value
from runtime_wrapper.sources import SOURCES
from runtime_wrapper.variables import SWARM_PREFIX

DEFAULTS, RUNTIME = "defaults", "runtime"

_HEADER = "write [defaults] or [runtime.NAME]"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands; `line` is None where it is written in another of TOML's ways than `key = value`."""

    file: str
    line: int | None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file} line {self.line}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and where it stands."""

    value: Value
    place: Place


@dataclass(frozen=True, slots=True)
class Section:
    """The entries of a section by key; `place` is where its name stands."""

    place: Place
    entries: dict[str, Entry]


def parse(raw: bytes, file: str) -> tuple[dict[str, Section], list[SettingsError]]:
    """What is good in a file, by name of section (`defaults`, `runtime.NAME`), and what is not."""
    try:
        text = raw.decode("utf-8-sig")  # some editors begin with a byte order mark
        data = tomllib.loads(text + "\n")  # else a fault in a last line without end has no number
    except UnicodeDecodeError as error:
        place = Place(file, error.object.count(b"\n", 0, error.start) + 1)
        why = f"not valid TOML (byte 0x{error.object[error.start]:02x} is not UTF-8)"
        return {}, [SettingsError("settings", str(place), why, "mend that line")]
    except (ValueError, RecursionError) as error:  # not TOML; a number too long or brackets too deep for Python
        return {}, [SettingsError("settings", file, f"not valid TOML ({error})", "mend that line")]
    return _File(file, text).sections(data)


class _File:
    """Goes through the tables of a file; finds the lines of names in its text, as far as it is written plainly."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._lines = text.split("\n")
        self._problems: list[SettingsError] = []

    def sections(self, data: dict[str, Any]) -> tuple[dict[str, Section], list[SettingsError]]:
        """The good sections and what is wrong."""
        found: dict[str, Section] = {}
        for name, table in self._tables(data).items():
            if isinstance(table, dict):
                entries = {key: entry for key, given in table.items() if (entry := self._entry(name, key, given))}
                found[name] = Section(self._place(name), entries)
            else:
                parent, _, key = name.rpartition(".")
                self._refuse(quoted(name), str(self._place(parent, key)), "is not a table", _HEADER)
        return found, self._problems

    def _tables(self, data: dict[str, Any]) -> dict[str, Any]:
        """What is given as sections, by name."""
        tables: dict[str, Any] = {}
        for key, value in data.items():
            if key == RUNTIME and isinstance(value, dict):
                tables |= {f"{RUNTIME}.{name}": table for name, table in value.items()}
            elif key in (DEFAULTS, RUNTIME):
                tables[key] = value
            else:
                place = self._place(key) if isinstance(value, dict) else self._place("", key)
                why = "is a setting outside a section" if key in NAMES else "is not a section"
                self._refuse(f"key {quoted(key)}", f"{place}, top level", why, f"{_HEADER} above it")
        return tables

    def _entry(self, section: str, key: str, given: Any) -> Entry | None:
        place = self._place(section, key)
        value = settings_values.accepted(key, given)
        if value is not None:
            return Entry(value, place)
        where = f"{place}, [{section}]"
        if key in LISTS:
            self._refuse(f"{key} {_shown(given)}", where, "is not a list of sources", f"use some of: {_all(SOURCES)}")
        elif key in VARIABLE_LISTS:
            why = "is not a list of variables that Swarm makes of generic resources"
            self._refuse(f"{key} {_shown(given)}", where, why, f"use names that begin with {SWARM_PREFIX}")
        elif key in CHOICES:
            hint = f"use one of: {_all(CHOICES[key])}"
            self._refuse(f"{key} {_shown(given)}", where, "is not a value of this setting", hint)
        else:
            self._refuse(f"key {quoted(key)}", where, "is not a setting", f"use one of: {_all(NAMES)}")
        return None

    def _place(self, section: str, key: str | None = None) -> Place:
        """Of a section's name, or of a key in it; the section is empty for the top level."""
        current, wanted = "", _bare(section)
        for number, line in enumerate(self._lines, start=1):
            if header := re.match(r"\s*\[([^\[\]]+)\]", line):
                current = _bare(header[1])
                if key is None and current == wanted:
                    return Place(self._file, number)
            elif key is not None and current == wanted and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return Place(self._file, number)
        return Place(self._file, None)

    def _refuse(self, what: str, where: str, why: str, hint: str) -> None:
        self._problems.append(SettingsError(what, where, why, hint))


def _bare(name: str) -> str:
    return re.sub(r"[\s\"']", "", name)


def _all(words: Iterable[str]) -> str:
    return ", ".join(words)


def _shown(given: Any) -> str:
    try:
        return quoted(given)
    except (ValueError, RecursionError):  # a number too long or brackets too deep to be shown
        return f"of type {type(given).__name__}"
