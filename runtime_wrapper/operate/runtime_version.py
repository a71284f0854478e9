"""What a low-level runtime's `--version` says, and what is known of that version.

Pure, standard library only: `packaging/build` runs it on the distribution's Python. Sources of the facts: the release
notes of runc and crun, and the issues named below.
"""

import re
from dataclasses import dataclass

# Three numbers, and 0 for a release candidate, 1 for the release itself.
Key = tuple[int, int, int, int]

# The first releases whose command line, state files and device filter are those that gpulatch builds on. Before it runc
# had only release candidates; crun's state file tells a process's start time since 0.14, --config stands since 0.15.
OLDEST: dict[str, Key] = {"runc": (1, 0, 0, 1), "crun": (1, 0, 0, 1)}

_LINE = re.compile(r"^([a-z][\w.-]*)[ \t]+version:?[ \t]*([\w.+~-]*)", re.MULTILINE)
_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_CANDIDATE = re.compile(r"[-~.](?:rc|alpha|beta)")


@dataclass(frozen=True, slots=True)
class Version:
    """`program` and `text` as the program says them; `key` orders versions and is None where there is no number."""

    program: str
    text: str
    key: Key | None

    def __str__(self) -> str:
        return f"{self.program} {self.text}".rstrip()


@dataclass(frozen=True, slots=True)
class Fault:
    """What a version up to, and not including, `fixed` does to GPU containers, and what helps."""

    program: str
    since: Key
    fixed: Key
    text: str


FAULTS = (
    # opencontainers/runc issues 3671 and 3708
    Fault(
        "runc",
        since=(1, 1, 3, 0),
        fixed=(1, 1, 7, 1),
        text="with the systemd cgroup driver a container loses its GPUs at each systemctl daemon-reload if /dev/char"
        " has no links to their nodes; use runc 1.1.7 or newer, or run: nvidia-ctk system create-dev-char-symlinks",
    ),
    # opencontainers/runc issue 4568
    Fault(
        "runc",
        since=(0, 0, 0, 0),
        fixed=(1, 2, 5, 1),
        text="with the systemd cgroup driver systemd asks for a daemon-reload after each start, which takes away"
        " devices that a hook gave; use runc 1.2.5 or newer",
    ),
    # crun's NEWS for 1.18.1 and 1.18.2
    Fault(
        "crun",
        since=(1, 18, 0, 0),
        fixed=(1, 18, 2, 1),
        text="sets some device rules wrongly; use crun 1.18.2 or newer",
    ),
)


def read(output: str) -> Version | None:
    """The version in the output of `--version`, or None where it has none in the form `PROGRAM version NUMBER`.

    NVIDIA's runtime prints its own first and then that of the runtime below it, which is the one that counts.
    """
    found = [Version(program, text, _key(text)) for program, text in _LINE.findall(output)]
    known = [version for version in found if version.program in OLDEST]
    return next(iter(known or found), None)


def too_old(version: Version) -> bool:
    """Whether the version is older than the oldest that gpulatch works on; False where it cannot be told."""
    oldest = OLDEST.get(version.program)
    return oldest is not None and version.key is not None and version.key < oldest


def oldest(program: str) -> str:
    """The oldest version that gpulatch works on, as people write it."""
    return ".".join(map(str, OLDEST[program][:3]))


def faults(version: Version) -> list[str]:
    """What is known to go wrong with GPU containers on this version."""
    if version.key is None:
        return []
    return [f.text for f in FAULTS if f.program == version.program and f.since <= version.key < f.fixed]


def _key(text: str) -> Key | None:
    numbers = _NUMBERS.match(text)
    if not numbers:
        return None
    major, minor, patch = (int(number or 0) for number in numbers.groups())
    return major, minor, patch, 0 if _CANDIDATE.search(text) else 1
