"""What people who run GPU containers report of other tools, as far as a spec shows it: each test is a symptom."""

from typing import Any

import pytest
from drivers.asking import gpu_minors, resolved, wanted
from drivers.samples import inventory, nvlink_host

from runtime_wrapper import edits
from runtime_wrapper.devices import Numbers
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import GpulatchError, RequestError
from runtime_wrapper.placement import Holder
from runtime_wrapper.settings import Settings

HOST = nvlink_host()
UUID = str(HOST.gpus[2].uuid)
AS_DEFAULT_RUNTIME = Settings(lone_all="none")


def spec(*env: str, **more: Any) -> dict[str, Any]:
    return {"process": {"env": list(env)}, **more}


def edited(data: dict[str, Any]) -> dict[str, Any]:
    answer = resolved(data, HOST)
    assert answer
    return answer[1]


def variables(data: dict[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in data["process"]["env"])


# Requests


def test_two_containers_that_ask_for_one_gpu_do_not_get_the_same() -> None:
    first = resolved(spec("GPULATCH_GPUS=any:1"), HOST)
    assert first
    held = {gpu.index: [Holder("first", first[0].policy)] for gpu in first[0].gpus}
    second = resolved(spec("GPULATCH_GPUS=any:1"), HOST, holders=held)
    assert second
    assert second[0].gpus != first[0].gpus


def test_swarm_replicas_do_not_all_see_every_gpu_of_the_image() -> None:
    data = spec("NVIDIA_VISIBLE_DEVICES=all", f"DOCKER_RESOURCE_NVIDIA-GPU={UUID[:12]}")
    answer = resolved(data, HOST, Settings(swarm_resources=("DOCKER_RESOURCE_NVIDIA-GPU",)))
    assert answer
    assert [gpu.index for gpu in answer[0].gpus] == [2]


def test_a_reservation_that_the_engine_dropped_is_no_gpu_and_never_all() -> None:
    assert wanted(spec("PATH=/bin", annotations={"io.container.manager": "libpod"})) is None


@pytest.mark.parametrize("text", ["no-gpu-has-128MiB-to-run", "99", "GPU-", "0,1,zwei", "${IDS}", "device=0", "0-3"])
def test_a_sentinel_or_typing_error_is_refused_by_name_and_not_passed_on(text: str) -> None:
    with pytest.raises(GpulatchError) as caught:
        resolved(spec(f"NVIDIA_VISIBLE_DEVICES={text}"), HOST)
    assert text.rpartition(",")[2] in str(caught.value)
    assert "use one of" in str(caught.value) or "gpulatch probe" in str(caught.value)


@pytest.mark.parametrize(("text", "indices"), [("0,,1", [0, 1]), (" 0 ,1 ", [0, 1]), ("0,0", [0]), ("0,1,0", [0, 1])])
def test_blanks_gaps_and_repetitions_do_no_harm(text: str, indices: list[int]) -> None:
    answer = resolved(spec(f"NVIDIA_VISIBLE_DEVICES={text}"), HOST)
    assert answer
    assert [gpu.index for gpu in answer[0].gpus] == indices


# all, none, void, empty


@pytest.mark.parametrize(("text", "nodes"), [("none", 0), ("0", 1), ("3,5", 2), ("all", 8)])
def test_none_exposes_no_gpu_and_an_index_exactly_one_of_eight(text: str, nodes: int) -> None:
    assert len(gpu_minors(edited(spec(f"NVIDIA_VISIBLE_DEVICES={text}")))) == nodes


@pytest.mark.parametrize("env", [["NVIDIA_VISIBLE_DEVICES=void"], ["NVIDIA_VISIBLE_DEVICES="], []])
def test_void_empty_and_unset_leave_the_spec_alone(env: list[str]) -> None:
    assert wanted(spec(*env)) is None


@pytest.mark.parametrize(
    "env",
    [["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=12.4.1"], ["CUDA_VERSION=9.0"], ["NVIDIA_VISIBLE_DEVICES=All, "]],
)
def test_a_workload_that_asked_for_no_gpu_sees_none_under_the_default_runtime(env: list[str]) -> None:
    assert wanted(spec(*env), AS_DEFAULT_RUNTIME) is None
    found = wanted(spec(*env))
    assert found
    assert found.every  # where gpulatch was chosen by name


# CDI and MIG


def test_void_beside_nodes_that_the_engine_injected_is_a_request_for_these() -> None:
    rules = [{"allow": True, "type": "c", "major": 195, "minor": HOST.gpus[1].minor, "access": "rwm"}]
    data = spec("NVIDIA_VISIBLE_DEVICES=void", linux={"resources": {"devices": rules}})
    assert gpu_minors(edited(data)) == [HOST.gpus[1].minor]


@pytest.mark.parametrize(
    "name",
    [f"MIG-{UUID}/1/0", f"MIG-{UUID[4:]}", "0:1", "nvidia.com/gpu=0:1", "nvidia.com/mig=0:1", "mig:1g.10gb"],
)
def test_every_way_to_name_a_mig_instance_is_known_as_one(name: str) -> None:
    with pytest.raises(RequestError, match="MIG instances cannot be asked for yet"):
        wanted(spec(f"NVIDIA_VISIBLE_DEVICES={name}"))


# Device nodes, groups, mounts


def test_a_bind_mount_over_run_stops_no_gpu_container() -> None:
    mount = {"destination": "/var/run", "source": "/var/run", "type": "bind", "options": ["rbind", "rw"]}
    assert edited(spec("NVIDIA_VISIBLE_DEVICES=0", mounts=[mount]))["mounts"] == [mount]


def test_display_without_a_modeset_node_on_the_host_is_no_obstacle() -> None:
    data = spec("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=display")
    assert "/dev/nvidia-modeset" in [node["path"] for node in edited(data)["linux"]["devices"]]
    assert edits.capabilities(data) == {"display"}


# Order and CUDA_VISIBLE_DEVICES


def test_numbers_inside_follow_pci_order_unless_the_container_says_otherwise() -> None:
    assert variables(edited(spec("NVIDIA_VISIBLE_DEVICES=1,0")))["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    own = spec("NVIDIA_VISIBLE_DEVICES=1,0", "CUDA_DEVICE_ORDER=FASTEST_FIRST")
    assert variables(edited(own))["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_frameworks_that_read_integers_get_integers_for_whole_gpus() -> None:
    assert variables(edited(spec(f"NVIDIA_VISIBLE_DEVICES={UUID}")))["CUDA_VISIBLE_DEVICES"] == "0"


# Life cycle and hooks


def test_a_checkpoint_with_annotations_is_restored_without_a_new_injection() -> None:
    data = spec(annotations={"gpulatch.io/gpus": "0", "cdi.k8s.io/x": "nvidia.com/gpu=0"})
    assert wanted(data, annotations=False) is None


def test_a_left_over_hook_of_nvidia_does_not_inject_a_second_time() -> None:
    hooks = {"prestart": [{"path": "/usr/libexec/oci/nvidia-container-toolkit"}, {"path": "/bin/other"}]}
    assert edited(spec("NVIDIA_VISIBLE_DEVICES=0", hooks=hooks))["hooks"] == {"prestart": [{"path": "/bin/other"}]}


@pytest.mark.parametrize("loader", ["LD_PRELOAD=/proc/self/cwd/x.so", "PYTHONPATH=/x", "GCONV_PATH=/x"])
def test_a_containers_loader_variables_meet_no_hook_of_ours(loader: str) -> None:
    data = edited(spec("NVIDIA_VISIBLE_DEVICES=0", loader))
    assert not any(data.get("hooks", {}).values())


def test_nothing_of_the_image_is_looked_up_or_mounted() -> None:
    data = edited(spec("NVIDIA_VISIBLE_DEVICES=0", root={"path": "/nonexistent/rootfs"}))
    assert data.get("mounts", []) == []


def test_what_bears_no_limit_is_never_called_enforced() -> None:
    found = wanted(spec("GPULATCH_GPUS=0+memory=8g"))
    assert found
    assert found.notes == ["option memory=8192 MiB: kept with the claim, not enforced yet"]


def test_mixed_gpus_are_told_apart_by_model() -> None:
    mixed = inventory({"links": [["X", "PHB"], ["PHB", "X"]], "gpu_facts": [{"model": "T1000"}, {"model": "RTX 3090"}]})
    answer = resolved(spec("GPULATCH_GPUS=any:1+model=rtx*"), mixed)
    assert answer
    assert [gpu.index for gpu in answer[0].gpus] == [1]


def test_a_grant_of_none_keeps_no_node_that_the_spec_brought() -> None:
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rwm"}
    data = spec(linux={"devices": [node], "resources": {"devices": [rule]}})
    after = edits.apply(data, Grant((), (), Numbers.assumed()))
    assert after["linux"] == {"devices": [], "resources": {"devices": []}}
