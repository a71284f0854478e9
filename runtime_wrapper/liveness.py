"""Is the container of a claim alive? Decided from the kernel and the low-level runtime's state, never from a hook.

Hot: 200 claims must cost about a millisecond, so the runtime's state file is read only until the init process is known.
A claim is live while its holder (the process that became the runtime) is alive, or its init, or anything in its cgroup.
The runtime's state file appears before `create` exits, so there is no gap. Neither that file nor its directory is proof
of life, and only a state file that carries the claim's token speaks of this claim: ids are used again. Raises OSError
where it cannot be told.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

from runtime_wrapper import proc
from runtime_wrapper.proc import Cgroup, Process

_CGROUP_MOUNT = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of a claimed container; init and cgroup once they were seen. An empty token fits any state."""

    id: str
    root: str
    token: str
    holder: Process
    init: Process | None
    cgroup: Cgroup | None


def look(trace: Trace) -> Trace | None:
    """The trace with what is newly seen filled in, or None when the container is dead.

    The holder first: if it is dead by now, `create` is over and the state file that it left must be there to be read.
    In the other order a create that ends between the two looks would pass for dead.
    """
    holder_lives = trace.holder.alive()
    if trace.init is None:
        trace = _seen(trace)
    if holder_lives or (trace.init and trace.init.alive()) or (trace.cgroup and trace.cgroup.populated()):
        return trace
    return None


def _seen(trace: Trace) -> Trace:
    state = _runc_state(trace) or _crun_state(trace)
    if state is None:
        return trace
    init, cgroup = state
    return replace(trace, init=init, cgroup=Cgroup.at(cgroup) if isinstance(cgroup, str) else None)


def _runc_state(trace: Trace) -> tuple[Process, object] | None:
    """init and cgroup path from runc's `<root>/<id>/state.json` (runc libcontainer/container.go, BaseState)."""
    data = _read(f"{trace.root}/{trace.id}/state.json", trace.token)
    init = _process(data.get("init_process_pid"), data.get("init_process_start"))
    paths = data.get("cgroup_paths")
    cgroup = (paths.get("") or paths.get("devices")) if isinstance(paths, dict) else None
    return (init, cgroup) if init else None


def _crun_state(trace: Trace) -> tuple[Process, object] | None:
    """init and cgroup path from crun's `<root>/<id>/status` (crun src/libcrun/status.c); its spec stands beside it."""
    if not _read(f"{trace.root}/{trace.id}/config.json", trace.token):
        return None
    data = _read(f"{trace.root}/{trace.id}/status", "")
    init = _process(data.get("pid"), data.get("process-start-time"))
    cgroup = data.get("cgroup-path")
    return (init, _CGROUP_MOUNT + cgroup if isinstance(cgroup, str) else None) if init else None


def _process(pid: object, start: object) -> Process | None:
    return Process(pid, start) if isinstance(pid, int) and isinstance(start, int) else None


def _read(path: str, token: str) -> dict[str, Any]:
    """A runtime's JSON file that holds the token; empty when it is absent, of another claim, or no JSON object."""
    raw = proc.read(path)
    if raw is None or token.encode() not in raw:
        return {}
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
