"""The hook that Docker puts into a container's spec for `--gpus`: says under plain runc that gpulatch was left out.

dockerd (until CDI) takes `--gpus` only when an executable `nvidia-container-runtime-hook` is on its PATH at its start,
and names it as a prestart hook. gpulatch's edits drop the entry; where it only observes or gives nothing, the entry
stays and this says nothing. Other runtimes give no GPU: the start then fails with one line instead of a container
without its GPUs. The container's state comes on standard input (OCI runtime-spec, runtime.md). Standard library only;
nothing is written.
"""

import json
import os
import sys
from typing import BinaryIO

from runtime_wrapper import policy, report, sources, spec
from runtime_wrapper.errors import GpulatchError, SpecError, WrongRuntimeError
from runtime_wrapper.settings import Settings

RUNTIME = "gpulatch"
_MAX_STATE_BYTES = 1 << 20
_LOW_LEVEL = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "low-level")


def main() -> int:
    """The exit status: 0 without a word when no GPU is asked for, 1 with one line on standard error otherwise."""
    if under_gpulatch():
        return 0
    try:
        refuse_gpus(*_state(sys.stdin.buffer))
    except GpulatchError as error:
        report.refusal(error, None, "text")
        return 1
    except Exception as error:
        report.refusal(report.unexpected(error), None, "text")
        return 1
    return 0


def under_gpulatch() -> bool:
    """Whether gpulatch's own low-level link started this hook: in observe mode the entry stays in the spec.

    runc and crun run a prestart hook from the process that gpulatch became, whose argv[0] is that link.
    """
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
            started = os.fsdecode(file.read().partition(b"\0")[0])
    except OSError:
        return False
    return started.startswith(f"{_LOW_LEVEL}/")


def refuse_gpus(bundle: str, container_id: str) -> None:
    """Raises WrongRuntimeError when a container asks for GPUs, another GpulatchError when that cannot be told.

    GPU nodes of the spec itself (`--device`) do not count: any runtime gives those.
    """
    path = os.path.join(bundle, "config.json")
    found = spec.read(path)
    if found is None:
        raise SpecError(spec.WHAT, path, "is not there or holds no JSON object", "let the engine write it again")
    wishes = [wish for wish in sources.wishes(found.data, container_id) if wish.source != "nodes"]
    wanted = policy.choose(wishes, Settings(), privileged=sources.privileged(found.data)).request()
    if wanted and not wanted.none:
        why = "this container's runtime cannot give them"
        hint = f"add --runtime {_runtime_name()} to docker run, or make it Docker's default runtime"
        raise WrongRuntimeError("GPUs asked for", wanted.where, why, hint)


def _state(stream: BinaryIO) -> tuple[str, str]:
    """Bundle and id from a container's state. Raises SpecError."""
    what, hint = "container state", "call this as an OCI hook, with the state on standard input"
    try:
        state = json.loads(stream.read(_MAX_STATE_BYTES))
    except (ValueError, RecursionError) as error:
        raise SpecError(what, "standard input", "is not valid JSON", hint) from error
    bundle = state.get("bundle") if isinstance(state, dict) else None
    if not isinstance(bundle, str) or not os.path.isabs(bundle):
        raise SpecError(what, "standard input", "names no bundle by its full path", hint)
    return bundle, str(state.get("id"))


def _runtime_name() -> str:
    """A runtime name that gpulatch is installed under, the usual one where there are several."""
    try:
        names = sorted(os.listdir(_LOW_LEVEL))
    except OSError:
        names = []
    return RUNTIME if RUNTIME in names or not names else names[0]
