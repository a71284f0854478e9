"""The places that ask in other words than our own: CDI annotations, Swarm, several variables, old images."""

import time
from typing import Any

import pytest

from runtime_wrapper import cdi_annotations, edits, policy, sources, variables
from runtime_wrapper.devices import Numbers
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import RequestError
from runtime_wrapper.request import Request
from runtime_wrapper.settings import Settings

SWARM = Settings(swarm_resources=("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_NVIDIA-GPU"))


def spec(*env: str, **annotations: str) -> dict[str, Any]:
    return {
        "process": {"env": list(env)},
        "annotations": {f"cdi.k8s.io/{name}": text for name, text in annotations.items()},
    }


def find(data: dict[str, Any], settings: Settings | None = None, *, restoring: bool = False) -> Request | None:
    wishes = sources.wishes(data, "c1", annotations=not restoring)
    return policy.choose(wishes, settings or Settings(), privileged=False).request()


def must(data: dict[str, Any], settings: Settings | None = None) -> Request:
    found = find(data, settings)
    assert found is not None
    return found


def verdicts(data: dict[str, Any], settings: Settings) -> dict[str, str]:
    choice = policy.choose(sources.wishes(data, "c1"), settings, privileged=False)
    return {heard.wish.place: heard.verdict for heard in choice.heard}


def test_cdi_annotations_ask_for_gpus_and_other_vendors_devices_are_left() -> None:
    found = must(spec(a="nvidia.com/gpu=1,vendor.com/nic=eth0", b="nvidia.com/gpu=GPU-5c89852c", c="vendor.com/x=1"))
    assert (found.source, found.dialect) == ("annotation cdi.k8s.io/a, cdi.k8s.io/b", "cdi_annotations")
    assert found.named == ("1", "GPU-5c89852c")
    assert find(spec("NVIDIA_VISIBLE_DEVICES=", c="vendor.com/x=1,nvidia.com/gds=all")) is None


def test_a_cdi_annotation_can_ask_for_free_gpus_and_comes_before_variables() -> None:
    found = must(spec("GPULATCH_GPUS=7", a="gpulatch.io/gpu=any-2"))
    assert (found.count, found.policy) == (2, "exclusive")
    assert must(spec(a="nvidia.com/gpu=all")).every


@pytest.mark.parametrize("device", ["nvidia.com/mig=1:0", "nvidia.com/mig=MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"])
def test_a_mig_device_of_cdi_is_refused_as_such(device: str) -> None:
    with pytest.raises(RequestError, match="MIG instances cannot be asked for yet"):
        find(spec(a=device))


@pytest.mark.parametrize("manager", ["libpod", "cri-o"])
def test_cdi_annotations_that_may_come_from_the_image_are_not_honoured(manager: str) -> None:
    data = spec("NVIDIA_VISIBLE_DEVICES=3", a="nvidia.com/gpu=all")
    data["annotations"]["io.container.manager"] = manager
    assert must(data).named == ("3",)


def test_cdi_annotations_are_not_honoured_on_restore_nor_for_a_pods_own_container() -> None:
    assert find(spec(a="nvidia.com/gpu=0"), restoring=True) is None
    data = spec(a="nvidia.com/gpu=0")
    data["annotations"]["io.kubernetes.cri.container-type"] = "sandbox"
    assert find(data) is None


def test_what_was_asked_by_cdi_annotation_is_taken_out_and_the_rest_stays() -> None:
    data = spec(
        a="nvidia.com/gpu=1, vendor.com/nic=eth0", b="runtime.nvidia.com/gpu=all", c="vendor.com/x=1,vendor.com/y=2"
    )
    data["annotations"]["other"] = "nvidia.com/gpu=0"
    edited = edits.apply(data, Grant((), (), Numbers.assumed()))
    assert edited["annotations"] == {
        "cdi.k8s.io/a": "vendor.com/nic=eth0",
        "cdi.k8s.io/c": "vendor.com/x=1,vendor.com/y=2",
        "other": "nvidia.com/gpu=0",
    }
    assert "cdi.k8s.io/b" in data["annotations"]


def test_nvidias_own_runtime_below_is_left_no_annotation_and_no_mount_that_it_would_heed_first() -> None:
    data = spec(a="vendor.com/x=1", b="nvidia.com/gpu=0")
    mount = {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}
    data["mounts"] = [mount, {"destination": "/data", "source": "/srv"}]
    for edited in (
        edits.apply(data, Grant((), (), Numbers.assumed(), delegate=True)),
        edits.silence_nvidia(data),
    ):
        assert edited["annotations"] == {}
        assert [one["destination"] for one in edited["mounts"]] == ["/data"]
    assert sources.nvidia_would_act({"mounts": [mount]})


def test_mounts_for_gpus_stay_where_another_place_asked() -> None:
    data = spec("GPULATCH_GPUS=none")
    data["mounts"] = [{"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}]
    assert edits.apply(data, Grant((), (), Numbers.assumed(), dialect="gpulatch_gpus"))["mounts"] == data["mounts"]
    assert edits.apply(data, Grant((), (), Numbers.assumed(), dialect="volume_mounts"))["mounts"] == []


def test_a_swarm_resource_counts_before_the_images_variable_where_the_setting_names_it() -> None:
    """Else all replicas of a service see all GPUs."""
    data = spec("NVIDIA_VISIBLE_DEVICES=all", "DOCKER_RESOURCE_NVIDIA-GPU=GPU-7af7a99b")
    found = must(data, SWARM)
    assert (found.source, found.named) == ("env DOCKER_RESOURCE_NVIDIA-GPU", ("GPU-7af7a99b",))
    assert must(data).every
    assert verdicts(data, Settings())["env DOCKER_RESOURCE_NVIDIA-GPU"].startswith("left out: the setting swarm_res")


def test_several_swarm_resources_add_up_and_an_empty_one_means_none_was_given() -> None:
    both = ("DOCKER_RESOURCE_GPU=0", "DOCKER_RESOURCE_NVIDIA-GPU=1", "DOCKER_RESOURCE_SSD=7")
    found = must(spec(*both), SWARM)
    assert (found.named, found.dialect) == (("0", "1"), "swarm")
    assert find(spec("NVIDIA_VISIBLE_DEVICES=all", both[0], "DOCKER_RESOURCE_NVIDIA-GPU="), SWARM) is None


def test_a_swarm_resource_that_is_no_gpu_is_no_request() -> None:
    wishes = sources.wishes(spec("DOCKER_RESOURCE_SSD=fast"), "c1")
    assert wishes
    assert not sources.ask_for_gpus(wishes)
    assert find(spec("DOCKER_RESOURCE_SSD=fast"), SWARM) is None


def test_the_variables_of_several_cdi_devices_add_up_with_our_own() -> None:
    found = must(spec("GPULATCH_REQ_A=any:2", "GPULATCH_GPUS=3", "GPULATCH_REQ_B=any", "GPULATCH_REQ_A=any:1"))
    assert (found.named, found.count, found.dialect) == (("3",), 2, "gpulatch_gpus")
    assert found.source == "env GPULATCH_REQ_A, GPULATCH_GPUS, GPULATCH_REQ_B"
    assert must(spec("GPULATCH_REQ_A=0", "GPULATCH_GPUS=")).named == ("0",)
    assert find(spec("GPULATCH_REQ_A=0", "GPULATCH_GPUS=void")) is None
    assert must(spec("GPULATCH_GPUS=3")).source == "env GPULATCH_GPUS"


def test_names_that_a_tenant_chose_do_not_swell_the_ledger_or_a_message() -> None:
    long = "x" * 100_000
    data = spec(f"GPULATCH_REQ_{long}=0", f"DOCKER_RESOURCE_{long}=0")
    data["annotations"][f"cdi.k8s.io/{long}"] = "nvidia.com/gpu=1"
    assert all(len(wish.place) < 130 for wish in sources.wishes(data, "c1"))


def test_a_cdi_name_can_stand_in_nvidias_variable() -> None:
    assert must(spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1,0")).named == ("1", "0")
    assert find(spec("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"), Settings(lone_all="none")) is None


@pytest.mark.parametrize("profile", ["1g.10gb", "1g.10gb+me", "1g.10gb, 2g.20gb"])
def test_a_mig_profile_is_refused_in_one_clear_line(profile: str) -> None:
    with pytest.raises(RequestError, match="NVIDIA_MIG_CONFIG.*MIG instances cannot be asked for yet"):
        find(spec(f"NVIDIA_MIG_CONFIG={profile}"))
    assert must(spec(f"NVIDIA_MIG_CONFIG={profile}", "NVIDIA_VISIBLE_DEVICES=0")).named == ("0",)
    assert find(spec("NVIDIA_MIG_CONFIG= ,")) is None


@pytest.mark.parametrize(
    ("env", "legacy"),
    [
        (["CUDA_VERSION=9.0"], True),
        (["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA="], True),
        (["CUDA_VERSION="], False),
        (["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"], False),
        (["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES="], False),
        (["CUDA_VERSION"], False),
    ],
)
def test_an_old_cuda_image_means_all(env: list[str], legacy: bool) -> None:
    found = find(spec(*env))
    assert (found is not None and found.every and found.dialect == "legacy_image") is legacy
    assert find(spec(*env), Settings(lone_all="none")) is None
    assert find(spec(*env), Settings(accept_env="never")) is None


def test_an_old_cuda_image_has_every_driver_capability() -> None:
    assert edits.capabilities(spec("CUDA_VERSION=9.0")) == edits.ALL_CAPABILITIES
    assert edits.capabilities(spec("CUDA_VERSION=9.0", "NVIDIA_DRIVER_CAPABILITIES=utility")) == {"utility"}


@pytest.mark.parametrize(
    "variable",
    ["DOCKER_RESOURCE_GPU=0", "GPULATCH_GPUS=0", "GPULATCH_REQ_A=0", "NVIDIA_VISIBLE_DEVICES=0", "CUDA_VERSION=9.0"],
)
def test_accept_env_is_about_every_variable(variable: str) -> None:
    for accept in ("never", "privileged"):
        settings = Settings(accept_env=accept, swarm_resources=SWARM.swarm_resources)
        assert find(spec(variable), settings) is None
        (verdict,) = verdicts(spec(variable), settings).values()
        assert f"accept_env = {accept}" in verdict


def test_the_order_is_that_of_the_setting() -> None:
    data = spec("NVIDIA_VISIBLE_DEVICES=0", "GPULATCH_GPUS=1", "DOCKER_RESOURCE_GPU=2", a="nvidia.com/gpu=3")
    data["annotations"]["gpulatch.io/gpus"] = "4"
    names = ["annotation", "cdi_annotations", "swarm", "gpulatch_gpus", "nvidia_visible_devices"]
    for first, gpu in zip(range(5), "43210", strict=True):
        order = tuple(names[first:])
        assert must(data, Settings(sources=order, swarm_resources=SWARM.swarm_resources)).named == (gpu,)


@pytest.mark.parametrize(
    "text", ["0," * 5_000, ",".join(map(str, range(10_000))), "x" * (1 << 20), "GPU-" + "a" * (1 << 20)]
)
def test_a_huge_request_is_refused_in_one_short_line_and_harms_nobody_where_it_does_not_count(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        find(spec(f"NVIDIA_VISIBLE_DEVICES={text}"))
    assert len(str(caught.value)) < 400
    assert find(spec(f"NVIDIA_VISIBLE_DEVICES={text}"), Settings(accept_env="never")) is None
    assert find(spec(f"NVIDIA_VISIBLE_DEVICES={',' * (1 << 20)}")) is None


def test_ten_thousand_variables_annotations_and_mounts_take_no_time() -> None:
    data = spec(*(f"DOCKER_RESOURCE_{n}=0" for n in range(10_000)), *(f"GPULATCH_REQ_{n}=0" for n in range(10_000)))
    data["annotations"] = {f"cdi.k8s.io/{n}": "nvidia.com/gpu=0,vendor.com/x=1" for n in range(10_000)}
    data["mounts"] = [
        {"destination": f"/var/run/nvidia-container-devices/{n}", "source": "/dev/null"} for n in range(10_000)
    ]
    started = time.monotonic()
    with pytest.raises(RequestError, match="longer than 4096"):
        find(data)
    assert find(data, Settings(sources=("docker",))) is None
    edits.apply(data, Grant((), (), Numbers.assumed(), dialect="volume_mounts"))
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("annotations", [None, 7, [], {"cdi.k8s.io/a": 7, "cdi.k8s.io/b": None}])
def test_annotations_of_odd_types_ask_for_nothing(annotations: Any) -> None:
    assert find({"annotations": annotations}) is None
    assert cdi_annotations.without_gpus({"cdi.k8s.io/a": 7}) == {"cdi.k8s.io/a": 7}


def test_a_variable_without_a_value_and_bytes_that_are_no_text_ask_for_nothing_by_themselves() -> None:
    assert find(spec("GPULATCH_GPUS", "NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU", "\ufffd\ufffd")) is None
    with pytest.raises(RequestError, match="\ufffd"):
        find(spec("GPULATCH_GPUS=\ufffd"))


def test_every_variable_source_is_among_the_sources() -> None:
    assert set(sources.VARIABLES) | set(sources.OFF_BY_DEFAULT) <= set(sources.SOURCES)
    assert variables.OWN.startswith("GPULATCH_")
