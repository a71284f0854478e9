"""The case tables of the CDI project's library, row by row: what its tests say, and what it was seen to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import cdi_version

TESTS = Path(__file__).parent.parent
ROWS: dict[str, list[dict[str, Any]]] = json.loads((TESTS / "data/cdi.json").read_text())


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
