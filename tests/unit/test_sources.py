import json
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import edits, policy, sources, variables
from runtime_wrapper.devices import Numbers
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import RequestError
from runtime_wrapper.request import Request
from runtime_wrapper.settings import Settings

NVIDIA_CASES = json.loads((Path(__file__).parent.parent / "data/nvidia_requests.json").read_text())
DENY = {"allow": False, "access": "rwm"}


def spec(env: list[str] | None = None, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"process": {"env": env or []}, "annotations": annotations or {}}


def find(data: dict[str, Any], *, annotations: bool = True, settings: Settings | None = None) -> Request | None:
    wishes = sources.wishes(data, "c1", annotations=annotations)
    return policy.choose(wishes, settings or Settings(), privileged=sources.privileged(data)).request()


def must(data: dict[str, Any], settings: Settings | None = None) -> Request:
    found = find(data, settings=settings)
    assert found is not None
    return found


def rules(*found: dict[str, Any]) -> dict[str, Any]:
    return {"linux": {"resources": {"devices": list(found)}}}


def rule(major: Any = 195, minor: Any = 0, access: str = "rwm", allow: bool = True, kind: Any = "c") -> dict[str, Any]:
    return {"allow": allow, "type": kind, "major": major, "minor": minor, "access": access}


def test_the_annotation_comes_before_our_variable_and_that_before_nvidias() -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=all", "GPULATCH_GPUS=any:2"]
    assert must(spec(env, {"gpulatch.io/gpus": "3"})).source == "annotation gpulatch.io/gpus"
    assert must(spec(env)).source == "env GPULATCH_GPUS"
    assert must(spec(env[:1])).source == "env NVIDIA_VISIBLE_DEVICES"


def test_an_empty_source_falls_through_and_void_ends_the_search() -> None:
    assert must(spec(["GPULATCH_GPUS=", "NVIDIA_VISIBLE_DEVICES=1"])).named == ("1",)
    assert must(spec(["GPULATCH_GPUS= , ", "NVIDIA_VISIBLE_DEVICES=1"])).named == ("1",)
    assert find(spec(["GPULATCH_GPUS=void", "NVIDIA_VISIBLE_DEVICES=all"])) is None


@pytest.mark.parametrize("manager", ["libpod", "cri-o"])
def test_annotations_that_may_come_from_the_image_are_not_honoured(manager: str) -> None:
    annotations = {"gpulatch.io/gpus": "any:8", "io.container.manager": manager}
    assert find(spec([], annotations)) is None
    assert must(spec(["GPULATCH_GPUS=0"], annotations)).named == ("0",)


def test_annotations_are_not_honoured_when_told_so() -> None:
    assert find(spec([], {"gpulatch.io/gpus": "0"}), annotations=False) is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"process": None},
        {"process": []},
        {"process": {"env": {}}},
        {"process": {"env": "NVIDIA_VISIBLE_DEVICES=0"}},
        {"process": {"env": [1, None, "NVIDIA_VISIBLE_DEVICES"]}},
        {"annotations": []},
        {"annotations": {"gpulatch.io/gpus": 3}},
        {"process": {"env": ["nvidia_visible_devices=0"]}},
        {"linux": {"resources": {"devices": 7}}},
    ],
)
def test_a_spec_of_odd_types_asks_for_nothing(data: dict[str, Any]) -> None:
    assert find(data) is None


def expected(case: dict[str, Any]) -> list[str] | None:
    """What NVIDIA's runtime takes, in its words; its duplicate bug is not copied."""
    deviations = {"A006": ["all"], "A015": ["0"], "A016": ["0", "1"]}
    devices: list[str] | None = deviations.get(case["id"], case["expect"]["devices"])
    return devices


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in NVIDIA_CASES
        if case["in"].keys() <= {"env", "bounding", "accept_env_unprivileged"}
        and all(entry.partition("=")[0] == variables.NVIDIA for entry in case["in"].get("env", []))
        and not any(mark in str(case["in"]) for mark in ("nvidia.com", "MIG-"))
    ],
    ids=lambda case: case["id"],
)
def test_the_variable_means_what_it_means_to_nvidias_runtime(case: dict[str, Any]) -> None:
    data = spec(case["in"].get("env"))
    data["process"]["capabilities"] = {"bounding": case["in"].get("bounding", [])}
    accept = "always" if case["in"].get("accept_env_unprivileged", True) else "privileged"
    found = find(data, settings=Settings(accept_env=accept))
    wanted = expected(case)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    if wanted == [""]:
        assert found.none
    elif wanted == ["all"]:
        assert found.every
    else:
        assert list(found.named) == wanted


@pytest.mark.parametrize(
    ("env", "annotations", "acts"),
    [
        ([], {}, False),
        (["NVIDIA_VISIBLE_DEVICES=void"], {}, False),
        (["NVIDIA_VISIBLE_DEVICES="], {}, False),
        (["NVIDIA_VISIBLE_DEVICES=all"], {}, True),
        (["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=0"], {}, True),
        (["CUDA_VERSION=9.0"], {}, True),
        (["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES=void"], {}, False),
        ([], {"cdi.k8s.io/x": "nvidia.com/gpu=all"}, True),
    ],
)
def test_what_nvidias_runtime_would_act_on_is_known(env: list[str], annotations: dict[str, str], acts: bool) -> None:
    assert sources.nvidia_would_act(spec(env, annotations)) is acts


def test_a_gpu_that_the_spec_opens_is_a_request_for_it() -> None:
    found = must(rules(DENY, rule(minor=3), rule(1, 5), rule(minor=0, access="rw")))
    assert found.named == ("/dev/nvidia3", "/dev/nvidia0")
    assert (found.source, found.policy) == ("device rules of the spec", "shared")


@pytest.mark.parametrize(
    "data",
    [
        rules(DENY),
        rules(rule(allow=False)),
        rules(rule(access="m")),
        rules(rule(minor=255)),
        rules(rule(minor=254)),
        rules(rule(10, 229)),
        rules(rule(), {"allow": True, "access": "rwm"}),
        {"linux": {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}},
        {"mounts": [{"destination": "/dev", "source": "/dev", "type": "bind"}]},
    ],
)
def test_what_opens_no_gpu_by_itself_is_no_request(data: dict[str, Any]) -> None:
    assert find(data) is None


def test_void_does_not_hide_what_the_spec_opens() -> None:
    """As Docker from 29.2 on hands over a container: void, and the nodes already injected."""
    data = {**spec(["NVIDIA_VISIBLE_DEVICES=void", "GPULATCH_GPUS=void"]), **rules(rule(minor=1))}
    assert must(data).named == ("/dev/nvidia1",)


@pytest.mark.parametrize(
    ("data", "opens_all"),
    [
        (rules({"allow": True, "access": "rwm"}), True),
        (rules({"allow": True, "type": "a", "access": "rwm"}), True),
        (rules(rule(minor=None)), True),
        (rules(rule(minor=-1)), True),
        (rules(rule(major=None, minor=None, access="r")), True),
        (rules(rule(major=None, minor=3)), True),
        (rules(rule(major=-1, minor=3)), True),
        (rules(rule(major=10, minor=3, kind="a")), True),
        (rules(rule(major=10, minor=3, kind=None)), True),
        (rules(rule(major=None, minor=250)), False),
        (rules(rule(major=10, minor=3)), False),
        (rules({"allow": True, "type": "c", "access": "m"}), False),
        (rules(DENY, rule()), False),
        (rules(rule(major=136, minor=None)), False),
        (rules(rule(kind="b", minor=None)), False),
        ({}, False),
    ],
)
def test_unlimited_device_rules_are_known(data: dict[str, Any], opens_all: bool) -> None:
    assert sources.unlimited(data) is opens_all


def test_a_lone_all_can_be_declared_the_images() -> None:
    none = Settings(lone_all="none")
    assert find(spec(["NVIDIA_VISIBLE_DEVICES=ALL"]), settings=none) is None
    assert find(spec(["NVIDIA_VISIBLE_DEVICES=all, all,"]), settings=none) is None
    assert must(spec(["NVIDIA_VISIBLE_DEVICES=all,0"]), none).every
    assert must(spec(["GPULATCH_GPUS=all"]), none).every


@pytest.mark.parametrize(
    ("accept", "bounding", "counts"),
    [
        ("always", [], True),
        ("privileged", ["CAP_SYS_ADMIN"], True),
        ("privileged", ["CAP_NET_ADMIN", "cap_sys_admin"], False),
        ("never", ["CAP_SYS_ADMIN"], False),
    ],
)
def test_variables_count_as_the_settings_have_it(accept: str, bounding: list[str], counts: bool) -> None:
    data = spec(["NVIDIA_VISIBLE_DEVICES=0", "GPULATCH_GPUS=1"])
    data["process"]["capabilities"] = {"bounding": bounding}
    assert (find(data, settings=Settings(accept_env=accept)) is not None) is counts
    data["annotations"] = {"gpulatch.io/gpus": "2"}
    assert must(data, Settings(accept_env=accept)).named == ("2",)


def test_the_order_of_sources_is_a_setting_and_one_left_out_is_ignored() -> None:
    data = spec(["NVIDIA_VISIBLE_DEVICES=0", "GPULATCH_GPUS=1"], {"gpulatch.io/gpus": "2"})
    order = Settings(sources=("nvidia_visible_devices", "annotation"))
    assert must(data, order).named == ("0",)
    assert find(spec(["GPULATCH_GPUS=1"]), settings=order) is None


def test_gpus_that_the_spec_opens_count_whatever_the_settings_leave_out() -> None:
    found = must(rules(DENY, rule(minor=3)), Settings(sources=("docker",)))
    assert found.named == ("/dev/nvidia3",)


def test_only_the_sources_named_may_ask_for_a_policy() -> None:
    careful = Settings(allow_exclusive_from=("annotation",), allow_monitor_from=())
    assert must(spec([], {"gpulatch.io/gpus": "any:2"}), careful).policy == "exclusive"
    with pytest.raises(RequestError, match="lets no gpulatch_gpus request have the policy exclusive"):
        find(spec(["GPULATCH_GPUS=any:2"]), settings=careful)
    assert must(spec(["GPULATCH_GPUS=any:2+policy=shared"]), careful).count == 2
    with pytest.raises(RequestError, match="allow_monitor_from"):
        find(spec([], {"gpulatch.io/gpus": "all+policy=monitor"}), settings=careful)
    assert must(spec(["GPULATCH_GPUS=none+policy=exclusive"]), careful).none


CTRS_HOOK = {
    "path": "/usr/bin/containerd",
    "args": [
        *("containerd", "oci-hook", "--", "/usr/bin/nvidia-container-cli", "--load-kmods", "configure"),
        *("--device=0,2", "--compute", "--utility", "--pid={{pid}}", "{{rootfs}}"),
    ],
}


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_what_ctr_was_asked_for_is_read_from_its_hook_which_then_goes(stage: str) -> None:
    data = {**spec([]), "hooks": {stage: [{"path": "/bin/other"}, CTRS_HOOK], "poststop": None}}
    wanted = must(data)
    assert (wanted.source, wanted.named, wanted.policy) == ("ctr --gpus", ("0", "2"), "shared")
    edited = edits.apply(data, Grant((), (), Numbers.assumed()))
    assert edited["hooks"][stage] == [{"path": "/bin/other"}]


@pytest.mark.parametrize(
    "hook",
    [
        {"path": "/usr/bin/containerd", "args": ["containerd", "oci-hook", "--", "/usr/bin/other", "--device=0"]},
        {"path": "/usr/bin/containerd", "args": "oci-hook nvidia-container-cli --device=0"},
        {"path": "/usr/bin/containerd"},
        "nvidia-container-cli",
        None,
    ],
)
def test_other_hooks_ask_for_nothing(hook: object) -> None:
    assert find({**spec([]), "hooks": {"prestart": [hook]}}) is None


def test_every_wish_is_heard_with_what_becomes_of_it() -> None:
    data = spec(["NVIDIA_VISIBLE_DEVICES=all", "GPULATCH_GPUS=any:2"], {"gpulatch.io/gpus": "3"})
    wishes = sources.wishes(data, "c1")

    def heard(settings: Settings) -> dict[str, str]:
        choice = policy.choose(wishes, settings, privileged=False)
        return {one.wish.source: one.verdict for one in choice.heard}

    assert heard(Settings()) == {
        "annotation": policy.COUNTS,
        "gpulatch_gpus": policy.NOT_REACHED,
        "nvidia_visible_devices": policy.NOT_REACHED,
    }
    assert heard(Settings(sources=("nvidia_visible_devices", "gpulatch_gpus"), lone_all="none")) == {
        "gpulatch_gpus": policy.COUNTS,
        "nvidia_visible_devices": "left out: all by itself is taken for the image's word (lone_all = none);"
        " GPULATCH_GPUS=all would count",
        "annotation": "left out: the setting sources does not name annotation",
    }
    assert heard(Settings(accept_env="privileged", sources=("gpulatch_gpus",)))["gpulatch_gpus"].startswith("left out")


def test_void_ends_the_search_and_an_error_is_the_one_that_counts() -> None:
    def verdicts(*env: str) -> list[str]:
        choice = policy.choose(sources.wishes(spec([*env]), "c1"), Settings(), privileged=False)
        assert (choice.error is not None) == ("GPULATCH_GPUS=rubbish" in env)
        return [one.verdict for one in choice.heard]

    assert verdicts("GPULATCH_GPUS=void", "NVIDIA_VISIBLE_DEVICES=all") == [policy.VOID, policy.NOT_REACHED]
    assert verdicts("GPULATCH_GPUS=rubbish", "NVIDIA_VISIBLE_DEVICES=all") == [policy.COUNTS, policy.NOT_REACHED]


@pytest.mark.parametrize("name", ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"])
def test_a_pods_own_container_wishes_nothing_but_what_its_rules_open(name: str) -> None:
    data = spec(["GPULATCH_GPUS=any:2"], {name: "sandbox", "gpulatch.io/gpus": "1"})
    assert find(data) is None
    assert must({**data, **rules(rule(minor=3))}).named == ("/dev/nvidia3",)
    assert must(spec(["GPULATCH_GPUS=any:2"], {name: "container"})).count == 2


@pytest.mark.parametrize(
    ("env", "annotations", "told"),
    [
        (["GPULATCH_GPU=any:1"], {}, 'variable "GPULATCH_GPU" says nothing here: perhaps GPULATCH_GPUS is meant'),
        (["NVIDIA_VISIBLE_DEVICE=0"], {}, 'variable "NVIDIA_VISIBLE_DEVICE" says'),
        (["gpulatch_gpus=any:1"], {}, 'variable "gpulatch_gpus" says'),
        (["GPUS=2"], {}, 'variable "GPUS" says'),
        ([], {"gpulatch.io/gpu": "any:1"}, 'annotation "gpulatch.io/gpu" says nothing here: perhaps'),
        ([], {"gpulatch.io/gpus": "1", "io.container.manager": "libpod"}, "does not count under Podman and CRI-O"),
        ([], {"io.kubernetes.cri.container-type": "sandbox"}, "the pod's own container"),
    ],
)
def test_what_looks_like_a_request_and_is_none_is_told(env: list[str], annotations: dict[str, str], told: str) -> None:
    (note,) = sources.unheard(spec(env, annotations))
    assert told in note


def test_requests_and_the_rest_of_the_world_are_not_taken_for_mistakes() -> None:
    env = ["GPULATCH_GPUS=1", "NVIDIA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"]
    assert sources.unheard(spec([*env, "PATH=/bin", "GPULATCH_DEVICES=x"], {"gpulatch.io/gpus": "1", "x": "y"})) == []


@pytest.mark.parametrize(
    ("major", "minor"),
    [((1 << 32) + 195, 3), (195, (1 << 32) + 3), (-4294967101, 3), (195, -4294967293), ((1 << 40) + 195, 3)],
)
def test_a_number_that_a_runtime_cuts_to_a_gpus_is_that_gpus(major: int, minor: int) -> None:
    """crun 1.8.1 cuts to 32 bits, runc 1.1.5 negative numbers too."""
    assert must(rules(rule(major=major, minor=minor))).named == ("/dev/nvidia3",)


def test_a_number_that_is_cut_to_a_wildcard_opens_all() -> None:
    assert sources.unlimited(rules(rule(minor=(1 << 32) - 1)))
    assert sources.unlimited(rules(rule(major=-1 - (1 << 32), minor=-1)))
    assert not sources.unlimited(rules(rule(major="195", minor=-1)))


@pytest.mark.parametrize("settings_of", ["void", " VOID ", "0,void"])
def test_what_says_void_is_not_for_gpus_whatever_the_settings(settings_of: str) -> None:
    assert not sources.ask_for_gpus(sources.wishes(spec([f"NVIDIA_VISIBLE_DEVICES={settings_of}"]), "c1"))
    mount = {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"}
    assert not sources.ask_for_gpus(sources.wishes({**spec(), "mounts": [mount]}, "c1"))
    assert sources.ask_for_gpus(sources.wishes(spec(["NVIDIA_VISIBLE_DEVICES=void", "GPULATCH_GPUS=1"]), "c1"))


@pytest.mark.parametrize("source", ["/dev/null", "//dev/null", "/dev/./null", "/x/../dev/null", "//dev//null"])
def test_a_mount_of_dev_null_in_any_spelling_names_a_gpu(source: str) -> None:
    mount = {"destination": "//var/run//nvidia-container-devices/0", "source": source}
    assert must({**spec(), "mounts": [mount]}, Settings(sources=("volume_mounts",))).named == ("0",)


def test_cdi_annotations_under_another_prefix_make_nvidias_runtime_act_and_go() -> None:
    data = spec([], {"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=0", "mine": "stays"})
    assert sources.nvidia_would_act(data)
    assert edits.silence_nvidia(data)["annotations"] == {"mine": "stays"}
