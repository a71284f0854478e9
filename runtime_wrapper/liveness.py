"""Is the container of a claim alive? Decided from the kernel and the low-level runtime's state, never from a hook.

Hot: 200 claims must cost about a millisecond, so the runtime's state file is read only until the init process is known.
A claim is live while its holder (the process that became the runtime) is alive, or its init, or anything in its cgroup.
The runtime's state file appears before `create` exits, so there is no gap. Neither that file nor its directory is proof
of life, and only a state file that carries the claim's token speaks of this claim: ids are used again. Raises OSError
where it cannot be told.
"""

from dataclasses import dataclass, replace

from runtime_wrapper import runtime_state
from runtime_wrapper.proc import Cgroup, Process
from runtime_wrapper.spec import CLAIM_MARK

# How far a live container is: its create is not over, its first process runs, or only others of its cgroup do.
STARTING, RUNNING, LEFTOVER = "starting", "running", "leftover"


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


def stage(init: Process | None) -> str:
    """How far a live container is: `starting`, `running`, or `leftover` when its first process is gone."""
    if init is None:
        return STARTING
    return RUNNING if init.alive() else LEFTOVER


def _seen(trace: Trace) -> Trace:
    token = trace.token.encode()
    state = runtime_state.read(trace.root, trace.id, lambda raw: token in raw)
    if state is None or (trace.token and state.annotation(CLAIM_MARK) != trace.token):
        return trace
    return replace(trace, init=state.init, cgroup=state.cgroup)
