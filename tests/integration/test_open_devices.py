"""Containers whose spec opens GPUs by itself: one by one they are booked, all at once they are reported or refused."""

from pathlib import Path
from typing import Any

import pytest
from drivers.bundle import Bundle
from drivers.host import Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

ALLOW_ALL = {"allow": True, "access": "rwm"}
WILDCARD = {"allow": True, "type": "c", "major": 195, "access": "rwm"}
GPU_NODES = [f"/host-dev/nvidia{minor}" for minor in range(8)]


def opening(folder: Path, name: str, *rules: dict[str, Any]) -> Bundle:
    bundle = Bundle(folder, name).with_host_dev()
    bundle.spec["linux"]["resources"]["devices"].extend(rules)
    return bundle.save()


def rule(minor: int) -> dict[str, Any]:
    return {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rwm"}


def settings(text: str) -> None:
    Path("/etc/gpulatch/config.toml").write_text(f"[defaults]\n{text}\n")


def test_a_gpu_opened_by_rule_is_booked_and_nothing_else_opens(host: Host, tmp_path: Path) -> None:
    assert host.start(opening(tmp_path, "a", rule(4)).path, "a").returncode == 0
    assert host.held() == {"a": [3]}
    answers = host.open_inside("a", GPU_NODES)
    assert [path for path in GPU_NODES if answers[path] == "ENXIO"] == ["/host-dev/nvidia4"]


def test_a_count_beside_a_device_gets_exactly_its_count(host: Host, tmp_path: Path) -> None:
    assert host.start(opening(tmp_path, "a", rule(7)).asking_for("any:1").path, "a").returncode == 0
    answers = host.open_inside("a", GPU_NODES)
    assert [path for path in GPU_NODES if answers[path] == "ENXIO"] == ["/host-dev/nvidia1"]


@pytest.mark.parametrize("rule_", [ALLOW_ALL, WILDCARD], ids=["allow all", "wildcard"])
def test_a_container_that_opens_everything_starts_untouched_and_is_reported(
    host: Host, tmp_path: Path, rule_: dict[str, Any]
) -> None:
    free = opening(tmp_path, "free", rule_)
    before = free.config.read_bytes()
    assert host.start(free.path, "free").returncode == 0
    assert host.events("free")[0]["notes"] == []  # nobody holds anything: nothing to say
    assert host.start(Bundle(tmp_path, "holder").asking_for("any:1").path, "holder").returncode == 0
    late = opening(tmp_path, "late", rule_)
    done = host.start(late.path, "late")
    assert (done.returncode, done.stderr) == (0, "")
    (note,) = host.events("late")[0]["notes"]
    assert "also those that container holder holds exclusively" in note
    assert free.config.read_bytes() == before
    assert late.files() == ["config.json"]
    assert list(host.held()) == ["holder"]


def test_it_is_refused_when_the_settings_say_so(host: Host, tmp_path: Path) -> None:
    settings('unlimited_devices = "refuse"')
    assert host.start(opening(tmp_path, "early", ALLOW_ALL).path, "early").returncode == 0
    assert host.start(Bundle(tmp_path, "holder").asking_for("any:1").path, "holder").returncode == 0
    done = host.start(opening(tmp_path, "late", ALLOW_ALL).path, "late")
    assert done.returncode == 1
    assert done.stderr.startswith("gpulatch: container late, linux.resources.devices: its device rules open every GPU")
    asking = host.start(opening(tmp_path, "asking", ALLOW_ALL).asking_for("any:1").path, "asking")
    assert asking.returncode == 1


@pytest.mark.parametrize("breakage", ["settings", "ledger", "state directory", "no driver"])
def test_nothing_broken_with_us_stops_a_container_that_opens_everything(
    host: Host, tmp_path: Path, breakage: str
) -> None:
    state = Path("/run/gpulatch")
    if breakage == "settings":
        Path("/etc/gpulatch/config.toml").write_text("[broken")
    elif breakage == "no driver":
        host.run(["umount", "-l", "/proc/driver"])
    else:
        state.mkdir(mode=0o700 if breakage == "ledger" else 0o755)
        (state / "ledger.json").write_text("{")
    done = host.start(opening(tmp_path, "a", ALLOW_ALL).path, "a")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_restart_under_the_same_id_gets_the_same_gpus(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "a").asking_for("any:2").path, "a").returncode == 0
    bundle = Bundle(tmp_path, "b").asking_for("any:2")
    assert host.start(bundle.path, "b").returncode == 0
    assert host.held() == {"a": [0, 1], "b": [2, 3]}
    for container in ("a", "b"):
        host.runtime("delete", "--force", container)
    assert host.start(bundle.path, "b").returncode == 0
    assert host.held() == {"b": [2, 3]}  # a fresh container would get 0 and 1


def test_the_settings_decide_what_a_lone_all_and_a_busy_count_mean(host: Host, tmp_path: Path) -> None:
    settings('lone_all = "none"\ncount_when_busy = "share"')
    image = Bundle(tmp_path, "image").asking_for("all", "NVIDIA_VISIBLE_DEVICES")
    before = image.config.read_bytes()
    assert host.start(image.path, "image").returncode == 0
    assert image.config.read_bytes() == before
    assert host.start(Bundle(tmp_path, "a").asking_for("any:8+policy=shared").path, "a").returncode == 0
    assert host.start(Bundle(tmp_path, "b").asking_for("any:2").path, "b").returncode == 0
    assert host.held() == {"a": list(range(8)), "b": [0, 1]}
    assert {claim["id"]: claim["policy"] for claim in host.claims()} == {"a": "shared", "b": "shared"}


@pytest.mark.parametrize("accept", ["privileged", "never"])
def test_variables_that_do_not_count_ask_for_nothing(host: Host, tmp_path: Path, accept: str) -> None:
    settings(f'accept_env = "{accept}"')
    bundle = Bundle(tmp_path, "a").asking_for("any:1").asking_for("0", "NVIDIA_VISIBLE_DEVICES")
    before = bundle.config.read_bytes()
    assert host.start(bundle.path, "a").returncode == 0
    assert bundle.config.read_bytes() == before
    assert host.held() == {}
    assert host.start(Bundle(tmp_path, "b").annotated("gpulatch.io/gpus", "any:1").path, "b").returncode == 0
    assert host.held() == {"b": [0]}


def test_a_source_that_may_not_ask_for_exclusive_is_refused_clearly(host: Host, tmp_path: Path) -> None:
    settings('allow_exclusive_from = ["docker"]')
    done = host.start(Bundle(tmp_path, "a").asking_for("any:1").path, "a")
    assert done.returncode == 1
    assert "policy exclusive" in done.stderr
    assert "allow_exclusive_from" in done.stderr
    assert host.start(Bundle(tmp_path, "b").asking_for("any:1+policy=shared").path, "b").returncode == 0
