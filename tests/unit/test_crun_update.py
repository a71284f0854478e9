import json
import os
from pathlib import Path

import pytest

from runtime_wrapper.argv import Update
from runtime_wrapper.crun_update import with_the_same_devices

RESOURCES = {"devices": [{"allow": False, "access": "rwm"}], "cpu": {"shares": 512}}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """crun's state of a container that gpulatch started."""
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/status").write_text(json.dumps({"pid": os.getpid(), "process-start-time": 1}))
    (tmp_path / "c1/config.json").write_text(json.dumps({"annotations": {"gpulatch.io/edited": "x"}}))
    return tmp_path


def given(arguments: list[str]) -> object:
    """What crun reads by the last `--resources`."""
    (option,) = [word for word in arguments if word.startswith("--resources=/proc/self/fd/")]
    return json.loads(Path(option.partition("=")[2]).read_text())


def update(state: Path, text: str) -> tuple[Update, list[str]]:
    path = state / "resources.json"
    path.write_text(text)
    return Update("c1", str(state), str(path), 3), ["update", "-r", str(path), "c1"]


def test_device_rules_are_left_out_and_all_else_stays(state: Path) -> None:
    call, arguments = update(state, json.dumps(RESOURCES))
    changed = with_the_same_devices(call, arguments)
    assert given(changed) == {"cpu": {"shares": 512}}
    assert changed[:3] == arguments[:3]
    assert changed[-1] == "c1"
    assert json.loads((state / "resources.json").read_text()) == RESOURCES


@pytest.mark.parametrize("text", ['{"cpu": {"shares": 512}}', "{", "[]", "", "[" * 100000])
def test_resources_without_device_rules_or_sense_are_passed_on(state: Path, text: str) -> None:
    call, arguments = update(state, text)
    assert with_the_same_devices(call, arguments) == arguments


def test_a_container_that_gpulatch_did_not_change_is_left_alone(state: Path) -> None:
    (state / "c1/config.json").write_text("{}")
    call, arguments = update(state, json.dumps(RESOURCES))
    assert with_the_same_devices(call, arguments) == arguments


def test_a_file_that_is_not_there_is_for_crun_to_tell(state: Path) -> None:
    call = Update("c1", str(state), "/nowhere", 3)
    assert with_the_same_devices(call, ["update", "-r", "/nowhere", "c1"]) == ["update", "-r", "/nowhere", "c1"]


@pytest.mark.parametrize("text", [json.dumps(RESOURCES), '{"cpu": {"shares": 512}}', "no json"])
def test_standard_input_is_handed_over_whole(state: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (state / "in").write_text(text)
    arguments = ["update", "--resources", "-", "c1"]
    with open(state / "in", "rb") as file:
        monkeypatch.setattr("runtime_wrapper.crun_update._STDIN", file.fileno())
        assert with_the_same_devices(Update("c1", str(state), "-", 3), arguments) == arguments
        left = file.read().decode()
    assert left == text if text == "no json" else json.loads(left) == {"cpu": {"shares": 512}}
