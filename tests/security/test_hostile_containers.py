"""What a hostile tenant or an unlucky moment could try, on real runc and the kernel's device filter."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drivers.bundle import Bundle
from drivers.host import ROOT, RUNTIME, Host, private_directory

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

GPU_NODES = [f"/host-dev/nvidia{minor}" for minor in range(8)]
RW = {"allow": True, "access": "rw"}


def opened(host: Host, container: str) -> list[int]:
    """The minors of the GPU nodes that the kernel lets the container open."""
    answers = host.open_inside(container, GPU_NODES)
    return [minor for minor, path in enumerate(GPU_NODES) if answers[path] == "ENXIO"]


def test_one_bundle_started_under_many_ids_at_once_shares_no_gpu(host: Host, tmp_path: Path) -> None:
    for round_ in range(4):
        bundle = Bundle(tmp_path, f"b{round_}").asking_for("any:1").with_host_dev()
        names = [f"m{round_}-{i}" for i in range(4)]
        processes = []
        for name in names:
            command = [RUNTIME, "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path), name]
            with open(tmp_path / name, "w") as log:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        codes = dict(zip(names, [process.wait(timeout=60) for process in processes], strict=True))
        started = [name for name, code in codes.items() if code == 0]
        assert started
        held = host.held()
        assert sorted(held) == sorted(started)
        minors = [opened(host, name) for name in started]
        assert all(len(found) == 1 for found in minors)
        assert len({found[0] for found in minors}) == len(started)
        for name in names:
            if codes[name]:
                assert "is being started from this file right now" in (tmp_path / name).read_text()
            host.runtime("delete", "--force", name)


@pytest.mark.parametrize(
    "rule",
    [
        {**RW, "major": 195, "minor": 7},
        {**RW, "type": "a", "major": 195, "minor": 7},
        {**RW, "type": "c", "major": 195 - 2**32, "minor": 7},
        {**RW, "type": "c", "major": 195, "minor": 7 + 2**32},
        {**RW, "type": "c", "major": "195", "minor": "7"},
        {"Allow": True, "Type": "c", "Major": 195, "Minor": 7, "Access": "rw"},
    ],
    ids=json.dumps,
)
def test_a_rule_in_disguise_never_opens_a_gpu(host: Host, bundle: Bundle, rule: dict[str, Any]) -> None:
    bundle.spec["linux"]["resources"]["devices"].append(rule)
    done = host.start(bundle.asking_for("any:1").with_host_dev().path, "c1")
    assert done.returncode == 1
    assert done.stderr.startswith("gpulatch: container spec")
    assert done.stderr.count("\n") == 1
    assert host.held() == {}


@pytest.mark.parametrize("place", ["linux", "linux.resources"])
def test_a_second_spelling_of_a_section_does_not_replace_ours(host: Host, bundle: Bundle, place: str) -> None:
    smuggled = {"devices": [{**RW, "type": "c", "major": 195, "minor": 7}]}
    if place == "linux":
        bundle.spec["linux"]["Resources"] = smuggled
    else:
        bundle.spec["linux"]["resources"]["Devices"] = smuggled["devices"]
    done = host.start(bundle.asking_for("any:1").path, "c1")
    assert done.returncode == 1
    assert "has the key" in done.stderr


def test_a_request_that_only_runc_would_see_is_not_lost_silently(host: Host, bundle: Bundle) -> None:
    bundle.spec["process"]["Env"] = ["GPULATCH_GPUS=any:1"]
    done = host.start(bundle.save().path, "c1")
    assert done.returncode == 1
    assert 'has the key "Env"' in done.stderr


def test_a_long_request_does_not_block_the_host(host: Host, tmp_path: Path) -> None:
    done = host.start(Bundle(tmp_path, "a").annotated("gpulatch.io/gpus", "0" + "," * 9_000_000).path, "a")
    assert done.returncode == 1
    assert len(done.stderr) < 400
    assert host.start(Bundle(tmp_path, "b").asking_for("any:1").path, "b").returncode == 0


def test_a_restored_container_never_keeps_gpus_that_are_no_longer_booked(
    host: Host, bundle: Bundle, tmp_path: Path
) -> None:
    bundle.annotated("gpulatch.io/gpus", "any:1").running("true")
    assert host.runtime("run", "--bundle", str(bundle.path), "c1").returncode == 0
    done = host.runtime("restore", "--image-path", str(tmp_path), "--bundle", str(bundle.path), "c2")
    assert done.returncode == 1
    assert "cannot bring back what was on the GPU" in done.stderr


def test_observe_takes_back_what_enforce_once_wrote(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "b").asking_for("any:1").with_host_dev()
    original = bundle.config.read_bytes()
    assert host.start(bundle.path, "first").returncode == 0
    host.runtime("delete", "--force", "first")
    assert host.start(Bundle(tmp_path, "x").asking_for("0+policy=exclusive").path, "x").returncode == 0
    Path("/etc/gpulatch/config.toml").write_text('[runtime.gpulatch-runtime]\nmode = "observe"\n')
    assert host.start(bundle.path, "second").returncode == 0
    assert opened(host, "second") == []
    assert bundle.config.read_bytes() == original


LIST = "/var/run/nvidia-container-devices"
WORDS_TO_NVIDIA: list[tuple[list[str], dict[str, str], str]] = [
    (["NVIDIA_VISIBLE_DEVICES=all", "GPULATCH_GPUS=void"], {}, ""),
    (["CUDA_VERSION=9.0"], {}, ""),
    ([], {"cdi.k8s.io/x": "nvidia.com/gpu=all"}, ""),
    ([], {}, f"{LIST}/0"),
]


def handed_to_nvidias_runtime(
    host: Host, bundle: Bundle, folder: Path, recorder: Path, words: tuple[list[str], dict[str, str], str]
) -> dict[str, Any]:
    """The spec that it gets. The recorder stands in for it, which needs a real driver; what it is handed is real."""
    env, annotations, mount = words
    nvidia = folder / "nvidia-container-runtime"
    recorder.rename(nvidia)
    launcher = private_directory(folder / "private", "gpulatch-nvidia", nvidia)
    for name, text in annotations.items():
        bundle.annotated(name, text)
    if mount:
        bundle.mounting(mount, "/dev/null", "rbind")
    bundle.env(*env)
    done = host.run([str(launcher), "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path), "c1"])
    assert done.returncode == 0, done.stderr
    handed = bundle.on_disk()
    assert not [name for name in handed["annotations"] if name.startswith("cdi.k8s.io/")]
    assert not [mount for mount in handed["mounts"] if LIST in mount["destination"]]
    return handed


def said_to_nvidia(handed: dict[str, Any]) -> list[str]:
    return [entry for entry in handed["process"]["env"] if entry.startswith("NVIDIA_V")]


@pytest.mark.parametrize("words", WORDS_TO_NVIDIA)
def test_nvidias_runtime_below_us_gets_no_unbooked_gpu_to_hand_out(
    host: Host, bundle: Bundle, tmp_path: Path, recorder: Path, words: tuple[list[str], dict[str, str], str]
) -> None:
    """Where none of these words counts."""
    Path("/etc/gpulatch/config.toml").write_text(
        '[defaults]\nlone_all = "none"\nsources = ["gpulatch_gpus", "nvidia_visible_devices", "legacy_image"]\n'
    )
    handed = handed_to_nvidias_runtime(host, bundle, tmp_path, recorder, words)
    assert said_to_nvidia(handed) == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert host.claims() == []


@pytest.mark.parametrize("words", WORDS_TO_NVIDIA[1:])
def test_nvidias_runtime_below_us_gets_exactly_what_is_booked(
    host: Host, bundle: Bundle, tmp_path: Path, recorder: Path, words: tuple[list[str], dict[str, str], str]
) -> None:
    """Where they count."""
    Path("/etc/gpulatch/config.toml").write_text(
        '[defaults]\nsources = ["cdi_annotations", "volume_mounts", "legacy_image"]\n'
    )
    handed = handed_to_nvidias_runtime(host, bundle, tmp_path, recorder, words)
    (claim,) = host.claims()
    uuids = ",".join(device["uuid"] for device in claim["devices"])
    assert said_to_nvidia(handed) == [f"NVIDIA_VISIBLE_DEVICES={uuids}"]
    assert len(claim["devices"]) == (1 if words[2] else 8)


def test_a_foreign_mark_does_not_stop_a_container_without_a_request(host: Host, bundle: Bundle) -> None:
    bundle.annotated("gpulatch.io/original", "x").annotated("gpulatch.io/edited", "y").running("true")
    done = host.runtime("run", "--bundle", str(bundle.path), "c1")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_deleted_working_directory_is_no_obstacle(host: Host, tmp_path: Path) -> None:
    for number, request in enumerate(("", "any:1")):
        bundle = Bundle(tmp_path, f"b{number}").asking_for(request).running("true")
        gone = tmp_path / "gone"
        gone.mkdir()
        script = 'rmdir "$PWD"; exec "$@"'
        command = ["sh", "-c", script, "sh", RUNTIME, "--root", ROOT, "run", "--bundle", str(bundle.path), f"c{number}"]
        done = host.run(command, cwd=gone)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_ends_the_wait_without_a_traceback(host: Host, bundle: Bundle) -> None:
    assert host.gpulatch("probe").returncode == 0
    hold = (
        "import fcntl, time; f = open('/run/gpulatch/lock', 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(99)"
    )
    keeper = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert keeper.stdout
        keeper.stdout.readline()
        command = [RUNTIME, "create", "--bundle", str(bundle.asking_for("0").path), "c1"]
        done = host.run(["timeout", "--signal=INT", "1", *command])
        assert done.returncode == 124
        assert "Traceback" not in done.stderr
    finally:
        keeper.kill()
        keeper.wait()


@pytest.mark.parametrize(("major", "minor"), [(-4294967101, 1), ((1 << 32) + 195, 1), (195, -4294967295)])
def test_a_device_number_that_is_cut_to_a_gpus_is_refused(host: Host, tmp_path: Path, major: int, minor: int) -> None:
    """crun cuts what is beyond 32 bits, runc negative numbers: the GPU would be open, and nobody would know."""
    assert host.start(Bundle(tmp_path, "owner").asking_for("any:8").path, "owner").returncode == 0
    bundle = Bundle(tmp_path, "thief")
    rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rwm"}
    bundle.spec["linux"]["resources"]["devices"].append(rule)
    done = host.start(bundle.save().path, "thief")
    assert done.returncode == 1
    assert "held by container owner" in done.stderr
    host.runtime("delete", "--force", "owner")
    done = host.start(bundle.path, "thief")
    assert "can be read in more than one way" in done.stderr


def test_a_forged_record_beside_a_request_for_nothing_books_nothing(host: Host, tmp_path: Path) -> None:
    real = Bundle(tmp_path, "real").asking_for("any:8")
    assert host.start(real.path, "real").returncode == 0
    marks = real.on_disk()["annotations"]
    host.runtime("delete", "--force", "real")
    evil = Bundle(tmp_path, "evil").asking_for("none")
    record = {**json.loads(marks["gpulatch.io/record"]), "id": "evil", "config": str(evil.config)}
    evil.annotated("gpulatch.io/record", json.dumps(record)).annotated("gpulatch.io/claim", marks["gpulatch.io/claim"])
    assert host.start(evil.path, "evil").returncode == 0
    assert host.claims() == []
