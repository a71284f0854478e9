import json
from copy import deepcopy
from typing import Any

import pytest
from drivers.samples import nvlink_host

from runtime_wrapper import devices, edits
from runtime_wrapper.devices import Numbers
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import HiddenDeviceError, NoDriverError, SpecError
from runtime_wrapper.probe.procfs import Majors, NodeRules

HOST = nvlink_host()
NUMBERS = Numbers.assumed()
GPUS = (HOST.gpus[0], HOST.gpus[3])  # minors 1 and 4


def grant(capabilities: str = "compute,utility", numbers: Numbers = NUMBERS) -> Grant:
    return Grant(GPUS, devices.nodes(GPUS, frozenset(capabilities.split(",")), numbers), numbers)


def spec(**more: Any) -> dict[str, Any]:
    base = {"ociVersion": "1.0.2", "process": {"env": ["PATH=/bin"], "user": {"uid": 1000, "gid": 1000}}, "linux": {}}
    return {**base, **more}


def env(edited: dict[str, Any]) -> dict[str, str]:
    entries = edited["process"]["env"]
    names = [entry.partition("=")[0] for entry in entries]
    assert len(names) == len(set(names)), "a variable stands twice"
    return dict(entry.split("=", 1) for entry in entries)


def test_nodes_and_rules_appear_together_for_exactly_the_grant() -> None:
    linux = edits.apply(spec(), grant())["linux"]
    numbers = {(node["path"], node["major"], node["minor"]) for node in linux["devices"]}
    assert numbers == {
        ("/dev/nvidia1", 195, 1),
        ("/dev/nvidia4", 195, 4),
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 511, 0),
        ("/dev/nvidia-uvm-tools", 511, 1),
    }
    rules = linux["resources"]["devices"]
    assert {(rule["major"], rule["minor"]) for rule in rules} == {number[1:] for number in numbers}
    assert {rule["access"] for rule in rules} == {"rw"}
    assert all(rule["allow"] and rule["type"] == "c" for rule in rules)


def test_our_rules_come_last_so_that_no_earlier_refusal_overrides_them() -> None:
    deny = {"allow": False, "access": "rwm"}
    edited = edits.apply(spec(linux={"resources": {"devices": [deny]}}), grant())
    assert edited["linux"]["resources"]["devices"][0] == deny


def test_each_variable_stands_once() -> None:
    given = ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=0", "A=1", "NVIDIA_VISIBLE_DEVICES=0,3", "A=2"]
    edited = edits.apply(
        spec(process={"env": [*given, "CUDA_DEVICE_ORDER=FASTEST_FIRST", "CUDA_DEVICE_ORDER=X"]}), grant()
    )
    entries = edited["process"]["env"]
    assert entries[:2] == ["A=1", "A=2"]  # not ours: left alone
    assert sorted(entries[2:]) == [
        "CUDA_DEVICE_ORDER=X",
        "CUDA_VISIBLE_DEVICES=0",
        f"GPULATCH_DEVICES={GPUS[0].uuid},{GPUS[1].uuid}",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]


def test_the_default_variables() -> None:
    found = env(edits.apply(spec(), grant()))
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_gpu_that_the_spec_brought_along_is_dropped_with_its_rule() -> None:
    smuggled = {"path": "/dev/innocent", "type": "c", "major": 195, "minor": 7}
    cap = {"path": "/dev/nvidia-caps/nvidia-cap3", "type": "c", "major": 238, "minor": 3}
    fuse = {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}
    rules = [
        {"allow": True, "access": "rwm", **{k: v for k, v in node.items() if k != "path"}}
        for node in (smuggled, cap, fuse)
    ]
    deny = {"allow": False, "type": "c", "major": 195, "minor": 7, "access": "rwm"}
    edited = edits.apply(
        spec(linux={"devices": [smuggled, cap, fuse], "resources": {"devices": [*rules, deny]}}), grant()
    )
    assert edited["linux"]["devices"][0]["path"] == "/dev/fuse"
    assert not [node for node in edited["linux"]["devices"] if node["minor"] in (7, 3)]
    kept = edited["linux"]["resources"]["devices"]
    assert kept[:2] == [rules[2], deny]
    assert not [rule for rule in kept if rule["allow"] and (rule["major"], rule["minor"]) in ((195, 7), (238, 3))]


def test_a_granted_gpu_keeps_a_second_node_under_the_users_name() -> None:
    own = {"path": "/dev/gpu", "type": "c", "major": 195, "minor": 4}
    foreign = {"path": "/dev/other", "type": "c", "major": 195, "minor": 5}
    nodes = edits.apply(spec(linux={"devices": [own, foreign]}), grant())["linux"]["devices"]
    assert own in nodes
    assert not [node for node in nodes if node["minor"] == 5]
    assert len([node for node in nodes if node["minor"] == 4]) == 2


def test_a_node_of_the_same_path_is_replaced() -> None:
    wrong = {"path": "/dev/nvidiactl", "type": "c", "major": 1, "minor": 3}
    nodes = edits.apply(spec(linux={"devices": [wrong]}), grant())["linux"]["devices"]
    assert [node["major"] for node in nodes if node["path"] == "/dev/nvidiactl"] == [195]


def test_only_nvidias_hook_is_removed() -> None:
    other = {"path": "/proc/20119/exe", "args": ["libnetwork-setkey"]}
    nvidia = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}
    edited = edits.apply(spec(hooks={"prestart": [nvidia, other], "poststop": [other]}), grant())
    assert edited["hooks"] == {"prestart": [other], "poststop": [other]}


def test_the_groups_of_the_nodes_are_added_once() -> None:
    numbers = Numbers(NUMBERS.majors, NodeRules(gid=27, mode=0o660), on_host=False)
    edited = edits.apply(spec(process={"user": {"uid": 1000, "additionalGids": [5]}}), grant(numbers=numbers))
    assert edited["process"]["user"]["additionalGids"] == [5, 27]
    assert {node["fileMode"] for node in edited["linux"]["devices"]} == {0o660}
    again = edits.apply(spec(process={"user": {"additionalGids": [27]}}), grant(numbers=numbers))
    assert again["process"]["user"]["additionalGids"] == [27]


@pytest.mark.parametrize(
    ("capabilities", "names"),
    [
        ("utility", {"nvidiactl"}),
        ("compute", {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}),
        ("graphics", {"nvidiactl", "nvidia-modeset"}),
        ("all", {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}),
    ],
)
def test_control_nodes_follow_the_driver_capabilities(capabilities: str, names: set[str]) -> None:
    found = {node.path.removeprefix("/dev/") for node in grant(capabilities).nodes}
    assert found - {"nvidia1", "nvidia4"} == names


def test_capabilities_default_to_compute_and_utility() -> None:
    assert edits.capabilities(spec()) == {"compute", "utility"}
    assert edits.capabilities(spec(process={"env": ["NVIDIA_DRIVER_CAPABILITIES= video , compute"]})) == {
        "video",
        "compute",
    }
    assert edits.capabilities(spec(process={"env": ["NVIDIA_DRIVER_CAPABILITIES="]})) == {"compute", "utility"}


def test_a_module_that_is_not_loaded_is_named_with_the_command_to_load_it() -> None:
    numbers = Numbers(Majors(195, None, None, None), NodeRules())
    with pytest.raises(NoDriverError, match="modprobe nvidia-uvm"):
        grant("compute", numbers)
    assert [node.path for node in grant("graphics", numbers).nodes][-1] == "/dev/nvidiactl"


@pytest.mark.parametrize(
    "mount",
    [
        {"destination": "/dev/nvidia1", "type": "bind", "source": "/dev/null"},
        {"destination": "/dev/nvidiactl", "type": "bind", "source": "/dev/nvidia0", "options": ["rbind"]},
        {"destination": "/dev", "type": "none", "source": "/srv/dev", "options": ["rbind"]},
        {"destination": "/dev/../dev/./nvidia4/", "type": "tmpfs", "source": "tmpfs"},
    ],
)
def test_a_mount_over_a_granted_node_is_refused_and_named(mount: dict[str, Any]) -> None:
    with pytest.raises(HiddenDeviceError, match="a mount of the container on"):
        edits.apply(spec(mounts=[mount]), grant())


@pytest.mark.parametrize(
    "mount",
    [
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]},
        {"destination": "/dev/nvidia1", "type": "bind", "source": "/dev/nvidia1"},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"},
        {"destination": "/dev/nvidia11", "type": "bind", "source": "/dev/null"},
        {"destination": 7},
        "nonsense",
    ],
)
def test_other_mounts_hide_nothing(mount: Any) -> None:
    assert edits.apply(spec(mounts=[mount]), grant())["mounts"] == [mount]


def test_delegate_hands_exact_uuids_to_nvidias_runtime_and_makes_no_nodes() -> None:
    edited = edits.apply(spec(), Grant(GPUS, (), NUMBERS, delegate=True))
    assert env(edited)["NVIDIA_VISIBLE_DEVICES"] == f"{GPUS[0].uuid},{GPUS[1].uuid}"
    assert "devices" not in edited["linux"]


def test_none_leaves_no_gpu_and_hides_nothing_else() -> None:
    smuggled = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    edited = edits.apply(spec(linux={"devices": [smuggled]}), Grant((), (), NUMBERS))
    assert edited["linux"]["devices"] == []
    assert env(edited)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "CUDA_VISIBLE_DEVICES" not in env(edited)


def test_the_given_spec_is_not_changed_and_unknown_fields_survive() -> None:
    given = spec(future={"a": [1, {"b": None}]}, linux={"seccomp": {"x": 1}, "resources": {"memory": {"limit": 5}}})
    before = deepcopy(given)
    edited = edits.apply(given, grant())
    assert given == before
    assert edited["future"] == given["future"]
    assert edited["linux"]["seccomp"] == {"x": 1}
    assert edited["linux"]["resources"]["memory"] == {"limit": 5}
    json.dumps(edited)


@pytest.mark.parametrize(
    "odd",
    [{"linux": {"devices": None, "resources": None}}, {"hooks": {"prestart": None}}],
)
def test_odd_but_legal_nulls_are_edited_all_the_same(odd: dict[str, Any]) -> None:
    edited = edits.apply(spec(**odd), grant())
    assert any(node for node in edited["linux"]["devices"] if isinstance(node, dict) and node["path"] == "/dev/nvidia1")


@pytest.mark.parametrize(
    "broken",
    [
        {"process": []},
        {"process": {"env": "A=1"}},
        {"process": {"user": 7}},
        {"linux": "x"},
        {"linux": {"devices": {}}},
        {"linux": {"resources": []}},
        {"linux": {"resources": {"devices": "all"}}},
    ],
)
def test_a_spec_of_wrong_types_is_refused_by_name(broken: dict[str, Any]) -> None:
    numbers = Numbers(NUMBERS.majors, NodeRules(gid=27), on_host=False)
    with pytest.raises(SpecError, match='key "(process|env|user|linux|devices|resources)": is not'):
        edits.apply(spec(**broken), grant(numbers=numbers))


RW = {"allow": True, "access": "rw"}


@pytest.mark.parametrize(
    "rule",
    [
        {**RW, "major": 195, "minor": 7},
        {**RW, "type": "", "major": 195, "minor": 7},
        {**RW, "type": "a", "major": 195, "minor": 7},
        {**RW, "type": "c", "major": 195 - 2**32, "minor": 7},
        {**RW, "type": "c", "major": 195 + 2**32, "minor": 7},
        {**RW, "type": "c", "major": 195, "minor": 7 - 2**32},
        {**RW, "type": "c", "major": 195, "minor": 7 + 2**32},
        {**RW, "type": "c", "major": "195", "minor": "7"},
        {**RW, "type": "c", "major": 195.0, "minor": 7},
        {**RW, "type": "c", "major": True, "minor": 7},
        {**RW, "type": "c", "major": [195], "minor": 7},
        {**RW, "type": ["c"], "major": 195, "minor": 7},
        {"allow": "yes", "type": "x", "major": 195, "minor": 7},
        7,
        None,
    ],
)
def test_a_rule_that_a_runtime_could_read_in_another_way_is_refused(rule: Any) -> None:
    with pytest.raises(SpecError, match="can be read in more than one way"):
        edits.apply(spec(linux={"resources": {"devices": [rule]}}), grant())
    with pytest.raises(SpecError, match=r"linux\.devices"):
        edits.apply(spec(linux={"devices": [rule]}), grant())


@pytest.mark.parametrize(
    "rule",
    [
        {"allow": False, "access": "rwm"},
        {"allow": True, "access": "rwm"},
        {"allow": True, "type": "a", "access": "rwm"},
        {"allow": True, "type": "c", "access": "m"},
        {"allow": True, "type": "b", "major": 8, "minor": -1, "access": "r"},
        {"allow": False, "type": "c", "major": 10, "minor": 229, "access": "rwm"},
    ],
)
def test_the_rules_that_engines_write_stay(rule: Any) -> None:
    assert (
        edits.apply(spec(linux={"resources": {"devices": [rule]}}), grant())["linux"]["resources"]["devices"][0] == rule
    )


@pytest.mark.parametrize(
    "mount",
    [
        {"destination": "//dev/nvidia1", "type": "bind", "source": "/dev/null"},
        {"destination": "dev/nvidia1", "type": "bind", "source": "/dev/null"},
        {"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind", "nodev"]},
        {"destination": "/dev/nvidia1", "type": "bind", "source": "/dev/null", "options": 5},
    ],
)
def test_odd_spellings_of_a_mount_hide_nothing_from_us(mount: dict[str, Any]) -> None:
    with pytest.raises(HiddenDeviceError):
        edits.apply(spec(mounts=[mount]), grant())


def test_a_spec_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(SpecError, match="nested too deeply"):
        edits.apply(spec(deep=deep), grant())


def test_nvidias_runtime_is_left_nothing_to_act_on() -> None:
    annotations = {"cdi.k8s.io/x": "nvidia.com/gpu=all", "other": "kept"}
    given = spec(process={"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, annotations=annotations)
    for edited in (edits.silence_nvidia(given), edits.apply(given, Grant(GPUS, (), NUMBERS, delegate=True))):
        assert edited["annotations"] == {"other": "kept"}
        assert "NVIDIA_VISIBLE_DEVICES=all" not in edited["process"]["env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits.silence_nvidia(given)["process"]["env"]
