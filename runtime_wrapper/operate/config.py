"""`gpulatch config check` and `gpulatch config show`: what is wrong with the settings, and what they come to."""

import difflib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from runtime_wrapper import settings, settings_cache, settings_folder, settings_reading, trust
from runtime_wrapper.errors import one_line
from runtime_wrapper.operate import demo, tables
from runtime_wrapper.settings import Settings
from runtime_wrapper.settings_reading import Reading
from runtime_wrapper.settings_toml import DEFAULTS, RUNTIME, Entry, Section
from runtime_wrapper.settings_values import NAMES, Value
from runtime_wrapper.sources import OFF_BY_DEFAULT, SOURCES

# Where runtime names may be installed, each with a folder in `low-level`.
PRIVATE_DIRECTORIES = (Path("/usr/lib/gpulatch"), *demo.PRIVATE_DIRECTORIES)


@click.group()
def config() -> None:
    """Check the settings in /etc/gpulatch, or show what they come to."""


@config.command()
def check() -> None:
    """Name everything that is wrong with the settings, a line each on stderr; as root also compile them.

    Exit code: 0 nothing is wrong (warnings or not), 1 something is, 2 bad usage.
    """
    found = _sound_reading()
    _compile(found)
    files, sections = _counted(len(found.files), "file"), _counted(len(found.sections), "section")
    click.echo(f"{files}, {sections}: no problem")


@config.command()
@click.option("--runtime", "runtime_name", help="Only this runtime name, with all its settings.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON (schema config.json).")
def show(runtime_name: str | None, as_json: bool) -> None:
    """Show each setting, its value, and where that is written; for a runtime name what it has of its own.

    Exit code: 0 shown, 1 something is wrong with the settings, 2 bad usage.
    """
    found = _sound_reading()
    names = _names(found) if runtime_name is None else [runtime_name]
    if runtime_name is not None and runtime_name not in _names(found):
        click.echo(_stranger(runtime_name, f"--runtime {runtime_name}"), err=True)
    if as_json:
        click.echo(json.dumps(to_json(found, names), indent=2))
    elif runtime_name is not None:
        _table(f"Runtime {runtime_name}", _effective(found, runtime_name))
    else:
        _table("Defaults", _effective(found, None))
        for name in names:
            _show_own(found, name)


def to_json(found: Reading, names: Sequence[str]) -> dict[str, Any]:
    """The settings of these runtime names as JSON values; keys as in `schemas/config.json`."""
    installed = installed_names()
    return {
        "files": list(found.files),
        "defaults": _section_json(_effective(found, None)),
        "runtimes": [
            {"name": name, "installed": name in installed, "settings": _section_json(_effective(found, name))}
            for name in names
        ],
    }


def installed_names() -> list[str]:
    """The runtime names of this host."""
    folders = [directory / "low-level" for directory in PRIVATE_DIRECTORIES]
    return sorted({path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()})


def _sound_reading() -> Reading:
    """The settings read afresh; ends with exit code 1 where something is wrong with them."""
    found = settings_reading.read(settings.DIRECTORY)
    for line in (*map(str, found.problems), *_warnings(found)):
        click.echo(line, err=True)
    if found.problems:
        sys.exit(1)
    return found


def _warnings(found: Reading) -> list[str]:
    """A line for each section of a runtime name that this host does not have."""
    sections, installed = _by_runtime(found), installed_names()
    return [
        _stranger(name, f"[{RUNTIME}.{name}], {section.place}")
        for name, section in sections.items()
        if name not in installed
    ]


def _stranger(name: str, where: str) -> str:
    """The warning about a runtime name that this host does not have."""
    installed = installed_names()
    nearest = difflib.get_close_matches(name, installed, 1)
    meant = f"perhaps {nearest[0]} is meant; " if nearest else ""
    return one_line(
        f"warning: {where}: no such runtime name on this host; {meant}installed: {', '.join(installed) or 'none'}"
    )


def _compile(found: Reading) -> None:
    """Leave the settings compiled where that can be; waits until their last change is settled."""
    if not found.files or not os.access(trust.STATE_DIR, os.W_OK):
        return
    if found.stamps is None:
        time.sleep(1.1 * settings_folder.GRANULE_NS / 1e9)
        found = settings_reading.read(settings.DIRECTORY)
    if found.stamps is not None:
        settings_cache.store(trust.STATE_DIR, found.stamps, found.values)


def _by_runtime(found: Reading) -> dict[str, Section]:
    """The sections of runtime names, by these."""
    return {name.removeprefix(f"{RUNTIME}."): part for name, part in found.sections.items() if name != DEFAULTS}


def _names(found: Reading) -> list[str]:
    """The runtime names that have a section or are installed."""
    return sorted({*_by_runtime(found), *installed_names()})


# A setting's value, the section that has it, and the entry there; both None where the default holds.
_Effective = dict[str, tuple[Value, str | None, Entry | None]]


def _effective(found: Reading, runtime_name: str | None) -> _Effective:
    """Every setting of a runtime name, or of the defaults for None."""
    effective: _Effective = {key: (getattr(Settings(), key), None, None) for key in NAMES}
    for section in (DEFAULTS, f"{RUNTIME}.{runtime_name}") if runtime_name is not None else (DEFAULTS,):
        content = found.sections.get(section)
        for key, entry in content.entries.items() if content else ():
            effective[key] = (entry.value, section, entry)
    return effective


def _show_own(found: Reading, name: str) -> None:
    own = {key: row for key, row in _effective(found, name).items() if row[1] == f"{RUNTIME}.{name}"}
    click.echo()
    if own:
        _table(f"Runtime {name}, other than the defaults", own)
    else:
        click.echo(f"Runtime {tables.printable(name)}: the defaults")


def _table(title: str, effective: _Effective) -> None:
    rows = []
    for key, (value, section, entry) in effective.items():
        place = f"{_file_line(entry)} [{section}]" if entry else "default"
        rows.append((key, _in_words(value), place))
    tables.show(tables.printable(title), ("setting", "value", "from"), rows)


def _in_words(value: Value) -> str:
    """A value as the table shows it: a list of all sources, in their order, in short."""
    if isinstance(value, str):
        return value
    off = ", ".join(OFF_BY_DEFAULT)
    short = {tuple(SOURCES): "all", Settings().sources: f"all but {off}", (): "(none)"}
    return short.get(value, ", ".join(value))


def _file_line(entry: Entry) -> str:
    return entry.place.file if entry.place.line is None else f"{entry.place.file}:{entry.place.line}"


def _section_json(effective: _Effective) -> dict[str, Any]:
    return {
        key: {
            "value": value,
            "from": {"file": entry.place.file, "line": entry.place.line, "section": section} if entry else None,
        }
        for key, (value, section, entry) in effective.items()
    }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
