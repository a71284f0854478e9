"""Modes other than enforcing by ourselves: observe, switched off, delegate to NVIDIA's runtime."""

import os
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import ROOT, Host, private_directory

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")


def observe() -> None:
    Path("/etc/gpulatch/config.toml").write_text('[runtime.gpulatch-runtime]\nmode = "observe"\n')


def test_observe_decides_and_changes_nothing(host: Host, bundle: Bundle) -> None:
    observe()
    bundle.asking_for("any:2")
    before = bundle.config.read_bytes()
    done = host.start(bundle.path, "c1")
    assert (done.returncode, done.stderr) == (0, "")
    assert bundle.config.read_bytes() == before
    assert bundle.files() == ["config.json"]
    (claim,) = host.claims()
    assert claim["observed"]
    assert [device["index"] for device in claim["devices"]] == [0, 1]


def test_observed_claims_never_block(host: Host, tmp_path: Path) -> None:
    observe()
    assert host.start(Bundle(tmp_path, "a").asking_for("any:8").path, "a").returncode == 0
    Path("/etc/gpulatch/config.toml").unlink()
    assert host.start(Bundle(tmp_path, "b").asking_for("any:8").path, "b").returncode == 0
    assert {claim["id"]: claim["observed"] for claim in host.claims()} == {"a": True, "b": False}


def test_what_observe_would_refuse_starts_and_is_an_event(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    observe()
    log = tmp_path / "log.json"
    bundle.asking_for("any:99")
    options = ["--log", str(log), "--log-format", "json"]
    done = host.runtime(*options, "run", "--detach", "--bundle", str(bundle.path), "c1")
    assert (done.returncode, done.stderr) == (0, "")
    assert not log.exists() or log.read_text() == ""
    (event,) = host.events("c1")
    assert (event["kind"], event["error"]["code"]) == ("passed", "GL-4001")
    assert "99 free GPUs" in event["error"]["message"]


@pytest.mark.parametrize("fault", ["bad token", "foreign bundle", "no driver", "lost state", "odd id"])
def test_observe_lets_everything_pass(host: Host, bundle: Bundle, fault: str) -> None:
    observe()
    bundle.asking_for("rubbish" if fault == "bad token" else "any:1")
    if fault == "foreign bundle":
        os.chown(bundle.path, 1000, 1000)
    elif fault == "no driver":
        host.run(["umount", "-l", "/proc/driver"])
    elif fault == "lost state":
        Path("/run/gpulatch").mkdir(mode=0o755)
    before = bundle.config.read_bytes()
    done = host.start(bundle.path, "c1" if fault != "odd id" else "a" * 1025)
    if fault == "odd id":  # a file name that long cannot be: runc says so
        assert "gpulatch" not in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")
    assert bundle.config.read_bytes() == before


def test_an_observed_container_that_ended_is_gone_from_the_book(host: Host, bundle: Bundle) -> None:
    observe()
    done = host.runtime("run", "--bundle", str(bundle.asking_for("any:1").running("true").path), "c1")
    assert done.returncode == 0
    assert host.claims() == []


def test_switched_off_a_gpu_request_is_plain_runcs_business(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    launcher = private_directory(tmp_path / "private", "gpulatch-runtime", "/usr/sbin/runc")
    (tmp_path / "private/low-level/gpulatch-runtime/off").touch()
    bundle.asking_for("no such thing")
    before = bundle.config.read_bytes()
    done = host.run([str(launcher), "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path), "c1"])
    assert (done.returncode, done.stderr) == (0, "")
    assert bundle.config.read_bytes() == before
    assert host.claims() == []


def test_delegate_books_and_hands_exact_uuids_to_nvidias_runtime(
    host: Host, bundle: Bundle, tmp_path: Path, recorder: Path
) -> None:
    """The recorder stands in for nvidia-container-runtime, which needs a real driver; what it is handed is real."""
    nvidia = tmp_path / "nvidia-container-runtime"
    recorder.rename(nvidia)
    launcher = private_directory(tmp_path / "private", "gpulatch-nvidia", nvidia)
    bundle.asking_for("any:2")
    done = host.run([str(launcher), "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path), "c1"])
    assert done.returncode == 0, done.stderr
    (claim,) = host.claims()
    uuids = ",".join(device["uuid"] for device in claim["devices"])
    env = bundle.on_disk()["process"]["env"]
    assert f"NVIDIA_VISIBLE_DEVICES={uuids}" in env
    assert not any(entry == "NVIDIA_VISIBLE_DEVICES=void" for entry in env)
    assert "devices" not in bundle.on_disk()["linux"]
    assert claim["runtime"] == "gpulatch-nvidia"
