"""The administrator's settings of one runtime name, from `/etc/gpulatch/config.toml`.

Read only once a container asks for a GPU: a broken file never stops another container. `docs/files.md` lists them.
"""

import os
from dataclasses import dataclass

from runtime_wrapper import trust
from runtime_wrapper.errors import SettingsError, quoted

DIRECTORY = "/etc/gpulatch"
FILE = "config.toml"
WHERE = f"{DIRECTORY}/{FILE}"

ENFORCE, OBSERVE = "enforce", "observe"
MODES = (ENFORCE, OBSERVE)


@dataclass(frozen=True, slots=True)
class Settings:
    """`mode`: `enforce` writes the grant into the container, `observe` books a mark, reports and changes nothing."""

    mode: str = ENFORCE


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
    runtimes = data.get("runtime", {})
    _require_known(data, ("runtime",), "top level")
    if not isinstance(runtimes, dict) or not all(isinstance(section, dict) for section in runtimes.values()):
        raise SettingsError('"runtime"', WHERE, "is not a table of tables", f"write [runtime.{runtime_name}]")
    for name, section in runtimes.items():
        _require_known(section, ("mode",), f"runtime.{name}")
    mode = runtimes.get(runtime_name, {}).get("mode", ENFORCE)
    if mode not in MODES:
        raise SettingsError(f"mode {quoted(mode)}", WHERE, "is not a mode", f"use one of: {', '.join(MODES)}")
    return Settings(mode)


def _require_known(section: dict[str, object], known: tuple[str, ...], place: str) -> None:
    for key in section:
        if key not in known:
            raise SettingsError(
                f"key {quoted(key)}", f"{WHERE}, {place}", "is not a setting", f"use one of: {', '.join(known)}"
            )
