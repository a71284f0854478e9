"""The same request gives the same container, in whatever words it is made: on every machine, in every dialect."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from drivers.asking import OWN_ID, resolved
from drivers.samples import inventory

from runtime_wrapper import sources
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.settings import Settings

MACHINES: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data/machines.json").read_text())
EVERYTHING = Settings(sources=tuple(sources.SOURCES), swarm_resources=("DOCKER_RESOURCE_GPU",))
ASKING_VARIABLES = ("GPULATCH_", "DOCKER_RESOURCE_", "CUDA_VERSION=")
MOUNTS = "/var/run/nvidia-container-devices"

Spec = dict[str, Any]


class Wish:
    """GPUs by their ids, or `all`, or a count of free ones; `write` puts it into a spec in one dialect."""

    def __init__(self, host: Inventory, ids: Sequence[str] = (), count: int = 0, minors: Sequence[int] = ()) -> None:
        self.host, self.ids, self.count, self.minors = host, ids, count, minors

    @property
    def text(self) -> str:
        return f"any:{self.count}" if self.count else ",".join(self.ids)

    @property
    def cdi(self) -> list[str]:
        if self.count:
            return [f"gpulatch.io/gpu=any-{self.count}"]
        return [f"nvidia.com/gpu={name}" for name in self.ids]


def record(spec: Spec, **request: Any) -> None:
    folder = Path(spec["mounts"][0]["source"]).parent
    base = {"Driver": "", "Count": 0, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": None}
    (folder / "hostconfig.json").write_text(json.dumps({"DeviceRequests": [{**base, **request}]}))


def docker(spec: Spec, wish: Wish) -> None:
    count = -1 if wish.text == "all" else wish.count
    record(spec, Count=count, DeviceIDs=None if count else list(wish.ids))
    spec["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=0")
    spec["hooks"]["prestart"] = [{"path": "/usr/bin/nvidia-container-runtime-hook"}]


def docker_29(spec: Spec, wish: Wish) -> None:
    """Docker has injected the first GPUs already."""
    docker(spec, wish)
    spec["hooks"]["prestart"] = []
    spec["process"]["env"][-1] = "NVIDIA_VISIBLE_DEVICES=void"
    open_nodes(spec, [gpu.minor for gpu in wish.host.gpus[: wish.count or 1]])


def docker_cdi(spec: Spec, wish: Wish) -> None:
    record(spec, Driver="cdi", DeviceIDs=[*wish.cdi, "vendor.com/nic=0"], Capabilities=None)


def ctr(spec: Spec, wish: Wish) -> None:
    words = ["containerd", "oci-hook", "--", "/usr/bin/nvidia-container-cli", f"--device={','.join(wish.ids)}"]
    spec["hooks"]["createRuntime"] = [{"path": "/usr/bin/containerd", "args": words}]


def cdi_annotations(spec: Spec, wish: Wish) -> None:
    for number, device in enumerate(wish.cdi):
        spec["annotations"][f"cdi.k8s.io/plugin_{number}"] = device


def volume_mounts(spec: Spec, wish: Wish) -> None:
    for name in wish.text.split(","):
        spec["mounts"].append({"destination": f"{MOUNTS}/{name}", "source": "/dev/null", "type": "bind"})


def several_variables(spec: Spec, wish: Wish) -> None:
    for number, name in enumerate(wish.text.split(",")):
        spec["process"]["env"].append(f"GPULATCH_REQ_{number}={name}")


def open_nodes(spec: Spec, minors: Sequence[int]) -> None:
    for minor in minors:
        number = {"type": "c", "major": 195, "minor": minor}
        spec["linux"]["devices"].append({"path": f"/dev/nvidia{minor}", **number})
        spec["linux"]["resources"]["devices"].append({"allow": True, **number, "access": "rwm"})


def variable(name: str, cdi: bool = False) -> Callable[[Spec, Wish], None]:
    return lambda spec, wish: spec["process"]["env"].append(f"{name}={','.join(wish.cdi) if cdi else wish.text}")


DIALECTS: dict[str, Callable[[Spec, Wish], None]] = {
    "annotation": lambda spec, wish: spec["annotations"].update({"gpulatch.io/gpus": wish.text}),
    "docker": docker,
    "docker 29": docker_29,
    "docker, CDI device": docker_cdi,
    "ctr": ctr,
    "cdi_annotations": cdi_annotations,
    "volume_mounts": volume_mounts,
    "swarm": variable("DOCKER_RESOURCE_GPU"),
    "gpulatch_gpus": variable("GPULATCH_GPUS"),
    "gpulatch_gpus, several": several_variables,
    "nvidia_visible_devices": variable("NVIDIA_VISIBLE_DEVICES"),
    "nvidia_visible_devices, CDI name": variable("NVIDIA_VISIBLE_DEVICES", cdi=True),
    "legacy_image": lambda spec, wish: spec["process"]["env"].append("CUDA_VERSION=9.0"),
    "nodes": lambda spec, wish: open_nodes(spec, wish.minors),
}


def can_say(dialect: str, wish: Wish) -> bool:
    if dialect == "ctr":
        return not wish.count
    if dialect == "legacy_image":
        return wish.text == "all"
    return dialect != "nodes" or bool(wish.minors)


def base(folder: Path) -> Spec:
    record_folder = folder / "containers" / OWN_ID
    record_folder.mkdir(parents=True, exist_ok=True)
    (record_folder / "hostconfig.json").unlink(missing_ok=True)
    return {
        "process": {"env": ["PATH=/bin", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]},
        "mounts": [{"destination": "/etc/hosts", "source": f"{record_folder}/hosts"}],
        "annotations": {"other": "kept"},
        "hooks": {},
        "linux": {"devices": [], "resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }


def without_the_words(edited: Spec) -> Spec:
    """What is left of a spec without the words of the request itself that may stay."""
    left = deepcopy(edited)
    env = [entry for entry in left["process"]["env"] if not entry.startswith(ASKING_VARIABLES)]
    left["process"]["env"] = env + [entry for entry in edited["process"]["env"] if entry.startswith("GPULATCH_DEVICES")]
    left["annotations"].pop("gpulatch.io/gpus", None)
    left["hooks"] = {stage: hooks for stage, hooks in left["hooks"].items() if hooks}
    return left


def wishes_of(host: Inventory) -> list[Wish]:
    last, first = host.gpus[-1], host.gpus[0]
    both = [last, first] if len(host.gpus) > 1 else [first]
    return [
        Wish(host, ["all"]),
        Wish(host, [str(gpu.index) for gpu in both], minors=[gpu.minor for gpu in both]),
        Wish(host, [str(gpu.uuid) for gpu in both], minors=[gpu.minor for gpu in both]),
        Wish(host, count=1),
        Wish(host, count=len(both)),
    ]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine["name"])
def test_the_same_request_is_the_same_container_in_every_dialect(machine: dict[str, Any], tmp_path: Path) -> None:
    host = inventory(machine)
    for wish in wishes_of(host):
        found = {}
        for dialect, write in DIALECTS.items():
            if can_say(dialect, wish):
                spec = base(tmp_path)
                write(spec, wish)
                answer = resolved(spec, host, EVERYTHING)
                assert answer, dialect
                found[dialect] = (answer[0].policy, answer[0].gpus, without_the_words(answer[1]))
        assert len(found) >= 10
        for dialect, outcome in found.items():
            assert outcome == found["annotation"], f"{wish.text} by {dialect}"


def test_every_source_is_a_dialect_here_but_that_of_mig() -> None:
    assert {name.partition(",")[0] for name in DIALECTS} == {*sources.SOURCES, "docker 29"} - {"nvidia_mig_config"}
