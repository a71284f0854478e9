"""What gpulatch's CDI specs say: devices that ask gpulatch for GPUs, and plain ones for engines without gpulatch.

Pure but for `plain`, which looks at the host's device numbers. GPUs that are split into MIG instances are in neither.
"""

from collections.abc import Sequence
from typing import Any

from runtime_wrapper import cdi_version, devices, variables
from runtime_wrapper.cdi import OWN_KIND
from runtime_wrapper.devices import DeviceNode, Numbers
from runtime_wrapper.errors import CdiError
from runtime_wrapper.inventory import Gpu, Inventory

NVIDIA_KIND = "nvidia.com/gpu"
CAPABILITIES = frozenset({"compute", "utility", "graphics"})

Json = dict[str, Any]


def asking(inventory: Inventory) -> Json:
    """Devices of gpulatch's own kind: `any`, `any-1` and so on, `all`, and each GPU by index and UUID.

    All that a device does is to set a variable of its own: engines replace one of the same name, and so two devices
    add up. Raises CdiError where there is no GPU.
    """
    gpus = _whole(inventory)
    requests = {"any": "any", **{f"any-{count}": f"any:{count}" for count in range(1, len(gpus) + 1)}, "all": "all"}
    requests |= {name: name for name, _ in _names(gpus)}
    named = {name: {"env": [f"{_variable(name)}={request}"]} for name, request in requests.items()}
    return _spec(OWN_KIND, named, {})


def plain(inventory: Inventory, numbers: Numbers) -> Json:
    """Devices of NVIDIA's kind, which give the nodes of GPUs and no driver files: by index, by UUID, and `all`.

    Nodes are named without their numbers, for some change with each boot. Raises CdiError where there is no GPU,
    NoDriverError where a module is not loaded whose nodes would be missing.
    """
    gpus = _whole(inventory)
    nodes = devices.nodes(gpus, CAPABILITIES, numbers)
    of_gpus, control = nodes[: len(gpus)], nodes[len(gpus) :]
    by_key = {gpu.key: node for gpu, node in zip(gpus, of_gpus, strict=True)}
    named = {name: {"deviceNodes": _nodes([by_key[gpu.key]])} for name, gpu in _names(gpus)}
    named["all"] = {"deviceNodes": _nodes(of_gpus)}
    return _spec(NVIDIA_KIND, named, {"env": [f"{variables.NVIDIA}=void"], "deviceNodes": _nodes(control)})


def _whole(inventory: Inventory) -> list[Gpu]:
    gpus = [gpu for gpu in inventory.gpus if not gpu.mig]
    if not gpus:
        why = f"no device to write: {len(inventory.gpus)} GPUs, each of them split into MIG instances"
        why = why if inventory.gpus else "no device to write: the driver lists no GPU"
        raise CdiError("CDI spec", "this host", why, "see what there is: gpulatch probe")
    return gpus


def _names(gpus: Sequence[Gpu]) -> list[tuple[str, Gpu]]:
    """The names of each GPU: its index, and its UUID where the driver knows it already."""
    return [(str(gpu.index), gpu) for gpu in gpus] + [(gpu.uuid, gpu) for gpu in gpus if gpu.uuid]


def _variable(name: str) -> str:
    return variables.OWN_PREFIX + name.upper().replace("-", "_")


def _nodes(nodes: Sequence[DeviceNode]) -> list[Json]:
    return [{"path": node.path, "permissions": "rw"} for node in nodes]


def _spec(kind: str, named: dict[str, Json], edits: Json) -> Json:
    listed = [{"name": name, "containerEdits": own} for name, own in named.items()]
    spec: Json = {"cdiVersion": "", "kind": kind, "devices": listed}
    if edits:
        spec["containerEdits"] = edits
    return {**spec, "cdiVersion": cdi_version.lowest(spec)}
