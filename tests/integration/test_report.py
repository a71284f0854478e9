"""`gpulatch report` after observing real containers, with a stand-in for NVIDIA's hook."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from drivers.bundle import Bundle
from drivers.host import CHECKOUT, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")


def observed(host: Host, folder: Path, name: str, wish: str, engine: str | None) -> None:
    """Start a container as dockerd hands it over: with ids in the variable, and NVIDIA's hook, which does nothing."""
    hook = folder / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    bundle = Bundle(folder, name).asking_for(wish)
    if engine is not None:
        bundle.env(f"NVIDIA_VISIBLE_DEVICES={engine}")
        bundle.spec["hooks"] = {"prestart": [{"path": str(hook), "args": [hook.name, "prestart"]}]}
    done = host.start(bundle.save().path, name)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def fleet(host: Host, tmp_path: Path) -> Host:
    """What runs without gpulatch: every count is the first N GPUs."""
    Path("/etc/gpulatch/config.toml").write_text('[defaults]\nmode = "observe"\n')
    observed(host, tmp_path, "first", "any:2", "0,1")
    observed(host, tmp_path, "second", "any:2", "0,1")
    observed(host, tmp_path, "named", "6", "6")
    observed(host, tmp_path, "greedy", "any:8", "all")
    observed(host, tmp_path, "odd", "any:1", "no-such-id")
    assert host.start(Bundle(tmp_path, "plain").path, "plain").returncode == 0
    return host


def summed(host: Host, *options: str) -> dict[str, Any]:
    done = host.gpulatch("report", "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(found, json.loads((CHECKOUT / "schemas/report.json").read_text()))
    return found


def test_a_fleet_is_judged_before_it_is_switched(fleet: Host) -> None:
    (one,) = summed(fleet)["runtimes"]
    assert one["starts"] == 6
    assert one["kinds"] == {"granted": 0, "refused": 0, "no-gpu": 1, "observed": 4, "passed": 1}
    assert one["compared"] == {"same": 2, "other": 1, "unknown": 1}  # first and named; second; odd
    assert one["refusals"] == {"GL-4001": 1}


def test_what_the_engine_gave_twice_is_told(fleet: Host) -> None:
    twice = [(clash["container"], clash["gpus"], clash["holder"]) for clash in summed(fleet)["twice"]]
    assert ("second", [0, 1], "first") in twice
    assert ("greedy", [6], "named") in twice
    text = fleet.gpulatch("report").stdout
    assert "second got GPUs 0,1, which first had" in text
    assert "GL-4001, 1 time, the last for greedy:" in text


def test_decisions_are_made_as_if_all_were_enforced(fleet: Host) -> None:
    given = {event["container"]["id"]: [gpu["index"] for gpu in event["devices"]] for event in fleet.events()}
    assert given["first"] == [0, 1]
    assert given["second"] == [2, 3]


def test_one_that_ended_is_no_clash(host: Host, tmp_path: Path) -> None:
    Path("/etc/gpulatch/config.toml").write_text('[defaults]\nmode = "observe"\n')
    observed(host, tmp_path, "first", "any:1", "0")
    host.runtime("delete", "--force", "first")
    observed(host, tmp_path, "second", "any:1", "1")
    observed(host, tmp_path, "third", "any:1", "0")
    assert summed(host)["twice"] == []


def test_without_a_log_or_for_another_runtime_there_is_nothing_to_sum_up(host: Host, fleet: Host) -> None:
    assert summed(fleet, "--runtime", "another") == {"period": None, "runtimes": [], "twice": []}
    assert fleet.gpulatch("report", "--runtime", "another").stdout == "The event log has no start to sum up.\n"
