from typing import Any

from runtime_wrapper import changes


def spec(**more: Any) -> dict[str, Any]:
    return {"process": {"env": ["PATH=/bin"]}, "linux": {"devices": [], "resources": {"devices": []}}, **more}


def test_nothing_differs() -> None:
    assert changes.between(spec(), spec()) == []
    assert changes.between({}, {"annotations": {"gpulatch.io/claim": "1.2"}}) == []  # our own marks are no change


def test_a_node_and_its_rule_are_one_change() -> None:
    after = spec()
    after["linux"]["devices"].append({"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1})
    after["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"}
    )
    assert changes.between(spec(), after) == ["device node /dev/nvidia1 195:1 added"]
    assert changes.between(after, spec()) == ["device node /dev/nvidia1 195:1 dropped"]


def test_a_rule_by_itself_is_told_and_a_refusing_one_is_not() -> None:
    before = spec()
    before["linux"]["resources"]["devices"] = [
        {"allow": False, "access": "rwm"},
        {"allow": True, "type": "c", "major": 195, "minor": 4, "access": "rwm"},
        {"allow": True, "type": "c", "major": 10, "access": "m"},
    ]
    assert changes.between(before, spec()) == ["device rule c 195:4 rwm dropped", "device rule c 10:* m dropped"]


def test_variables_hooks_groups_and_annotations() -> None:
    before = spec(
        process={"env": ["A=1", "B=old"], "user": {"additionalGids": [1]}},
        hooks={"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}, {"path": "/x/other"}]},
        annotations={"cdi.k8s.io/gpu": "nvidia.com/gpu=0", "mine": "yes"},
    )
    after = spec(
        process={"env": ["B=new", "C=3"], "user": {"additionalGids": [1, 27]}},
        hooks={"prestart": [{"path": "/x/other"}]},
        annotations={"mine": "yes"},
    )
    assert changes.between(before, after) == [
        'variable B="new" set (was "old")',
        'variable C="3" added',
        'variable A dropped (was "1")',
        "hook prestart nvidia-container-runtime-hook dropped",
        "additional group 27 added",
        "annotation cdi.k8s.io/gpu dropped",
    ]


def test_mounts_and_what_is_left_of_an_annotation() -> None:
    before = spec(
        mounts=[{"destination": "/a"}, {"destination": "/b"}], annotations={"x": "1,2", "gpulatch.io/claim": "1"}
    )
    after = spec(mounts=[{"destination": "/b"}], annotations={"x": "2", "gpulatch.io/claim": "2"})
    assert changes.between(before, after) == ["mount /a dropped", 'annotation x="2" set (was "1,2")']


def test_odd_types_are_no_obstacle() -> None:
    odd: Any = {"process": 3, "linux": {"devices": "x", "resources": {"devices": [3, None]}}, "hooks": {"prestart": 4}}
    assert changes.between(odd, odd) == []
    assert changes.between({"hooks": [], "annotations": 5}, {}) == []


def test_the_drivers_files_are_told_by_folder() -> None:
    def mount(destination: str, source: str) -> dict[str, Any]:
        return {"destination": destination, "source": source, "type": "bind"}

    before = spec(mounts=[mount("/data", "/x"), mount("/gone", "/y")])
    names = ("libcuda.so.1", "libcuda.so")
    after = spec(mounts=[mount("/data", "/x"), *(mount(f"/lib/{name}", "/lib/libcuda.so.550.1.2") for name in names)])
    after["mounts"].append(mount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"))
    assert changes.between(before, after) == [
        "mount /gone dropped",
        "2 driver files of 550.1.2 mounted below /lib",
        "1 driver file mounted below /usr/bin",
    ]
