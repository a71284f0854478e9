"""The inventory of this host, from its snapshot while that is true, else from a probe in a child process.

Hot: every create calls `load`. Must not run under the ledger's lock, for a probe can take seconds. It knows only this
host: nothing in the request or the environment can name another machine. Concurrent probes are harmless, each writes
a whole snapshot and the last one stays.
"""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from runtime_wrapper import atomic, clock, trust
from runtime_wrapper.errors import (
    GpulatchError,
    MachineFileError,
    ProbeError,
    UntrustedPathError,
    by_code,
    one_line,
    quoted,
)
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.probe import driver_files, host

NAME = "inventory.json"

# How long a killed child may take to go; one that sits in the driver in state D does not go at all.
GRACE_S = 1.0

_CHILD = os.path.join(os.path.dirname(os.path.abspath(host.__file__)), "child.py")
_HINT = "see dmesg for what the driver says, then run: gpulatch probe"


def load(timeout_s: float = 10.0, state_dir: str = trust.STATE_DIR, roots: host.Roots = host.THIS_HOST) -> Inventory:
    """The inventory as it is now. `state_dir` must exist.

    Raises NoDriverError, ProbeError after `timeout_s` (plus `GRACE_S` at most), MachineFileError, UntrustedPathError.
    """
    folder = trust.open_private_directory(state_dir, "state directory", create=False)
    try:
        stored = _stored(folder, f"{state_dir}/{NAME}", host.fingerprint(roots))
        if stored is not None:
            return stored
        return _probed(folder, probe_command(roots), timeout_s)
    finally:
        os.close(folder)


def refresh(timeout_s: float = 10.0, state_dir: str = trust.STATE_DIR, roots: host.Roots = host.THIS_HOST) -> Inventory:
    """The inventory from a new probe, whatever the snapshot says. `state_dir` must exist. Raises as `load`."""
    folder = trust.open_private_directory(state_dir, "state directory", create=False)
    try:
        return _probed(folder, probe_command(roots), timeout_s)
    finally:
        os.close(folder)


def probe_command(roots: host.Roots) -> list[str]:
    """The command line of the probing child; isolated, so that no variable or folder of the caller's changes it."""
    return [sys.executable or "/usr/bin/python3", "-ISB", _CHILD, *astuple(roots)]


def _stored(folder: int, where: str, fingerprint: dict[str, Any]) -> Inventory | None:
    """The stored inventory if it is still true, the driver's files too; a corrupt snapshot counts as none.

    Nothing tells that the driver has come to know the UUID of a GPU since, so one without it is looked at again.
    """
    try:
        snapshot = json.loads(trust.read_file(folder, NAME, "inventory snapshot", where))
        if snapshot["fingerprint"] != fingerprint:
            return None
        stored = Inventory.from_json(snapshot["inventory"], where)
        known = all(gpu.uuid for gpu in stored.gpus)
        return stored if known and driver_files.unchanged(stored.driver_files) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, UntrustedPathError, MachineFileError):
        return None


def _probed(folder: int, command: Sequence[str], timeout_s: float) -> Inventory:
    found = _ask(command, timeout_s)
    inventory = Inventory.from_json(found["inventory"], "output of the probe")
    snapshot = {**found, "probed_at": clock.now()}
    with contextlib.suppress(OSError):  # without a snapshot the next create probes again, nothing is wrong
        atomic.replace(folder, NAME, json.dumps(snapshot).encode())
    return inventory


def _ask(command: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """What the child found; its refusal is raised here as its own class."""
    output, complaint = _run(command, timeout_s)
    try:
        found: dict[str, Any] = json.loads(output)
        if "error" not in found:
            return {key: found[key] for key in ("fingerprint", "inventory")}
        error = found["error"]
        refusal = (by_code(error.pop("code")) or GpulatchError)(**error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        why = f"ended without a result, last line {quoted(one_line(last))}"
        raise ProbeError("probe", command[0], why, "run: gpulatch probe") from error
    raise refusal


def _run(command: Sequence[str], timeout_s: float) -> tuple[bytes, bytes]:
    """Output and complaint of the child, which is given up when it does not die of SIGKILL: nothing waits for it."""
    import subprocess  # here, because a create with a true snapshot starts no child and the import is slow

    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, cwd="/"
    )
    try:
        return child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=GRACE_S)
        why = f"the GPUs could not be looked at within {timeout_s:g} s"
        raise ProbeError("NVIDIA driver", "this host", why, _HINT) from error
