"""CDI specs: what is refused in them beyond the case tables, and real files that others wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import cdi_edits, cdi_spec
from runtime_wrapper.errors import CdiError, SpecError
from runtime_wrapper.operate import cdi_file

SAMPLES = Path(__file__).parent.parent / "data/cdi"


def spec(**more: Any) -> dict[str, Any]:
    device = {"name": "a", "containerEdits": {"env": ["A=1"]}}
    return {"cdiVersion": "1.1.0", "kind": "vendor.com/device", "devices": [device], **more}


def with_edits(**edits: Any) -> dict[str, Any]:
    return spec(containerEdits=edits)


def refusal(data: object) -> str:
    with pytest.raises(CdiError) as caught:
        cdi_spec.check(data, "/etc/cdi/a.json")
    assert caught.value.where == "/etc/cdi/a.json"
    return caught.value.why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "the file is not an object"),
        ([], "the file is not an object"),
        (spec(devices={}), "devices is not a list"),
        (spec(devices=[]), "no devices"),
        (spec(devices=None), "no devices"),
        (spec(devices=[None]), "devices[0] is not an object"),
        (spec(devices=[{"name": "-", "containerEdits": {"env": ["A=1"]}}]), '"-" is no name of a device'),
        (spec(devices=[{"name": 0, "containerEdits": {"env": ["A=1"]}}]), "devices[0].name is not a text"),
        (spec(cdiVersion=0.6), "cdiVersion is not a text"),
        (spec(cdiVersion="0.6"), 'cdiVersion "0.6" is not one of 0.1.0,'),
        (spec(CdiVersion="0.6.0"), 'the unknown field "CdiVersion"'),
        (spec(annotations={"a": 1}), "annotations.a is not a text"),
        (spec(annotations={"a b": ""}), '"a b" is no valid key'),
        (spec(annotations={f"{'a' * 64}": ""}), "is no valid key"),
        (spec(annotations={"a": "x" * (1 << 18)}), "larger than 256 KiB"),
        (with_edits(Env=["A=1"]), 'containerEdits has the unknown field "Env"'),
        (with_edits(env=["A"]), '"A" is not NAME=VALUE'),
        (with_edits(env=[None]), "containerEdits.env[0] is not a text"),
        (with_edits(deviceNodes=[{"path": "/dev/a", "major": -1}]), "deviceNodes[0].major is not a number"),
        (with_edits(deviceNodes=[{"path": "/dev/a", "major": True}]), "deviceNodes[0].major is not a number"),
        (with_edits(deviceNodes=[{"path": "/dev/a", "permissions": "rx"}]), '"rx", not some of rwm'),
        (with_edits(hooks=[{"hookName": "prestart"}]), "hook prestart has no path"),
        (with_edits(netDevices=[{"hostInterfaceName": "a", "name": "x"}] * 2), "two the same"),
        (with_edits(intelRdt={"closID": ".."}), '".." is no name of a file'),
        ({**with_edits(netDevices=[{"hostInterfaceName": "a", "name": "x"}]), "cdiVersion": "1.0.0"}, "but 1.1.0 does"),
    ],
)
def test_it_says_what_is_wrong(data: object, why: str) -> None:
    assert why in refusal(data)


def test_what_is_null_is_absent() -> None:
    found = cdi_spec.check(spec(annotations=None, containerEdits={"env": None, "intelRdt": None}), "row")
    assert found.edits == {}


def test_a_version_may_begin_with_v() -> None:
    assert cdi_spec.check(spec(cdiVersion="v0.3.0"), "row").version == "0.3.0"


@pytest.mark.parametrize("text", ['{"kind": "a", "kind": "b"}', "[" * 100_000, "{", b"\xff".decode("latin-1")])
def test_json_that_cannot_be_believed_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        cdi_spec.loads(text.encode("latin-1"))


def sample(name: str) -> object:
    text = (SAMPLES / f"{name}.yaml").read_text()
    for variable in ("{{ .driverRoot }}", "{{ .hostRoot }}"):
        text = text.replace(variable, "")
    return cdi_file.loads_yaml(text.encode())


@pytest.mark.parametrize(
    ("name", "kind", "devices"),
    [
        ("nvctk_generate_default", "example.com/device", ["0", "all"]),
        ("nvcdi_imex", "nvidia.com/imex-channel", ["0", "1", "2047"]),
        ("amd_rocm_3029_proposal", "amd.com/gpu", ["0", "1", "all"]),
        (
            "dra_claim_mig_h200_nebius",
            "k8s.gpu.nvidia.com/claim",
            ["c8593c85-440d-4156-b199-aea592ff83df-gpu-0-mig-1g18gb-19-0"],
        ),
    ],
)
def test_real_files_are_read(name: str, kind: str, devices: list[str]) -> None:
    found = cdi_spec.check(sample(name), name)
    assert found.kind == kind
    assert list(found.devices)[: len(devices)] == devices


def test_a_file_of_nvidias_tool_gives_what_it_names() -> None:
    found = cdi_spec.check(sample("nvctk_generate_default"), "row")
    edits = cdi_edits.joined([found.edits, found.devices["0"]])
    nodes = [{"type": "c", "major": 195, "minor": minor, **node} for minor, node in enumerate(edits["deviceNodes"])]
    given = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, "mounts": [{"destination": "/proc"}]}
    edited = cdi_edits.apply(given, {**edits, "deviceNodes": nodes})
    assert edited["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/lib/x86_64-linux-gnu"]
    assert [device["path"] for device in edited["linux"]["devices"]] == ["/dev/nvidiactl", "/dev/nvidia0"]
    assert [len(hooks) for hooks in edited["hooks"].values()] == [5]
    assert [mount["destination"].count("/") for mount in edited["mounts"]] == [1, 3, 4]


def test_a_placeholder_left_in_a_file_is_no_name() -> None:
    with pytest.raises(CdiError, match="mig-<stable-UUID-hash>"):
        cdi_spec.check(sample("hami_dynamic_mig"), "row")


def test_a_bare_number_is_a_name_in_yaml() -> None:
    text = json.dumps(spec()).replace('"a"', "7")
    assert list(cdi_spec.check(cdi_file.loads_yaml(text.encode()), "row").devices) == ["7"]


def test_joined_edits_are_one_after_the_other() -> None:
    parts: list[dict[str, Any]] = [{"env": ["A=1"], "intelRdt": {"closID": "a"}}, {"env": ["B=1"], "intelRdt": {}}, {}]
    assert cdi_edits.joined(parts) == {"env": ["A=1", "B=1"], "intelRdt": {}}
    assert parts[0]["env"] == ["A=1"]


@pytest.mark.parametrize("access", ["", "none", "r"])
def test_permissions_become_the_rules_access(access: str) -> None:
    node = {"path": "/dev/null", "permissions": access, "fileMode": 0o600, "uid": 5}
    linux = cdi_edits.apply({"process": {"user": {"uid": 1000}}}, {"deviceNodes": [node]})["linux"]
    assert linux["resources"]["devices"][0]["access"] == {"": "rwm", "none": "", "r": "r"}[access]
    assert (linux["devices"][0]["fileMode"], linux["devices"][0]["uid"]) == (0o600, 5)


def test_a_fifo_needs_no_numbers_and_gets_no_rule() -> None:
    linux = cdi_edits.apply({"linux": None}, {"deviceNodes": [{"path": "/dev/pipe", "type": "p"}]})["linux"]
    assert linux == {"devices": [{"path": "/dev/pipe", "type": "p", "major": 0, "minor": 0}]}


def test_intel_rdt_is_replaced_and_an_idmap_is_not_added_twice() -> None:
    given = {"linux": {"intelRdt": {"closID": "old"}, "namespaces": [{"type": "user"}]}}
    mount = {"hostPath": "/h", "containerPath": "/c", "type": "bind", "options": ["idmap"]}
    edited = cdi_edits.apply(given, {"intelRdt": {"closID": "new"}, "mounts": [mount]})
    assert edited["linux"]["intelRdt"] == {"closID": "new"}
    assert edited["mounts"] == [{"destination": "/c", "source": "/h", "type": "bind", "options": ["idmap"]}]


EVERYTHING: dict[str, Any] = {
    "env": ["A=1"],
    "deviceNodes": [{"path": "/dev/null"}],
    "netDevices": [{"hostInterfaceName": "a", "name": "b"}],
    "mounts": [{"hostPath": "/h", "containerPath": "/c"}],
    "hooks": [{"hookName": "poststop", "path": "/bin/true"}],
    "additionalGids": [5],
}


@pytest.mark.parametrize(
    "odd",
    [
        {"process": []},
        {"process": {"env": "A=1"}},
        {"process": {"user": {"additionalGids": {}}}},
        {"linux": 7},
        {"linux": {"devices": {}}},
        {"linux": {"resources": {"devices": "x"}}},
        {"linux": {"netDevices": []}},
        {"mounts": {}},
        {"hooks": {"poststop": "x"}},
    ],
)
def test_a_spec_with_another_type_in_a_parts_place_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="another type"):
        cdi_edits.apply(odd, EVERYTHING)


def test_odd_entries_of_a_specs_lists_are_left_alone() -> None:
    given = {"mounts": [7, {"destination": 7}], "linux": {"devices": [None], "namespaces": 7}, "process": {"env": [7]}}
    edited = cdi_edits.apply(given, EVERYTHING)
    assert 7 in edited["mounts"]
    assert None in edited["linux"]["devices"]
    assert edited["process"]["env"] == [7, "A=1"]
