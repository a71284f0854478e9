"""Containers that have GPUs whatever the ledger says: found by the low-level runtimes' own state, as claims.

Hot: every create of a GPU container looks, before the ledger is locked. A container that gpulatch started carries its
claim as an annotation, which its runtime keeps: with it a lost ledger is written anew as it was. Any other one that may
open single GPUs (started under plain runc, or before gpulatch came) holds them shared. What a tenant could have written
is believed only so far as the runtime's device rules, or root's own files, bear it out. Raises OSError where it cannot
be told.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from runtime_wrapper import argv, engine, proc, runtime_state, sources, spec
from runtime_wrapper.argv import Invocation
from runtime_wrapper.claim import Claim, Device
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.proc import Process
from runtime_wrapper.request import SHARED
from runtime_wrapper.runtime_state import RuntimeState

FOUND = "device rules of the running container"
FOUND_NODES = "NVIDIA's hook in the running container"

# Where the runtimes keep their state by default, and where engines tell them to; `*` is any one folder.
ROOTS = (
    "/run/runc",
    "/run/crun",
    "/run/user/0/crun",
    "/run/containerd/runc/*",
    "/run/docker/runtime-*/*",
)

# What reading a record, or a runtime's state, that makes no sense raises.
_NO_SENSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)

_ALLOWS = re.compile(rb'"allow"\s*:\s*true')
_MAJOR = re.compile(rb'"major"\s*:\s*(-?[0-9]{1,19}|null)')
_ANY = (1 << 32) - 1
_ACCESS = re.compile(rb'"(?:access|permissions)"\s*:\s*"(\w*)"')
_GPU_WORDS = (spec.RECORD_MARK.encode(), b"nvidia-container-")
# How many words a command line can begin with before the runtime's own arguments: a runtime may be a script, and our
# own Python, with its main.py, the runtime's name and link, is about to become the runtime once the spec is written.
_PROGRAM_WORDS = 6
# A folder with these troubles cannot hold what a live runtime keeps.
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTCONN, errno.ESTALE)
_MAX_WORDS_BYTES = 1 << 18  # of a process's arguments, variables and mounts
_HARMLESS = ("tmpfs", "devtmpfs")


def is_default_root(root: str) -> bool:
    """Whether `running` looks at a state root without being told."""
    return any(_fits(root, pattern) for pattern in ROOTS)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the running containers has shown.

    A claim for each that may open single GPUs, the oldest first; the names of those that may open every GPU there is.
    """

    claims: tuple[Claim, ...] = ()
    unlimited: tuple[str, ...] = ()


def running(by_minor: Mapping[int, Device], more_roots: tuple[str, ...] = ()) -> Look:
    """Look at every running container; `by_minor` are the host's GPUs.

    Without those only containers are told that gpulatch started.
    """
    claims: list[Claim] = []
    unlimited: list[str] = []
    for root in dict.fromkeys((*_default_roots(), *more_roots)):
        for container_id in _folders(root):
            claim, opens_all = _of_container(root, container_id, by_minor)
            claims += [claim] if claim else []
            unlimited += [opens_all] if opens_all else []
    return Look(tuple(sorted(claims, key=lambda claim: claim.since)), tuple(unlimited))


def starting() -> list[Claim]:
    """The claims of containers whose low-level runtime is at work, or about to be, and has written no state yet.

    Slow, for it looks at all processes. Such a process is the holder that its container's spec names.
    """
    namespaces = _namespaces("self")
    pids = (int(name) for name in _folders("/proc") if name.isdecimal())
    return [claim for pid in pids if (claim := _being_started(pid, namespaces))]


def _of_container(root: str, container_id: str, by_minor: Mapping[int, Device]) -> tuple[Claim | None, str | None]:
    """The claim of a container, and its name if it may open every GPU."""
    try:
        state = runtime_state.read(root, container_id, _may_have_gpus)
        if state is None or not _lives(state):
            return None, None
        return _claim(state, by_minor), _shown(state) if sources.unlimited(state.spec) else None
    except _NO_SENSE:
        return None, None  # one odd container must not keep the others from starting


def _may_have_gpus(raw: bytes) -> bool:
    """Whether a runtime's state is worth reading; most are not, and each create looks at all of them."""
    return any(word in raw for word in _GPU_WORDS) or any(_may_open_gpus(rule) for rule in _allow_rules(raw))


def _allow_rules(raw: bytes) -> Iterator[bytes]:
    """The text of each device rule that allows something; rules are flat objects."""
    for match in _ALLOWS.finditer(raw):
        yield raw[raw.rfind(b"{", 0, match.start()) : raw.find(b"}", match.end())]


def _may_open_gpus(rule: bytes) -> bool:
    major, access = _MAJOR.search(rule), _ACCESS.search(rule)
    number = int(major[1]) % (1 << 32) if major and major[1] != b"null" else _ANY  # as the runtimes cut it
    return number in (_ANY, sources.GPU_MAJOR) and not (access and access[1] == b"m")


def _lives(state: RuntimeState) -> bool:
    cgroup = state.cgroup
    return state.init.alive() or (cgroup is not None and cgroup.populated())


def _shown(state: RuntimeState) -> str:
    """A container as messages name it."""
    name = _name(state)
    return f"{name} ({state.id[:12]})" if name else state.id


def _name(state: RuntimeState) -> str | None:
    return engine.container_name(engine.of(state.spec, state.root), state.spec, state.id, _parent(state.init))


def _claim(state: RuntimeState, by_minor: Mapping[int, Device]) -> Claim | None:
    if recorded := _recorded(state):
        return recorded
    minors, source = sources.opened(state.spec), FOUND
    if not minors and sources.has_nvidia_hook(state.spec) and state.init.alive():
        minors, source = _nodes_inside(state.init.pid, by_minor), FOUND_NODES
    devices = tuple(dict.fromkeys(by_minor[minor] for minor in minors if minor in by_minor))
    if not devices:
        return None
    return Claim(
        id=state.id,
        root=state.root,
        bundle=state.bundle,
        config=os.path.join(state.bundle, "config.json"),
        name=_name(state),
        engine=engine.of(state.spec, state.root),
        runtime="",
        devices=devices,
        policy=SHARED,
        source=source,
        request=",".join(f"/dev/nvidia{minor}" for minor in dict.fromkeys(minors)),
        since=state.created or "",
        holder=state.init,
        init=state.init,
        cgroup=state.cgroup,
    )


def _recorded(state: RuntimeState) -> Claim | None:
    """The claim that gpulatch wrote into the container's spec, unless it is another's or a tenant's invention."""
    text = state.annotation(spec.RECORD_MARK)
    if text is None:
        return None
    try:
        claim = Claim.from_record(text, state.init, state.cgroup)
    except _NO_SENSE:
        return None
    its_own = (claim.id, claim.root) == (state.id, state.root)
    return claim if its_own and _written_by_us(claim, state.annotation(spec.ORIGINAL_MARK)) else None


def _written_by_us(claim: Claim, digest: str | None) -> bool:
    try:
        return spec.is_original(claim.config, digest)
    except (GpulatchError, OSError, *_NO_SENSE):
        return False


def _being_started(pid: int, namespaces: tuple[str, ...]) -> Claim | None:
    """The claim of which a process is the holder: one of root's, outside all containers, that creates a container.

    Which program it is does not matter: a low-level runtime may have become another. It may have ended meanwhile.
    """
    try:
        if os.stat(f"/proc/{pid}").st_uid != 0 or _namespaces(pid) != namespaces:
            return None
        call = _create_call(pid)
        return _claim_of_create(pid, call) if call else None
    except (GpulatchError, OSError, *_NO_SENSE):
        return None


def _create_call(pid: int) -> Invocation | None:
    words = _words(f"/proc/{pid}/cmdline")
    variables = dict(entry.partition("=")[::2] for entry in _words(f"/proc/{pid}/environ"))
    cwd = os.readlink(f"/proc/{pid}/cwd")
    calls = (
        argv.parse(words[i:], words[i - 1], cwd, variables, 0) for i in range(1, min(len(words), _PROGRAM_WORDS + 1))
    )
    return next((call for call in calls if call), None)


def _claim_of_create(pid: int, call: Invocation) -> Claim | None:
    marks = spec.marks(call.config)
    claim = Claim.from_record(marks[spec.RECORD_MARK], None, None)
    its_own = claim.holder == Process.of(pid) and (claim.id, claim.config) == (call.container_id, call.config)
    return claim if its_own and _written_by_us(claim, marks.get(spec.ORIGINAL_MARK)) else None


def _namespaces(pid: int | str) -> tuple[str, ...]:
    return tuple(os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("pid", "mnt"))


def _words(path: str) -> list[str]:
    raw = proc.read(path, limit=_MAX_WORDS_BYTES) or b""
    return [os.fsdecode(word) for word in raw.split(b"\0")[:-1]]


def _nodes_inside(pid: int, minors: Iterable[int]) -> list[int]:
    """Which of the GPUs have a node in the /dev of a container, unless that is the host's own.

    Follows no link of the image, and asks no file system that a container could serve by itself.
    """
    try:
        kinds = _file_systems(pid)
        if kinds.get("/dev") not in _HARMLESS:
            return []
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            dev = os.open("dev", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
        finally:
            os.close(root)
    except OSError:
        return []  # gone meanwhile, or no folder: nothing was given there
    try:
        if os.path.samestat(os.fstat(dev), os.stat("/dev")):
            return []
        harmless = [minor for minor in minors if kinds.get(f"/dev/nvidia{minor}", "tmpfs") in _HARMLESS]
        return [minor for minor in harmless if _is_gpu(dev, minor)]
    finally:
        os.close(dev)


def _file_systems(pid: int) -> dict[str, str]:
    """The kind of the file system on each mount point of a process (proc_pid_mountinfo(5))."""
    text = (proc.read(f"/proc/{pid}/mountinfo", limit=_MAX_WORDS_BYTES) or b"").decode(errors="replace")
    lines = (line.split(" ") for line in text.splitlines() if " - " in line)
    return {words[4]: words[words.index("-") + 1] for words in lines}


def _is_gpu(folder: int, minor: int) -> bool:
    try:
        found = os.stat(f"nvidia{minor}", dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(sources.GPU_MAJOR, minor)


def _parent(process: Process) -> int:
    return process.parent() or 0


def _default_roots() -> Iterator[str]:
    for pattern in ROOTS:
        yield from _expanded(pattern)


def _expanded(pattern: str) -> list[str]:
    head, star, tail = pattern.partition("*")
    if not star:
        return [pattern]
    folder, _, prefix = head.rpartition("/")
    names = [name for name in _folders(folder) if name.startswith(prefix)]
    return [path for name in names for path in _expanded(f"{folder}/{name}{tail}")]


def _fits(root: str, pattern: str) -> bool:
    parts = pattern.split("/")
    return len(parts) == root.count("/") + 1 and all(
        own.startswith(part.rstrip("*")) if part.endswith("*") else own == part
        for own, part in zip(root.split("/"), parts, strict=True)
    )


def _folders(path: str) -> list[str]:
    """The names in a folder, none where there is none. Raises OSError."""
    try:
        return os.listdir(path)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return []
        raise
