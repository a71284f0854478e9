"""What of recovery needs no container; the tests with real ones are in tests/integration."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import recovery
from runtime_wrapper.claim import Claim, Device
from runtime_wrapper.proc import Process

pytestmark = pytest.mark.needs("root")

GPUS = {minor: Device(f"0000:0{minor}:00.0", None, minor) for minor in range(8)}
DENY_ALL = {"type": 97, "major": -1, "minor": -1, "permissions": "rwm", "allow": False}


def rule(minor: Any, major: Any = 195, kind: Any = 99, permissions: str = "rw") -> dict[str, Any]:
    """A device rule as runc's state has it: the type is a character's number."""
    return {"type": kind, "major": major, "minor": minor, "permissions": permissions, "allow": True}


def keep(root: Path, *rules: dict[str, Any], name: str = "c1", pid: int | None = None, **more: Any) -> None:
    """Write the state of a container whose first process is this one."""
    me = Process.of(pid or os.getpid())
    assert me
    config = {"rootfs": "/x", "labels": ["bundle=/b"], "cgroups": {"devices": [DENY_ALL, *rules]}, **more}
    state = {"init_process_pid": me.pid, "init_process_start": me.start, "created": "2026-01-01T00:00:00Z"}
    (root / name).mkdir(exist_ok=True)
    (root / name / "state.json").write_text(json.dumps({**state, "config": config}))


def found(root: Path) -> list[Claim]:
    return [*recovery.running(GPUS, (str(root),)).claims]


def test_a_container_holds_what_its_rules_open_one_by_one(tmp_path: Path) -> None:
    keep(tmp_path, rule(1), rule(3), rule(255), rule(0, major=511), rule(3))
    (claim,) = found(tmp_path)
    assert [device.index for device in claim.devices] == [1, 3]
    assert (claim.id, claim.policy, claim.request) == ("c1", "shared", "/dev/nvidia1,/dev/nvidia3")
    assert (claim.bundle, claim.config, claim.since) == ("/b", "/b/config.json", "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule(255)],
        [rule(1, permissions="m")],
        [rule(-1)],
        [rule(-1, major=-1, kind=97, permissions="rwm")],
        [rule(1), rule(-1, major=-1)],
        [rule(77)],
        [rule(None)],
        [rule(1, kind=98)],
        [rule(1, kind="c c"), rule(1, kind=10**9)],
    ],
)
def test_what_opens_no_single_gpu_of_this_host_holds_none(tmp_path: Path, rules: list[dict[str, Any]]) -> None:
    keep(tmp_path, *rules)
    assert found(tmp_path) == []


def test_a_container_whose_first_process_is_gone_holds_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    keep(tmp_path, rule(1), pid=child.pid)
    assert len(found(tmp_path)) == 1
    child.kill()
    child.wait()
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '"major":195',
        '[{"major":195}]',
        '{"major":195,"init_process_pid":"x"}',
        '{"init_process_pid":1,"init_process_start":1,"config":[],"major":195}',
        '{"init_process_pid":1,"init_process_start":1,"config":{"cgroups":3,"labels":7,"Hooks":[]},"major":195}',
        '{"major":195,"a":' + "[" * 100_000,
        "\0" * 5000 + '"major":195',
    ],
)
def test_a_state_that_makes_no_sense_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/state.json").write_text(text)
    keep(tmp_path, rule(2))
    assert [claim.id for claim in found(tmp_path)] == ["c1"]


def test_roots_that_are_not_there_or_no_folders_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert recovery.running(GPUS, (str(tmp_path / "none"), str(tmp_path / "file"))) == recovery.Look()


def test_without_the_hosts_gpus_no_unknown_container_is_told(tmp_path: Path) -> None:
    keep(tmp_path, rule(1))
    assert recovery.running({}, (str(tmp_path),)).claims == ()


@pytest.mark.parametrize("record", ["", "{}", "[]", "null", "x", '{"id": "c1"}', "[" * 100_000])
def test_a_record_that_is_none_leaves_a_container_as_any_other(tmp_path: Path, record: str) -> None:
    keep(tmp_path, rule(2), labels=[f"gpulatch.io/record={record}", "gpulatch.io/original=x"])
    (claim,) = found(tmp_path)
    assert (claim.policy, [device.index for device in claim.devices]) == ("shared", [2])


@pytest.mark.parametrize(
    ("root", "known"),
    [
        ("/run/runc", True),
        ("/run/docker/runtime-runc/moby", True),
        ("/run/docker/runtime-crun/other", True),
        ("/run/containerd/runc/k8s.io", True),
        ("/run/containerd/runc", False),
        ("/run/docker/other/moby", False),
        ("/run/runc/deeper", False),
        ("/somewhere", False),
    ],
)
def test_a_root_that_nobody_would_look_at_is_to_be_remembered(
    monkeypatch: pytest.MonkeyPatch, root: str, known: bool
) -> None:
    monkeypatch.undo()  # the real roots
    assert recovery.is_default_root(root) is known


@pytest.mark.parametrize(
    ("rules", "unlimited"),
    [
        ([rule(-1, major=-1, kind=97, permissions="rwm")], True),
        ([rule(-1, permissions="rw")], True),
        ([rule(None, permissions="rw")], True),
        ([rule(0, major=-1, permissions="rw")], True),
        ([rule(-1, major=-1, permissions="m")], False),
        ([rule(3)], False),
        ([], False),
    ],
)
def test_who_may_open_every_gpu_is_named(tmp_path: Path, rules: list[dict[str, Any]], unlimited: bool) -> None:
    keep(tmp_path, *rules, labels=["bundle=/b", "nerdctl/name=web"])
    assert recovery.running(GPUS, (str(tmp_path),)).unlimited == (("web (c1)",) if unlimited else ())


@pytest.mark.parametrize("spaces", ["", " ", "\n  "])
def test_crun_keeps_the_engines_own_spelling_of_a_rule(tmp_path: Path, spaces: str) -> None:
    me = Process.of(os.getpid())
    assert me
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/status").write_text(json.dumps({"pid": me.pid, "process-start-time": me.start}))
    text = '{"linux":{"resources":{"devices":[{"access":"rwm","allow":false},{"allow":true,"access":"rwm"}]}}}'
    (tmp_path / "c1/config.json").write_text(text.replace(":", f":{spaces}").replace(",", f",{spaces}"))
    assert recovery.running(GPUS, (str(tmp_path),)).unlimited == ("c1",)
