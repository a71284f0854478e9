"""Small inventories for tests that are about something else."""

import json
from typing import Any

from runtime_wrapper.inventory import Inventory
from runtime_wrapper.probe import machine


def inventory(data: dict[str, Any]) -> Inventory:
    """The inventory of a machine file given as data."""
    return machine.parse(json.dumps(data).encode(), data.get("name", "sample"))


def nvlink_host(count: int = 8, **more: Any) -> Inventory:
    """GPUs that are all linked by NV12, two per NUMA node."""
    links = [["X" if i == j else "NV12" for j in range(count)] for i in range(count)]
    numa = [str(i // 2) for i in range(count)]
    return inventory({"name": "sample", "model": "A100-SXM4", "links": links, "numa": numa, **more})
