"""Bad input gets one clear line naming what, where and what to do; nothing is changed and nobody else is harmed."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import PRIVATE, ROOT, RUNTIME, Done, Host, private_directory

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")


def refused(done: Done, *parts: str) -> str:
    """The one line of a refusal."""
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("gpulatch: ")
    for part in parts:
        assert part in lines[0]
    return lines[0]


def with_log(host: Host, bundle: Bundle, log: Path) -> Done:
    return host.runtime("--log", str(log), "--log-format", "json", "create", "--bundle", str(bundle.path), "c1")


def ambiguous(host: Host) -> str:
    """A prefix that fits several GPUs of a host: all get UUIDs that begin alike."""
    for folder in Path("/proc/driver/nvidia/gpus").iterdir():
        text = (folder / "information").read_text()
        number = folder.name[5:7]
        lines = [
            f"GPU UUID: \t GPU-12345678-0000-0000-0000-0000000000{number}" if line.startswith("GPU UUID") else line
            for line in text.splitlines()
        ]
        (folder / "information").write_text("\n".join(lines) + "\n")
    return "GPU-12345678"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "no-gpu-has-128MiB-to-run",
            ['token "no-gpu-has-128MiB-to-run"', "env NVIDIA_VISIBLE_DEVICES", "use one of: all"],
        ),
        ("0,99", ['GPU "99"', "no such GPU, this host has GPUs 0-7", "gpulatch probe"]),
        ("GPU-0000000000", ["no such GPU"]),
        ("any:9", ["9 free GPUs", "this host has 8 whole GPUs", "ask for at most 8"]),
        ("0+policy=mine", ['option "policy=mine"', "policy=exclusive|shared|monitor"]),
        ("any:2+numa=6", ["no whole GPU near NUMA node 6, NUMA nodes with GPUs: 1,3,5,7", "drop numa="]),
        ("any:2+link=pix+policy=exclusive,0+policy=shared", ["another item says policy=exclusive"]),
        ("0:1", ["MIG"]),
    ],
)
def test_a_request_that_cannot_be_met(host: Host, bundle: Bundle, tmp_path: Path, text: str, parts: list[str]) -> None:
    bundle.asking_for(text, "NVIDIA_VISIBLE_DEVICES")
    before = bundle.config.read_bytes()
    line = refused(with_log(host, bundle, tmp_path / "log.json"), *parts)
    record = json.loads((tmp_path / "log.json").read_text())
    assert (record["level"], record["msg"]) == ("error", line)
    assert bundle.config.read_bytes() == before
    assert bundle.files() == ["config.json"]
    assert host.held() == {}
    assert host.containers() == []


def test_an_ambiguous_prefix(host: Host, bundle: Bundle) -> None:
    prefix = ambiguous(host)
    refused(host.start(bundle.asking_for(prefix).path, "c1"), f'GPU "{prefix}"', "fits GPUs 0,1,2", "more digits")


@pytest.mark.parametrize("kind", ["broken", "truncated", "no object", "huge", "fifo", "link", "hard link", "directory"])
def test_a_spec_that_cannot_be_used(host: Host, bundle: Bundle, kind: str) -> None:
    bundle.asking_for("any:1")
    whole = bundle.config.read_bytes()
    real = bundle.path / "real.json"
    if kind in ("link", "hard link"):
        bundle.config.rename(real)
        bundle.config.symlink_to("real.json") if kind == "link" else os.link(real, bundle.config)
    elif kind in ("fifo", "directory"):
        bundle.config.unlink()
        os.mkfifo(bundle.config) if kind == "fifo" else bundle.config.mkdir()
    else:
        contents = {
            "broken": whole.replace(b"{", b"{,", 1),
            "truncated": whole[:-20],
            "no object": b"[" + whole + b"]",
            "huge": whole[:-1] + b" " * (17 << 20) + b"}",
        }
        bundle.config.write_bytes(contents[kind])
    before = sorted(os.listdir(bundle.path))
    if kind == "directory":  # no reader can read it: runc says so
        assert host.start(bundle.path, "c1").returncode != 0
    else:
        refused(host.start(bundle.path, "c1"), str(bundle.config))
    assert sorted(os.listdir(bundle.path)) == before
    assert host.held() == {}


@pytest.mark.parametrize("kind", ["foreign owner", "writable by others"])
def test_a_bundle_that_others_could_change(host: Host, bundle: Bundle, kind: str) -> None:
    bundle.asking_for("any:1")
    os.chown(bundle.path, 1000, 1000) if kind == "foreign owner" else bundle.path.chmod(0o777)
    refused(host.start(bundle.path, "c1"), "bundle directory", str(bundle.path), "chown root")
    assert bundle.files() == ["config.json"]


@pytest.mark.parametrize("kind", ["mode", "owner", "link", "file", "read-only"])
def test_a_state_directory_that_is_not_ours(host: Host, bundle: Bundle, kind: str) -> None:
    state = Path("/run/gpulatch")
    if kind == "file":
        state.write_text("")
    elif kind == "link":
        state.symlink_to("/tmp")
    elif kind == "read-only":
        subprocess.run(["mount", "--bind", "/run", "/run"], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", "/run"], check=True)
    else:
        state.mkdir(mode=0o755 if kind == "mode" else 0o700)
        if kind == "owner":
            os.chown(state, 1000, 1000)
    bundle.asking_for("any:1")
    before = bundle.config.read_bytes()
    try:
        command = [RUNTIME, "--root", str(bundle.path.parent / "root"), "create", "--bundle", str(bundle.path), "c1"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    finally:
        if kind == "read-only":
            subprocess.run(["umount", "/run"], check=True)
        elif kind in ("file", "link"):
            state.unlink()
    refused(done, "state directory, /run/gpulatch")
    assert bundle.config.read_bytes() == before


def test_a_rootless_caller(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    bundle.asking_for("any:1").config.chmod(0o644)
    subprocess.run(["cp", "-r", str(PRIVATE), str(tmp_path / "private")], check=True)
    for path in [bundle.path, tmp_path, *tmp_path.parents]:
        if path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
    launcher = str(tmp_path / "private/bin/gpulatch-runtime")
    done = host.run([*user, launcher, "create", "--bundle", str(bundle.path), "c1"])
    refused(done, "rootless caller", "uid 1000", "rootful engine")


def test_a_missing_low_level_runtime(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    launcher = private_directory(tmp_path / "private", "gpulatch-runtime", tmp_path / "gone")
    log = tmp_path / "log.json"
    command = [str(launcher), "--log", str(log), "--log-format", "json", "create", "--bundle", str(bundle.path), "c1"]
    line = refused(host.run(command), "low-level runtime", "ENOENT")
    assert json.loads(log.read_text())["msg"] == line


def test_a_low_level_runtime_that_cannot_run_leaves_nothing_booked(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "runc").write_text("no program")
    launcher = private_directory(tmp_path / "private", "gpulatch-runtime", tmp_path / "runc")
    done = host.run([str(launcher), "create", "--bundle", str(bundle.asking_for("any:1").path), "c1"])
    refused(done, "low-level runtime", "EACCES")
    assert host.held() == {}


@pytest.mark.parametrize("container", ["..", ".", "a/b", "a b", "c\n1", "é"])
def test_a_container_id_that_could_lead_astray(host: Host, bundle: Bundle, container: str) -> None:
    refused(host.start(bundle.asking_for("any:1").path, container), "container id", "is not a valid id")
    assert host.held() == {}


def test_a_driver_that_is_not_loaded(host: Host, bundle: Bundle) -> None:
    host.run(["umount", "-l", "/proc/driver"])
    refused(host.start(bundle.asking_for("any:1").path, "c1"), "NVIDIA driver", "not loaded", "modprobe nvidia")


def test_a_broken_settings_file_stops_gpu_containers_with_its_line(host: Host, bundle: Bundle) -> None:
    Path("/etc/gpulatch/config.toml").write_text("[runtime.gpulatch-runtime]\nmode = observe\n")
    refused(host.start(bundle.asking_for("any:1").path, "c1"), "/etc/gpulatch/config.toml", "line 2")


def test_a_mount_over_a_granted_node(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("0").mounting("/dev/nvidia1", "/dev/null", "bind")
    refused(host.start(bundle.path, "c1"), "/dev/nvidia1", "mount")
    assert host.held() == {}


@pytest.mark.parametrize("wanted", ["3", "GPU-ffffffff", "one"])
def test_a_choice_of_cuda_devices_outside_the_grant(host: Host, bundle: Bundle, wanted: str) -> None:
    bundle.asking_for("any:2").env(f"CUDA_VISIBLE_DEVICES={wanted}")
    refused(host.start(bundle.path, "c1"), f'CUDA_VISIBLE_DEVICES="{wanted}"')
    assert host.held() == {}


def test_a_restore_of_a_gpu_container(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    bundle.asking_for("0")
    done = host.runtime("restore", "--image-path", str(tmp_path), "--bundle", str(bundle.path), "c1")
    refused(done, "cannot bring back what was on the GPU")


def test_an_edit_to_what_gpulatch_wrote_is_not_lost_silently(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:1").running("true")
    assert host.runtime("run", "--bundle", str(bundle.path), "c1").returncode == 0
    changed = bundle.on_disk()
    changed["hostname"] = "changed"
    bundle.config.write_text(json.dumps(changed))
    refused(host.start(bundle.path, "c1"), str(bundle.config), "was changed after gpulatch wrote it")
    assert bundle.on_disk() == changed


def test_an_unforeseen_error_is_one_line_too_and_keeps_its_traceback(
    host: Host, bundle: Bundle, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    launcher = private_directory(private, "gpulatch-runtime", "/usr/sbin/runc")
    (private / "runtime_wrapper").unlink()
    subprocess.run(["cp", "-r", str(PRIVATE / "runtime_wrapper"), str(private)], check=True)
    (private / "runtime_wrapper/placement.py").open("a").write(
        "\n\ndef choose(*args):\n    raise ZeroDivisionError('boom')\n"
    )
    done = host.run([str(launcher), "--root", ROOT, "create", "--bundle", str(bundle.asking_for("any:1").path), "c1"])
    refused(done, "internal error", "/run/gpulatch/traceback.txt", "ZeroDivisionError: boom", "GL-9001")
    assert "in choose" in Path("/run/gpulatch/traceback.txt").read_text()
    assert host.held() == {}
