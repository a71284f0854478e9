"""The settings as the administrator's files have them together, read afresh.

Not hot: used where the compiled settings do not hold, and by the command line. Of two files that set a key of one
section the later counts.
"""

import time
from dataclasses import dataclass, field

from runtime_wrapper import settings_toml, trust
from runtime_wrapper.errors import GpulatchError, UntrustedPathError
from runtime_wrapper.settings_folder import WHAT, Folder, Stamp, settled
from runtime_wrapper.settings_toml import Section
from runtime_wrapper.settings_values import Value

# How often a directory is read that changes while it is read.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """The files that count, their sections by name, and everything that is wrong with them.

    `stamps` are those of the sources where they stand for exactly this content, else None: something is wrong with it,
    changed while it was read (`changing`), or so lately that another change might leave the stamps as they are.
    """

    files: tuple[str, ...] = ()
    sections: dict[str, Section] = field(default_factory=dict)
    problems: tuple[GpulatchError, ...] = ()
    stamps: list[Stamp] | None = None
    changing: bool = False

    @property
    def values(self) -> dict[str, dict[str, Value]]:
        """The sections without the places."""
        return {
            name: {key: entry.value for key, entry in section.entries.items()}
            for name, section in self.sections.items()
        }


def read(directory: str) -> Reading:
    """Everything in the directory, which need not be there. Raises OSError only: the rest is among the problems."""
    for _ in range(_ATTEMPTS):
        found = _read_once(directory)
        if not found.changing:
            break
    return found


def _read_once(directory: str) -> Reading:
    begun_ns = time.time_ns()
    try:
        fd = trust.open_directory(directory, WHAT)
    except FileNotFoundError:
        return Reading()
    except UntrustedPathError as error:
        return Reading(problems=(error,))
    with Folder(fd, directory) as folder:
        stamps = folder.stamps()
        texts, problems = _texts(folder)
        changing = folder.stamps() != stamps
    sections: dict[str, Section] = {}
    for file, raw in texts.items():
        found, wrong = settings_toml.parse(raw, file)
        sections = _merged(sections, found)
        problems += wrong
    exact = settled(stamps, begun_ns) and not changing and not problems
    return Reading(tuple(texts), sections, tuple(problems), stamps if exact else None, changing)


def _texts(folder: Folder) -> tuple[dict[str, bytes], list[GpulatchError]]:
    """The contents by path, in the order in which they count, and what stands against reading the others."""
    texts: dict[str, bytes] = {}
    problems: list[GpulatchError] = [folder.problem] if folder.problem else []
    for dir_fd, name, where in folder.files():
        try:
            texts[where] = trust.read_file(dir_fd, name, "settings file", where)
        except FileNotFoundError:
            continue  # no config.toml, or a drop-in that has just been removed
        except UntrustedPathError as error:
            problems.append(error)
    return texts, problems


def _merged(earlier: dict[str, Section], later: dict[str, Section]) -> dict[str, Section]:
    merged = dict(earlier)
    for name, section in later.items():
        before = earlier[name].entries if name in earlier else {}
        merged[name] = Section(section.place, before | section.entries)
    return merged
