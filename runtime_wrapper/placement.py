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
from runtime_wrapper.request import EXCLUSIVE, MONITOR, SHARED, Request
from runtime_wrapper.search import best_set, explain, index_list


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


@dataclass(frozen=True, slots=True)
class Rules:
    """What the administrator lets happen when GPUs are held.

    `all_is_rest`: `all` then means the others. `share_when_busy`: a count that free GPUs do not meet is filled up with
    shared ones.
    """

    all_is_rest: bool = True
    share_when_busy: bool = False


DEFAULT_RULES = Rules()


def choose(
    request: Request,
    inventory: Inventory,
    holders: Holders,
    rules: Rules = DEFAULT_RULES,
    preferred: Sequence[int] = (),
) -> Offer:
    """The best offer for a request on this machine; `preferred` are the indices of the set it had before a restart.

    Raises UnknownDeviceError, MigDeviceError, HeldDeviceError or NotEnoughGpusError, naming what stands against it.
    """
    if request.every:
        everything = _all(request, inventory, holders, rules)
        return _offer(everything, request, request.policy, [_all_reason(everything, inventory)], inventory)
    named = list(dict.fromkeys(_resolve(name, request, inventory) for name in request.named))
    _refuse_held(named, request, holders)
    reasons = [f"GPU {gpu.index}: asked for by name" for gpu in named]
    if not request.count:
        return _offer(named, request, request.policy, reasons, inventory)
    return _with_free(named, reasons, request, inventory, holders, rules, preferred)


def asked_for(request: Request, inventory: Inventory) -> list[Gpu]:
    """The GPUs that a request names, or all; a count names none. Raises UnknownDeviceError, MigDeviceError."""
    if request.every:
        return [gpu for gpu in inventory.gpus if not gpu.mig]
    return [_resolve(name, request, inventory) for name in request.named]


def _offer(chosen: Sequence[Gpu], request: Request, policy: str, reasons: list[str], inventory: Inventory) -> Offer:
    _check_constraints(chosen, request, inventory)
    return Offer(tuple(chosen), policy, tuple(reasons))


def _with_free(
    named: Sequence[Gpu],
    reasons: list[str],
    request: Request,
    inventory: Inventory,
    holders: Holders,
    rules: Rules,
    preferred: Sequence[int],
) -> Offer:
    """The named GPUs and the best free ones beside them, or the set from before a restart."""
    free = [gpu.index for gpu in inventory.gpus if not gpu.mig and _is_free(gpu, request, holders)]
    policy, required = request.policy, [gpu.index for gpu in named]
    candidates = [i for i in free if i not in required and _fits(inventory.gpus[i], request)]
    size = len(named) + request.count
    if len(candidates) < request.count and rules.share_when_busy and not request.policy_said:
        policy, required = SHARED, required + candidates
        candidates = [
            gpu.index for gpu in inventory.gpus if gpu.index not in required and _can_share(gpu, request, holders)
        ]
        reasons.append("too few GPUs are free: filled up with shared ones, as this host's settings have it")
    if len(required) + len(candidates) < size:
        raise _not_enough(request, named, inventory, holders)
    if _can_be_had_again(preferred, required, candidates, size) and all(
        link.meets(request.link) for link in inventory.pairs(preferred)
    ):
        chosen = sorted(preferred)
        reasons.append(f"GPUs {index_list(chosen)}: what this container had before its restart")
    else:
        best = best_set(free, required, size, candidates, inventory, request.link)
        if best is None:
            why = f"no {size} of the free GPUs {index_list(free)} have link={request.link} between every two"
            raise NotEnoughGpusError(_wish(request), request.where, why, "ask for a looser link or fewer GPUs")
        chosen = [*best.indices]
        reasons += explain(best, inventory)
    gpus = [*named, *(inventory.gpus[i] for i in chosen if inventory.gpus[i] not in named)]
    return _offer(gpus, request, policy, reasons, inventory)


def _can_share(gpu: Gpu, request: Request, holders: Holders) -> bool:
    exclusive = any(holder.policy == EXCLUSIVE for holder in holders.get(gpu.index, ()))
    return not gpu.mig and not exclusive and _fits(gpu, request)


def _can_be_had_again(preferred: Sequence[int], required: Sequence[int], candidates: Sequence[int], size: int) -> bool:
    return len(set(preferred)) == size and set(required) <= set(preferred) <= {*required, *candidates}


def _all(request: Request, inventory: Inventory, holders: Holders, rules: Rules) -> list[Gpu]:
    """Every whole GPU that no other container's policy keeps from this request."""
    whole = [gpu for gpu in inventory.gpus if not gpu.mig and _fits(gpu, request)]
    rest = [gpu for gpu in whole if not _hinders(request, gpu, holders)]
    if not rest or (len(rest) < len(whole) and not rules.all_is_rest):
        if not whole:
            raise _not_enough(request, (), inventory, holders)
        _refuse_held(whole, request, holders)
    return rest


def _all_reason(chosen: Sequence[Gpu], inventory: Inventory) -> str:
    if len(chosen) == len(inventory.gpus):
        return "all GPUs of the host"
    indices = index_list([gpu.index for gpu in chosen])
    return f"all: GPUs {indices}; the others are held exclusively, split by MIG, or not near or of the model asked for"


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
    return name in (str(gpu.index), gpu.pci, f"/dev/nvidia{gpu.minor}")


def _unknown(name: str, found: Sequence[Gpu], request: Request, inventory: Inventory) -> GpulatchError:
    count = len(inventory.gpus)
    have = (
        f"this host has GPUs 0-{count - 1}" if count > 1 else f"this host has {_counted(count, 'GPU')}, numbered from 0"
    )
    if found:
        why = f"fits GPUs {index_list([gpu.index for gpu in found])}"
        return UnknownDeviceError(f"GPU {quoted(name)}", request.where, why, "write more digits of the UUID")
    hint = "see them with: gpulatch probe"
    if name.isdecimal():
        hint = f"a bare number is an index, {name} free ones are any:{int(name)}; {hint}"
    elif nearest := _nearest(name, inventory):
        hint = f"the nearest is GPU {nearest.index}, {nearest.uuid}; {hint}"
    return UnknownDeviceError(f"GPU {quoted(name)}", request.where, f"no such GPU, {have}", hint)


def _nearest(name: str, inventory: Inventory) -> Gpu | None:
    """The GPU whose UUID differs from a mistyped one in a digit or two."""
    digits = name.removeprefix("GPU-")
    for gpu in inventory.gpus:
        own = (gpu.uuid or "").lower().removeprefix("gpu-").replace("-", "")
        if len(digits) > 8 and sum(a != b for a, b in zip(digits, own, strict=False)) <= 2:
            return gpu
    return None


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
    return request.policy == MONITOR or not _counting_holder(holders.get(gpu.index, ()))


def _counting_holder(held: Sequence[Holder]) -> Holder | None:
    """The first holder whose hold keeps a GPU from being free; one that only monitors does not."""
    return next((holder for holder in held if holder.policy != MONITOR), None)


def _fits(gpu: Gpu, request: Request) -> bool:
    """Whether a GPU by itself is what the request wants, whoever holds it."""
    near = request.numa is None or request.numa in numa_nodes(gpu.numa)
    return near and (request.model is None or _is_model(gpu, request.model))


def _is_model(gpu: Gpu, glob: str) -> bool:
    """Whether the model's name, with or without the vendor's before it, matches in any case."""
    from fnmatch import fnmatchcase  # here, because few containers name a model

    model = gpu.model.lower()
    return fnmatchcase(model, glob) or fnmatchcase(model.removeprefix("nvidia "), glob)


def _not_enough(request: Request, named: Sequence[Gpu], inventory: Inventory, holders: Holders) -> NotEnoughGpusError:
    """Why the free GPUs do not suffice: there are none of that kind, too few at all, or others hold them."""
    pool = [gpu for gpu in inventory.gpus if not gpu.mig and gpu not in named and _fits(gpu, request)]
    near = f" near NUMA node {request.numa}" if request.numa is not None else ""
    near = f" of model {quoted(request.model)}{near}" if request.model else near
    beside = " beside those named" if named else ""
    if request.model and not pool:
        models = sorted({gpu.model for gpu in inventory.gpus if not gpu.mig})
        why = f"this host has no whole GPU{near}{beside}, models: {', '.join(models[:4]) or 'none'}"
        hint = "name another model or drop model="
    elif near and not pool:
        nodes = sorted(set[int]().union(*(numa_nodes(gpu.numa) for gpu in inventory.gpus)))
        why = f"this host has no whole GPU{near}{beside}, NUMA nodes with GPUs: {index_list(nodes) or 'unknown'}"
        hint = "name another node or drop numa="
    elif request.count > len(pool) or not pool:
        why = f"this host has {_counted(len(pool), 'whole GPU')}{near}{beside}"
        hint = f"ask for at most {len(pool)}" if pool else "see the GPUs with: gpulatch probe"
    else:
        held = {gpu.index: holder for gpu in pool if (holder := _counting_holder(holders.get(gpu.index, ())))}
        shown = [f"GPU {index} by {holder.container}" for index, holder in held.items()]
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
        if request.model and not _is_model(gpu, request.model):
            why = f"is of model {quoted(gpu.model)}, not model={request.model}"
            raise NotEnoughGpusError(f"GPU {gpu.index}", request.where, why, "drop model= or name another GPU")
        if not _fits(gpu, request):
            why = f"is near NUMA node {gpu.numa or 'unknown'}, not {request.numa}"
            raise NotEnoughGpusError(f"GPU {gpu.index}", request.where, why, "drop numa= or name another GPU")
    for a, b in combinations(chosen, 2):
        link = inventory.link(a.index, b.index)
        if not link.meets(request.link):
            why = f"their link is {link.kind}, not at least link={request.link}"
            raise NotEnoughGpusError(
                f"GPUs {a.index} and {b.index}", request.where, why, "drop link= or name other GPUs"
            )
