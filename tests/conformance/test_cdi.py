"""The case tables of the CDI project's library, row by row: what its tests say, and what it was seen to do."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import cdi_edits, cdi_registry, cdi_spec, cdi_version
from runtime_wrapper.errors import CdiError
from runtime_wrapper.operate import cdi_file

TESTS = Path(__file__).parent.parent
ROWS: dict[str, list[dict[str, Any]]] = json.loads((TESTS / "data/cdi_cases.json").read_text())


def told(group: str) -> Any:
    """Runs the test for each row of a group."""
    return pytest.mark.parametrize("row", ROWS[group], ids=lambda row: row["id"])


def in_both(**edits: Any) -> list[dict[str, Any]]:
    """A spec with these edits of its own, and one with them in its only device."""
    return [{"containerEdits": edits}, {"devices": [{"name": "x", "containerEdits": edits}]}]


FEATURES: dict[str, list[dict[str, Any]]] = {
    "empty spec": [{}],
    "mount type set": in_both(mounts=[{"type": "bind"}]),
    "deviceNodes.hostPath set": in_both(deviceNodes=[{"path": "/dev/a", "hostPath": "/dev/b"}]),
    "hostPath equal to path": in_both(deviceNodes=[{"path": "/dev/a", "hostPath": "/dev/a"}]),
    "device name starts with a digit": [{"devices": [{"name": "0"}]}],
    "spec annotations": [{"annotations": {"a": "b"}}],
    "device annotations": [{"devices": [{"name": "x", "annotations": {"a": "b"}}]}],
    "intelRdt in spec or device": in_both(intelRdt={"closID": "c"}),
    "additionalGids in spec or device": in_both(additionalGids=[4]),
    "mount type and hostPath together": in_both(mounts=[{"type": "bind"}], deviceNodes=[{"hostPath": "/dev/b"}]),
}


@told("R")
def test_the_lowest_version_that_a_spec_needs(row: dict[str, Any]) -> None:
    assert {cdi_version.lowest(spec) for spec in FEATURES[row["feature"]]} == {row["expect"]}


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        ({"kind": "a.com/b.c"}, "0.6.0"),
        *((spec, "1.1.0") for spec in in_both(netDevices=[{"hostInterfaceName": "eno1", "name": "net0"}])),
        *((spec, "1.1.0") for spec in in_both(intelRdt={"enableMonitoring": True})),
        *((spec, "0.3.0") for spec in in_both(env=["A=1"], hooks=[], mounts=None)),
    ],
)
def test_the_lowest_version_beyond_the_table(spec: dict[str, Any], version: str) -> None:
    assert cdi_version.lowest(spec) == version
    assert cdi_version.is_below(version, "1.1.0") == (version != "1.1.0")


def plain(data: dict[str, Any]) -> dict[str, Any]:
    """A container's spec without what the library's types add by themselves."""
    found = deepcopy(data)
    process = found.get("process", {})
    for holder, name, value in (
        (found, "ociVersion", ""),
        (process, "user", {"uid": 0, "gid": 0}),
        (process, "cwd", ""),
        (found, "process", {}),
    ):
        if holder.get(name) == value:
            del holder[name]
    return found


@told("G")
def test_edits_are_checked_and_applied(row: dict[str, Any], tmp_path: Path) -> None:
    """The library after 1.1.0 counts. A link to a device node stands where the row names one."""
    (tmp_path / "link").symlink_to("/dev/null")
    given = json.loads(json.dumps(row["edits"]).replace("/tmp/cdiprobe-link", str(tmp_path / "link")))
    expect = row["expect"]
    if not expect["valid"]:
        with pytest.raises(CdiError):
            cdi_spec.check_edits(given, "row")
        return
    edits = cdi_spec.check_edits(given, "row")
    if "error" in expect:
        with pytest.raises(CdiError, match="device node"):
            cdi_edits.apply(row["spec"], edits)
        return
    before = deepcopy(row["spec"])
    assert plain(cdi_edits.apply(row["spec"], edits)) == plain(expect["out"])
    assert row["spec"] == before


@told("H")
@pytest.mark.needs("root")
def test_a_registry_and_what_it_injects(row: dict[str, Any], tmp_path: Path) -> None:
    for name, text in row["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = [str(tmp_path / "etc"), str(tmp_path / "run")]
    found = cdi_registry.read(folders, {".json": cdi_spec.loads, ".yaml": cdi_file.loads_yaml})
    expect = row["expect"]
    assert sorted(found.devices) == expect.get("known_devices", [])
    assert sorted(found.problems) == [str(tmp_path / name) for name in expect["files_with_errors"]]
    assert [name for name in row["devices"] if name not in found.devices] == expect.get("unresolved", [])
    if "error" in expect:
        with pytest.raises(CdiError):
            found.inject(row["spec"], row["devices"])
    else:
        assert plain(found.inject(row["spec"], row["devices"])) == plain(expect["out"])


GOOD: dict[str, Any] = {
    "cdiVersion": "0.3.0",
    "kind": "vendor.com/device",
    "devices": [{"name": name, "containerEdits": {"env": ["A=1"]}} for name in ("a", "b", "c")],
}
ONE, TWO, *_ = GOOD["devices"]
FILES: dict[str, list[str]] = {
    "unparsable YAML": ["{", "a: [", "\t: 1", "a: 1\na: 2"],
    "no cdiVersion": [json.dumps({**GOOD, "cdiVersion": None})],
    "no kind": [json.dumps({**GOOD, "kind": None})],
    "kind without vendor or with a bad character in vendor": [
        json.dumps({**GOOD, "kind": kind}) for kind in ("device", "/device", "vend*r.com/device", "vendor.com/")
    ],
    "device without any edits": [json.dumps({**GOOD, "devices": [ONE, {"name": "b", "containerEdits": {"env": []}}]})],
    "two devices with one name": [json.dumps({**GOOD, "devices": [ONE, TWO, ONE]})],
    "three devices with env edits, 0.3.0 or later": [
        json.dumps({**GOOD, "cdiVersion": version}) for version in cdi_version.KNOWN[2:]
    ],
}


@told("S")
def test_a_file_is_checked(row: dict[str, Any]) -> None:
    for text in FILES[row["case"]]:
        if row["expect"] == "ok":
            found = cdi_spec.check(cdi_file.loads_yaml(text.encode()), "row")
            assert list(found.devices) == ["a", "b", "c"]
            continue
        with pytest.raises((CdiError, ValueError)):
            cdi_spec.check(cdi_file.loads_yaml(text.encode()), "row")
