"""Chooses the GPUs for a request: who may have what, and the best set among those that are free.

Pure and hot: it runs while the ledger is locked. `search` finds the best set; here are the rules of sharing and the
refusals, each naming what stands against the request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from runtime_wrapper.errors import (
    GpulatchError,
    HeldDeviceError,
    MigDeviceError,
    NotEnoughGpusError,
    UnknownDeviceError,
    quoted,
)
from runtime_wrapper.inventory import Gpu, Inventory, numa_nodes
from runtime_wrapper.request import EXCLUSIVE, MONITOR, Request
from runtime_wrapper.search import Score, best_set, explain, index_list


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a GPU: the container as people know it, and under which policy."""

    container: str
    policy: str


Holders = Mapping[int, Sequence[Holder]]
"""Who holds each GPU, by index; absent or empty = nobody."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The GPUs that a request would get, in the order asked for (free ones by index), and why these."""

    gpus: tuple[Gpu, ...]
    policy: str
    reasons: tuple[str, ...]


def choose(request: Request, inventory: Inventory, holders: Holders) -> Offer:
    """The best offer for a request on this machine.

    Raises UnknownDeviceError, MigDeviceError, HeldDeviceError or NotEnoughGpusError, naming what stands against it.
    """
    if request.every:
        chosen = _all(request, inventory, holders)
        reasons = [_all_reason(chosen, inventory)]
    else:
        named = [_resolve(name, request, inventory) for name in request.named]
        chosen = list(dict.fromkeys(named))
        _refuse_held(chosen, request, holders)
        reasons = [f"GPU {gpu.index}: asked for by name" for gpu in chosen]
        if request.count:
            best = _best_of_free(chosen, request, inventory, holders)
            chosen += [inventory.gpus[i] for i in best.indices if inventory.gpus[i] not in chosen]
            reasons += explain(best, inventory)
    _check_constraints(chosen, request, inventory)
    return Offer(tuple(chosen), request.policy, tuple(reasons))


def _best_of_free(named: Sequence[Gpu], request: Request, inventory: Inventory, holders: Holders) -> Score:
    free = [gpu.index for gpu in inventory.gpus if not gpu.mig and _is_free(gpu, request, holders)]
    required = [gpu.index for gpu in named]
    candidates = [i for i in free if i not in required and _near(inventory.gpus[i], request.numa)]
    size = len(required) + request.count
    if len(candidates) < request.count:
        raise _not_enough(request, named, inventory, holders)
    best = best_set(free, required, size, candidates, inventory, request.link)
    if best is None:
        why = f"no {size} of the free GPUs {index_list(free)} have link={request.link} between every two"
        raise NotEnoughGpusError(_wish(request), request.where, why, "ask for a looser link or fewer GPUs")
    return best


def _all(request: Request, inventory: Inventory, holders: Holders) -> list[Gpu]:
    """Every whole GPU that no other container's policy keeps from this request."""
    whole = [gpu for gpu in inventory.gpus if not gpu.mig and _near(gpu, request.numa)]
    rest = [gpu for gpu in whole if not _hinders(request, gpu, holders)]
    if not rest:
        if not whole:
            raise _not_enough(request, (), inventory, holders)
        _refuse_held(whole, request, holders)
    return rest


def _all_reason(chosen: Sequence[Gpu], inventory: Inventory) -> str:
    if len(chosen) == len(inventory.gpus):
        return "all GPUs of the host"
    indices = index_list([gpu.index for gpu in chosen])
    return f"all: GPUs {indices}; the others are held exclusively, split by MIG or not near"


def _resolve(name: str, request: Request, inventory: Inventory) -> Gpu:
    found = [gpu for gpu in inventory.gpus if _matches(name, gpu)]
    if len(found) != 1:
        raise _unknown(name, found, request, inventory)
    if found[0].mig:
        hint = "ask for a GPU that is not split, or remove its MIG instances"
        raise MigDeviceError(
            f"GPU {found[0].index}", request.where, "is split into MIG instances and cannot be had whole", hint
        )
    return found[0]


def _matches(name: str, gpu: Gpu) -> bool:
    if name.startswith("GPU-"):
        return gpu.uuid is not None and gpu.uuid.lower().removeprefix("gpu-").replace("-", "").startswith(name[4:])
    return name in (str(gpu.index), gpu.pci)


def _unknown(name: str, found: Sequence[Gpu], request: Request, inventory: Inventory) -> GpulatchError:
    count = len(inventory.gpus)
    have = (
        f"this host has GPUs 0-{count - 1}" if count > 1 else f"this host has {_counted(count, 'GPU')}, numbered from 0"
    )
    if found:
        why = f"fits GPUs {index_list([gpu.index for gpu in found])}"
        return UnknownDeviceError(f"GPU {quoted(name)}", request.where, why, "write more digits of the UUID")
    return UnknownDeviceError(
        f"GPU {quoted(name)}", request.where, f"no such GPU, {have}", "see them with: gpulatch probe"
    )


def _refuse_held(gpus: Sequence[Gpu], request: Request, holders: Holders) -> None:
    for gpu in gpus:
        if hindering := _hinders(request, gpu, holders):
            why = f"held by container {hindering.container} ({hindering.policy})"
            hint = "stop that container or ask for another GPU (see: gpulatch claims)"
            raise HeldDeviceError(f"GPU {gpu.index}", request.where, why, hint)


def _hinders(request: Request, gpu: Gpu, holders: Holders) -> Holder | None:
    """The holder whose policy, or ours, keeps this request from the GPU."""
    if request.policy == MONITOR:
        return None
    for holder in holders.get(gpu.index, ()):
        if holder.policy == EXCLUSIVE or (request.policy == EXCLUSIVE and holder.policy != MONITOR):
            return holder
    return None


def _is_free(gpu: Gpu, request: Request, holders: Holders) -> bool:
    return request.policy == MONITOR or _only_monitors(holders.get(gpu.index, ()))


def _only_monitors(held: Sequence[Holder]) -> bool:
    return all(holder.policy == MONITOR for holder in held)


def _near(gpu: Gpu, numa: int | None) -> bool:
    return numa is None or numa in numa_nodes(gpu.numa)


def _not_enough(request: Request, named: Sequence[Gpu], inventory: Inventory, holders: Holders) -> NotEnoughGpusError:
    """Why the free GPUs do not suffice: there are none near that node, too few at all, or others hold them."""
    pool = [gpu for gpu in inventory.gpus if not gpu.mig and gpu not in named and _near(gpu, request.numa)]
    near = f" near NUMA node {request.numa}" if request.numa is not None else ""
    beside = " beside those named" if named else ""
    if near and not pool:
        nodes = sorted(set[int]().union(*(numa_nodes(gpu.numa) for gpu in inventory.gpus)))
        why = f"this host has no whole GPU{near}{beside}, NUMA nodes with GPUs: {index_list(nodes) or 'unknown'}"
        hint = "name another node or drop numa="
    elif request.count > len(pool) or not pool:
        why = f"this host has {_counted(len(pool), 'whole GPU')}{near}{beside}"
        hint = f"ask for at most {len(pool)}" if pool else "see the GPUs with: gpulatch probe"
    else:
        held = {gpu.index: holders.get(gpu.index, ()) for gpu in pool if not _only_monitors(holders.get(gpu.index, ()))}
        shown = [f"GPU {index} by {holding[0].container}" for index, holding in held.items()]
        more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
        why = f"{len(pool) - len(held)} of {len(pool)}{near} are free, held: {', '.join(shown[:4])}{more}"
        hint = "stop one of the holders or ask for fewer (see: gpulatch claims)"
    return NotEnoughGpusError(_wish(request), request.where, why, hint)


def _wish(request: Request) -> str:
    return _counted(request.count, "free GPU") if request.count else "all GPUs"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _check_constraints(chosen: Sequence[Gpu], request: Request, inventory: Inventory) -> None:
    for gpu in chosen:
        if not _near(gpu, request.numa):
            why = f"is near NUMA node {gpu.numa or 'unknown'}, not {request.numa}"
            raise NotEnoughGpusError(f"GPU {gpu.index}", request.where, why, "drop numa= or name another GPU")
    for a, b in combinations(chosen, 2):
        link = inventory.link(a.index, b.index)
        if not link.meets(request.link):
            why = f"their link is {link.kind}, not at least link={request.link}"
            raise NotEnoughGpusError(
                f"GPUs {a.index} and {b.index}", request.where, why, "drop link= or name other GPUs"
            )
