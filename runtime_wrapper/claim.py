"""One container's hold on its GPUs, as the ledger keeps it (schema `schemas/claim.json`)."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from runtime_wrapper import liveness
from runtime_wrapper.inventory import Gpu, Inventory
from runtime_wrapper.proc import Cgroup, Process

_SEEN_LATER = ("init", "cgroup")  # not known when the record is written
_ENGINE_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Device:
    """A claimed GPU. The PCI address names it within a boot, also before its UUID is known."""

    pci: str
    uuid: str | None
    index: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"pci": self.pci, "uuid": self.uuid, "index": self.index}

    def is_gpu(self, gpu: Gpu) -> bool:
        """Whether this is that GPU of the inventory."""
        return self.pci == gpu.pci or (self.uuid is not None and self.uuid == gpu.uuid)


@dataclass(frozen=True, slots=True)
class Claim:
    """One container's hold on its GPUs.

    `holder` is the process that became the low-level runtime, `init` and `cgroup` the container's, filled in when first
    seen. `observed` claims are what observe mode would have booked: they hinder nobody. A container that was found
    running without a claim has no `runtime` of ours, and its first process stands for the holder.
    """

    id: str
    root: str
    bundle: str
    config: str
    name: str | None
    engine: str
    runtime: str
    devices: tuple[Device, ...]
    policy: str
    source: str
    request: str
    since: str
    holder: Process
    init: Process | None = None
    cgroup: Cgroup | None = None
    memory_mib: int | None = None
    observed: bool = False

    @property
    def token(self) -> str:
        """What marks the container of this very claim in the runtime's state: unique within a boot."""
        return f"{self.holder.pid}.{self.holder.start}"

    @property
    def container(self) -> str:
        """The container as messages name it; an id of 64 hex digits is cut to 12, as engines show it."""
        short = self.id[:12] if _ENGINE_ID.fullmatch(self.id) else self.id
        return f"{self.name} ({short})" if self.name else short

    @property
    def stage(self) -> str:
        """How far its container is, see `liveness`."""
        return liveness.stage(self.init)

    def record(self) -> str:
        """What the container's own annotation says of the claim, see `from_record`."""
        return json.dumps({key: value for key, value in self.to_json().items() if key not in _SEEN_LATER})

    def to_json(self) -> dict[str, Any]:
        """The claim as JSON values, written out because dataclasses.asdict takes ten times as long under the lock."""
        return {
            "id": self.id,
            "root": self.root,
            "bundle": self.bundle,
            "config": self.config,
            "name": self.name,
            "engine": self.engine,
            "runtime": self.runtime,
            "devices": [device.to_json() for device in self.devices],
            "policy": self.policy,
            "source": self.source,
            "request": self.request,
            "since": self.since,
            "holder": self.holder.to_json(),
            "init": self.init.to_json() if self.init else None,
            "cgroup": self.cgroup.to_json() if self.cgroup else None,
            "memory_mib": self.memory_mib,
            "observed": self.observed,
        }

    @classmethod
    def from_record(cls, text: str, init: Process | None, cgroup: Cgroup | None) -> Self:
        """The claim whose `record` this is, with what is seen of its container now. Raises as `from_json`."""
        seen = {"init": init and init.to_json(), "cgroup": cgroup and cgroup.to_json()}
        return cls.from_json({**json.loads(text), **seen})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The claim that `to_json` made. Raises KeyError, TypeError, ValueError."""
        known = {
            "devices": tuple(Device(**device) for device in data["devices"]),
            "holder": Process(**data["holder"]),
            "init": Process(**data["init"]) if data["init"] else None,
            "cgroup": Cgroup(**data["cgroup"]) if data["cgroup"] else None,
        }
        return cls(**{**data, **known})


@dataclass(frozen=True, slots=True)
class Past:
    """What a container held when it ended: a restart prefers it."""

    id: str
    root: str
    devices: tuple[Device, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"id": self.id, "root": self.root, "devices": [device.to_json() for device in self.devices]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """What `to_json` made. Raises KeyError, TypeError."""
        return cls(data["id"], data["root"], tuple(Device(**device) for device in data["devices"]))


def is_called(text: str, name: str | None) -> bool:
    """Whether people mean a container of that name: its name, or in Kubernetes the name without its pod's."""
    return name is not None and (name == text or (bool(text) and name.endswith(f"/{text}")))


def devices_by_minor(inventory: Inventory) -> dict[int, Device]:
    """The GPUs of a host as claims name them, by the minor of their node."""
    return {gpu.minor: Device(gpu.pci, gpu.uuid, gpu.index) for gpu in inventory.gpus}


def devices_of(gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """GPUs as a claim names them."""
    return tuple(Device(gpu.pci, gpu.uuid, gpu.index) for gpu in gpus)
