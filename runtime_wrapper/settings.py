"""The administrator's settings of one runtime name, from `/etc/gpulatch/config.toml`.

Read only once a container asks for a GPU: a broken file never stops another container. `[defaults]` holds for every
runtime name, `[runtime.NAME]` for one. `docs/files.md` lists the settings with their reasons.
"""

import os
import re
from dataclasses import dataclass, fields
from typing import Any

from runtime_wrapper import trust
from runtime_wrapper.errors import SettingsError, quoted
from runtime_wrapper.sources import SOURCES

DIRECTORY = "/etc/gpulatch"
FILE = "config.toml"
WHERE = f"{DIRECTORY}/{FILE}"

ENFORCE, OBSERVE = "enforce", "observe"

# What each setting can be, default first. `LISTS` hold sources.
CHOICES: dict[str, tuple[str, ...]] = {
    "mode": (ENFORCE, OBSERVE),
    "lone_all": ("all", "none"),
    "count_when_busy": ("refuse", "share"),
    "all_when_held": ("rest", "refuse"),
    "accept_env": ("always", "privileged", "never"),
    "unlimited_devices": ("report", "refuse"),
    "driver_files": ("auto",),
    "numa_pin": ("off",),
}
LISTS = ("sources", "allow_exclusive_from", "allow_monitor_from")


@dataclass(frozen=True, slots=True)
class Settings:
    """One runtime name's settings.

    `mode`: `enforce` writes the grant into the container, `observe` books a mark, reports and changes nothing.
    `sources`: where a request is looked for, in this order. `lone_all`: what `NVIDIA_VISIBLE_DEVICES=all` by itself
    means, which is most likely the image's. `count_when_busy`: a count that free GPUs do not meet is refused, or filled
    up with shared ones. `all_when_held`: `all` means the rest when some are held, or is refused. `accept_env`: whose
    variables count. `allow_exclusive_from`, `allow_monitor_from`: the sources that may ask for those policies.
    `unlimited_devices`: a container that may open every device is reported, or refused, while another holds a GPU
    exclusively. `driver_files` and `numa_pin` have one value yet.
    """

    mode: str = ENFORCE
    sources: tuple[str, ...] = tuple(SOURCES)
    lone_all: str = "all"
    count_when_busy: str = "refuse"
    all_when_held: str = "rest"
    accept_env: str = "always"
    allow_exclusive_from: tuple[str, ...] = tuple(SOURCES)
    allow_monitor_from: tuple[str, ...] = tuple(SOURCES)
    unlimited_devices: str = "report"
    driver_files: str = "auto"
    numa_pin: str = "off"


def load(runtime_name: str, directory: str = DIRECTORY) -> Settings:
    """The settings for a runtime name; defaults where nothing is said. Raises SettingsError, UntrustedPathError."""
    try:
        fd = trust.open_directory(directory, "settings directory")
    except FileNotFoundError:
        return Settings()
    try:
        raw = trust.read_file(fd, FILE, "settings file", WHERE)
    except FileNotFoundError:
        return Settings()
    finally:
        os.close(fd)
    return _parse(raw, runtime_name)


def _parse(raw: bytes, runtime_name: str) -> Settings:
    import tomllib  # here, because most hosts have no settings file and the import is slow

    try:
        data = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError("settings", WHERE, f"not valid TOML ({error})", "mend that line") from error
    _require_known(data, ("defaults", "runtime"), f"{WHERE}, top level")
    runtimes = _table(data.get("runtime", {}), "runtime", runtime_name)
    sections = {"defaults": data.get("defaults", {})} | {f"runtime.{name}": part for name, part in runtimes.items()}
    values: dict[str, Any] = {}
    for name, part in sections.items():
        entries = _table(part, name, runtime_name).items()
        checked = {key: _checked(key, value, f"{WHERE}{_line(raw, name, key)}, [{name}]") for key, value in entries}
        values |= checked if name in ("defaults", f"runtime.{runtime_name}") else {}
    return Settings(**values)


def _table(value: Any, name: str, runtime_name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(quoted(name), WHERE, "is not a table", f"write [runtime.{runtime_name}] or [defaults]")
    return value


def _line(raw: bytes, section: str, key: str) -> str:
    """Where a key of a section stands, as messages say it; empty where it is written in another of TOML's ways."""
    current = ""
    for number, line in enumerate(raw.decode().splitlines(), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            current = re.sub(r"[\s\"']", "", header[1])
        elif current == section and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return f" line {number}"
    return ""


def _checked(key: str, value: Any, where: str) -> str | tuple[str, ...]:
    _require_known({key: value}, tuple(field.name for field in fields(Settings)), where)
    if key in LISTS:
        if isinstance(value, list) and all(isinstance(item, str) and item in SOURCES for item in value):
            return tuple(dict.fromkeys(value))
        why, hint = "is not a list of sources", f"use some of: {', '.join(SOURCES)}"
    else:
        if isinstance(value, str) and value in CHOICES[key]:
            return value
        why, hint = "is not a value of this setting", f"use one of: {', '.join(CHOICES[key])}"
    raise SettingsError(f"{key} {quoted(value)}", where, why, hint)


def _require_known(section: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in section:
        if key not in known:
            hint = f"use one of: {', '.join(known)}"
            raise SettingsError(f"key {quoted(key)}", where, "is not a setting", hint)
