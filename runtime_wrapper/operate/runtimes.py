"""`gpulatch runtimes`: the runtime names that engines can call here, what stands behind each, and what is wrong."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from runtime_wrapper import settings
from runtime_wrapper.errors import GpulatchError, LowLevelError, errno_name
from runtime_wrapper.operate import tables, vetting
from runtime_wrapper.operate.vetting import Vetted

# A build in this checkout, and the installation.
DIRECTORIES = (Path(__file__).resolve().parents[2] / "build/gpulatch", Path("/usr/lib/gpulatch"))

_COLUMNS = ("name", "low-level runtime", "version", "grammar", "switch", "mode", "problem")
_REINSTALL = "install the name anew: packaging/install NAME LOWLEVEL"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime name of a private directory; `link` leads to the low-level runtime, None unless there is just one."""

    directory: str
    name: str
    link: Path | None
    vetted: Vetted
    off: bool
    mode: str | None
    settings_error: str | None
    problems: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether containers can be started through this name."""
        return not self.problems and self.settings_error is None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of runtime names (schema runtime.json).")
def runtimes(as_json: bool) -> None:
    """Show the runtime names, the low-level runtime of each, and what is wrong; exit code 1 if anything is."""
    found = [runtime for directory in DIRECTORIES for runtime in installed(directory)]
    if as_json:
        click.echo(json.dumps([to_json(runtime) for runtime in found], indent=2))
    else:
        _show(found)
    sys.exit(0 if all(runtime.healthy for runtime in found) else 1)


def installed(directory: Path) -> list[Runtime]:
    """The runtime names of a private directory: those with a launcher, a folder of links, or both."""
    names = {name for part in ("bin", "low-level") for name in _listed(directory / part)}
    return [look(directory, name) for name in sorted(names)]


def is_launcher_path(path: str) -> bool:
    """Whether a path lies where gpulatch's launchers do, there or not."""
    return any(path.startswith(f"{directory}/bin/") for directory in DIRECTORIES)


def look(directory: Path, name: str) -> Runtime:
    """A runtime name as it is now. Its low-level runtime is asked for its version, unless others could change it."""
    folder = directory / "low-level" / name
    links = [folder / entry for entry in _listed(folder) if (folder / entry).is_symlink()]
    problems = _launcher_problems(directory / "bin" / name)
    link, vetted = None, Vetted(None, None)
    if len(links) == 1:
        link = links[0]
        vetted = vetting.vet(str(link))
    else:
        problems += (f"{folder} has {'several links' if links else 'no link'} in it; {_REINSTALL}",)
    problems += (_told(vetted.error),) if vetted.error else ()
    mode, settings_error = _mode(name)
    off = (folder / "off").exists()
    return Runtime(str(directory), name, link, vetted, off, mode, settings_error, problems)


def to_json(runtime: Runtime) -> dict[str, Any]:
    """A runtime name as JSON values; keys as in `schemas/runtime.json`."""
    link, version = runtime.link, runtime.vetted.version
    return {
        "name": runtime.name,
        "directory": runtime.directory,
        "low_level": str(link.readlink()) if link else None,
        "resolved": os.path.realpath(link) if link else None,
        "program": version.program if version else None,
        "version": version.text if version else None,
        "grammar": vetting.grammar(str(link)) if link else None,
        "off": runtime.off,
        "mode": runtime.mode,
        "settings_error": runtime.settings_error,
        "problems": list(runtime.problems),
        "warnings": list(runtime.vetted.warnings),
    }


def _listed(folder: Path) -> list[str]:
    """Names in a folder, without an installer's work in progress; none where there is no folder."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _launcher_problems(launcher: Path) -> tuple[str, ...]:
    try:
        vetting.require_safe(str(launcher))
    except LowLevelError as error:
        return (_told(error),)
    except OSError as error:
        return (f"{launcher} cannot be opened ({errno_name(error)}); {_REINSTALL}",)
    if not vetting.is_launcher(str(launcher)):
        return (f"{launcher} is not gpulatch's launcher; {_REINSTALL}",)
    if not os.access(launcher, os.X_OK):
        return (f"{launcher} cannot be executed; run: chmod 755 {launcher}",)
    python = launcher.parent.parent / "runtime_wrapper/main.py"
    return () if python.is_file() else (f"{python} is missing; {_REINSTALL}",)


def _told(error: LowLevelError) -> str:
    return f"{error.where} {error.why}; {error.hint}"


def _mode(name: str) -> tuple[str | None, str | None]:
    """The mode that the settings give a name, or the error that stands in its way."""
    try:
        return settings.load(name).mode, None
    except GpulatchError as error:
        return None, str(error)


def _show(found: list[Runtime]) -> None:
    if not found:
        click.echo("No runtime name is installed.")
    for directory in dict.fromkeys(runtime.directory for runtime in found):
        rows = [_row(runtime) for runtime in found if runtime.directory == directory]
        tables.show(f"Runtime names in {directory}/bin", _COLUMNS, rows)
    for warning in dict.fromkeys(f"{to_json(r)['resolved']}: {text}" for r in found for text in r.vetted.warnings):
        click.echo(f"Note: {tables.printable(warning)}")


def _row(runtime: Runtime) -> tuple[str | None, ...]:
    values = to_json(runtime)
    target = values["low_level"]
    if target != values["resolved"]:
        target = f"{target} -> {values['resolved']}"
    return (
        runtime.name,
        target,
        str(runtime.vetted.version) if runtime.vetted.version else None,
        values["grammar"],
        "off" if runtime.off else "on",
        runtime.mode or runtime.settings_error,
        "; ".join(runtime.problems) or None,
    )
