"""How a container stands now: what it holds, what a refused one would get, what has changed under it."""

import os
from collections.abc import Sequence
from typing import Any

from runtime_wrapper import events, liveness, placement, policy, proc, request, runtime_state, settings, sources
from runtime_wrapper.book import Book
from runtime_wrapper.claim import Claim
from runtime_wrapper.errors import GpulatchError, UnknownDeviceError
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.operate import diagnosis, tables
from runtime_wrapper.operate.event_log import Event
from runtime_wrapper.pipeline import placement_rules

HOW_TO_ASK = "to get GPUs it has to ask: -e GPULATCH_GPUS=any:1 in any engine, with Docker also --gpus 1"


def now(
    key: tuple[str, str], start: Event | None, claim: Claim | None, book: Book, inventory: Inventory | None
) -> list[str]:
    """How it is, a line each."""
    if claim:
        return _of_claim(claim, told=start is not None)
    state = runtime_state.read(key[1], key[0], lambda raw: True)
    if state is None or not state.init.alive():
        lines = ["it is not running"]
    elif sources.unlimited(state.spec):
        lines = ["it is running, is booked for no GPU, and can open every GPU (--privileged, or a wildcard rule)"]
    else:
        lines = ["it is running and holds no GPU"]
    if start and start["kind"] == events.NO_GPU and not start["notes"]:
        lines.append(HOW_TO_ASK)
    if start and start["kind"] == events.REFUSED and start["request"] and inventory:
        lines += _asked_again(start, book, inventory)
    return lines


def changed(start: Event | None, inventory: Inventory | None) -> list[str]:
    """What has changed under a container since its start."""
    if start is None:
        return []
    found = diagnosis.settings_since(start["time"])
    there = {gpu.pci for gpu in inventory.gpus} if inventory else set()
    gone = [device["index"] for device in start["devices"] if inventory and device["pci"] not in there]
    return [*found, f"{tables.gpus(gone)} of it: gone from this host"] if gone else found


def _of_claim(claim: Claim, *, told: bool) -> list[str]:
    gpus = tables.gpus([device.index for device in claim.devices])
    observed = ", as observe mode would have it: nobody is hindered" if claim.observed else ""
    holds = f"holds {gpus} ({claim.policy}){observed}"
    if claim.stage == liveness.LEFTOVER:
        lines = [f"it has ended, but its processes {_left(claim)} still have {gpus} ({claim.policy}): end them"]
    else:
        lines = [f"it is {'being started' if claim.stage == liveness.STARTING else 'running'} and {holds}"]
    return lines if told else [*lines, f'asked for by {claim.source}: "{claim.request}"']


def _left(claim: Claim) -> str:
    """The processes of a cgroup, as pid and name."""
    path = claim.cgroup.path if claim.cgroup else ""
    pids = [pid for folder, _, _ in os.walk(path) for pid in (proc.read(f"{folder}/cgroup.procs") or b"").split()]
    names = [(pid.decode(), (proc.read(f"/proc/{pid.decode()}/comm") or b"").decode(errors="replace")) for pid in pids]
    return ", ".join(f"{pid} ({name.strip()})" for pid, name in names[:8]) or "?"


def _asked_again(start: Event, book: Book, inventory: Inventory) -> list[str]:
    """What would become of a request now that was refused for want of GPUs; other reasons are the container's own."""
    text, code = start["request"], start["error"]["code"]
    if not (code.startswith("GL-4") or code == UnknownDeviceError.code) or len(text) >= events.MAX_TEXT:
        return []
    try:
        offered = _offered(text, start, book, inventory)
    except GpulatchError as error:
        same = str(error) == start["error"]["message"]
        return ["asked again now, it would be refused for the same reason" if same else f"asked again now: {error}"]
    return [f"asked again now, it would get {tables.gpus(offered)}: start it again"] if offered else []


def _offered(text: str, start: Event, book: Book, inventory: Inventory) -> Sequence[Any]:
    place = next((said["place"] for said in start["said"] if said["verdict"] == policy.COUNTS), "request")
    wanted = request.parse(text, place)
    if wanted is None:
        return []
    rules = placement_rules(settings.load(start["container"]["runtime"]))
    return [gpu.index for gpu in placement.choose(wanted, inventory, book.holders(inventory), rules).gpus]
