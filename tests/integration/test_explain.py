"""`gpulatch explain` on real containers: what was asked, what won, why, and what to do about what is wrong."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from drivers.bundle import Bundle
from drivers.engine import wait_until
from drivers.host import CHECKOUT, LOG, STATE, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

SETTINGS = Path("/etc/gpulatch/config.toml")


def explained(host: Host, what: str, code: int = 0) -> str:
    done = host.gpulatch("explain", what)
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout


def start(host: Host, folder: Path, name: str, text: str) -> str:
    """What the user of a refused container is told."""
    return host.start(Bundle(folder, name).asking_for(text).path, name).stderr


def test_a_granted_container_is_told_from_the_wish_to_the_edits(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "web").asking_for("any:2").env("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=1")
    assert host.start(bundle.path, "web").returncode == 0
    text = explained(host, "web")
    assert "Container web, started without an engine, runtime gpulatch-runtime on runc" in text
    assert 'env GPULATCH_GPUS: "any:2": counts' in text
    assert 'env NVIDIA_VISIBLE_DEVICES: "all": not reached: an earlier place counts' in text
    assert (
        "says nothing: annotation gpulatch.io/gpus, docker DeviceRequests, ctr --gpus, annotations cdi.k8s.io/*,"
        " mounts /var/run/nvidia-container-devices, env DOCKER_RESOURCE_*, env NVIDIA_MIG_CONFIG, env CUDA_VERSION,"
        " device rules of the spec" in text
    )
    assert re.search(r"GPU 0  GPU-[-0-9a-f]{36}  0000:03:00.0  exclusive", text)
    assert "because: GPUs 0,1: most NVLink bandwidth between them" in text
    assert "device node /dev/nvidia1 195:1 added" in text
    assert 'variable NVIDIA_VISIBLE_DEVICES="void" set (was "all")' in text
    assert "CUDA_VISIBLE_DEVICES" not in text  # it was left as it is
    assert re.search(r"Time, in ms\n  python [\d.]+, spec .*lock .*write .*all", text)
    assert "it is running and holds GPUs 0,1 (exclusive)" in text
    assert "To know" not in text


def test_what_the_settings_leave_out_is_told_with_the_setting(host: Host, tmp_path: Path) -> None:
    SETTINGS.write_text('[defaults]\naccept_env = "never"\n')
    assert start(host, tmp_path, "web", "any:2") == ""
    text = explained(host, "web")
    assert 'env GPULATCH_GPUS: "any:2": left out: no variable counts here (accept_env = never)' in text
    assert "it asked for no GPU that counts" in text


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("GPULATCH_GPU=any:1", 'variable "GPULATCH_GPU" says nothing here: perhaps GPULATCH_GPUS is meant'),
        ("PLAIN=1", "to get GPUs it has to ask: -e GPULATCH_GPUS=any:1"),
    ],
)
def test_a_container_that_should_have_asked(host: Host, tmp_path: Path, variable: str, told: str) -> None:
    assert host.start(Bundle(tmp_path, "web").env(variable).path, "web").returncode == 0
    assert told in explained(host, "web")


def test_broken_settings_do_not_make_a_wish_unheard(host: Host, tmp_path: Path) -> None:
    SETTINGS.write_text("[broken")
    assert "GL-7001" in start(host, tmp_path, "web", "any:1")
    assert 'env GPULATCH_GPUS: "any:1": not judged: the settings could not be read' in explained(host, "web")


def test_a_refusal_after_booking_leaves_nothing_booked_and_nothing_to_end(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "web").asking_for("0").env("CUDA_VISIBLE_DEVICES=7")
    assert host.start(bundle.path, "web").returncode == 1
    assert json.loads((STATE / "ledger.json").read_text())["claims"] == []
    assert start(host, tmp_path, "next", "any:1") == ""
    assert [event["kind"] for event in host.events("web")] == ["refused"]
    text = explained(host, "web")
    assert "asked again now" not in text  # the reason is the container's own
    assert "more: gpulatch explain GL-2003" in text


def test_a_second_start_of_a_running_container_does_not_hide_the_first(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    assert "already holds GPUs" in start(host, tmp_path, "web", "any:1")
    text = explained(host, "web")
    assert "GPU 1  GPU-" in text
    assert re.search(r"Since then\n  .*already holds GPUs 0,1 and is alive", text)


def test_namesakes_are_named(host: Host, tmp_path: Path) -> None:
    for pod in ("pa", "pb"):
        bundle = Bundle(tmp_path, pod).asking_for("any:1").annotated("io.kubernetes.cri.container-name", "main")
        assert host.start(bundle.annotated("io.kubernetes.cri.sandbox-name", pod).path, f"id-{pod}").returncode == 0
    text = explained(host, "main")
    assert "Container pb/main (id-pb)" in text
    assert 'of 2 containers that "main" can mean this is the one seen last; also: pa/main (id-pa)' in text
    assert "pa/main" in explained(host, "pa/main")
    done = host.gpulatch("release", "--force", "main")
    assert "fits id-pa" in done.stderr


def test_an_id_comes_before_a_name(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "one", "any:1") == ""
    impostor = Bundle(tmp_path, "two").asking_for("any:1").annotated("nerdctl/name", "one")
    assert host.start(impostor.path, "two").returncode == 0
    assert "Container one, " in explained(host, "one")
    assert "of container one." in host.gpulatch("release", "--force", "one").stdout


def test_an_ordinary_user_is_told_that_it_takes_root(host: Host) -> None:
    done = host.gpulatch_as("import os; os.seteuid(1000);", "explain", "web")
    assert done.returncode == 1
    assert "GL-5004" in done.stderr


def test_a_privileged_container_that_came_first_is_told(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "first", "7") == ""  # from then on its state root is looked at
    bundle = Bundle(tmp_path, "all")
    bundle.spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})
    assert host.start(bundle.save().path, "all").returncode == 0
    assert "is booked for no GPU, and can open every GPU" in explained(host, "all")
    assert "Not booked, can open every GPU: all" in host.gpulatch("claims").stdout
    assert start(host, tmp_path, "mine", "0+policy=exclusive") == ""
    assert "container all may open every GPU" in explained(host, "mine")
    SETTINGS.write_text('[defaults]\nunlimited_devices = "refuse"\n')
    told = start(host, tmp_path, "late", "1+policy=exclusive")
    assert "policy exclusive" in told
    assert "container all may open every GPU" in told
    assert start(host, tmp_path, "shared", "1") == ""


def test_a_count_filled_up_with_shared_gpus_is_not_refused_for_a_privileged_container(
    host: Host, tmp_path: Path
) -> None:
    SETTINGS.write_text('[defaults]\nunlimited_devices = "refuse"\ncount_when_busy = "share"\n')
    assert start(host, tmp_path, "first", "all") == ""
    bundle = Bundle(tmp_path, "all")
    bundle.spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})
    assert host.start(bundle.save().path, "all").returncode == 0
    assert start(host, tmp_path, "guest", "any:1") == ""
    assert [claim["policy"] for claim in host.claims() if claim["id"] == "guest"] == ["shared"]


def test_a_container_that_asked_for_nothing_and_has_ended(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "plain").path, "plain").returncode == 0
    assert "it is running and holds no GPU" in explained(host, "plain")
    host.runtime("delete", "--force", "plain")
    text = explained(host, "plain")
    assert "it asked for no GPU that counts" in text
    assert "it is not running" in text


def test_what_happened_since(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    host.runtime("delete", "--force", "web")
    assert start(host, tmp_path, "next", "any:1") == ""  # it looks, and the end is seen
    text = explained(host, "web")
    assert re.search(r"Since then\n  [-\d]+ [:\d]+ UTC: was seen to have ended: GPUs 0,1 free again", text)
    assert host.gpulatch("release", "--force", "next").returncode == 0
    assert "GPU 0 released by hand" in explained(host, "next")


def test_a_restart_is_told_as_the_last_start(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    host.runtime("delete", "--force", "web")
    assert start(host, tmp_path, "web", "any:2") == ""
    text = explained(host, "web")
    assert "what this container had before its restart" in text
    assert "1 other start of this container" in text


# what a new user runs into


def test_a_wrong_id(host: Host, tmp_path: Path) -> None:
    told = start(host, tmp_path, "web", "8")
    assert 'GPU "8"' in told
    assert "this host has GPUs 0-7" in told
    assert "see them with: gpulatch probe" in told
    text = explained(host, "web")
    assert told.strip() in text
    assert "a bare number is an index, 8 free ones are any:8" in text
    assert "more: gpulatch explain GL-2002" in text


def test_a_foreign_holder_until_it_is_gone(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "theirs", "4+policy=exclusive") == ""
    assert "held by container theirs (exclusive)" in start(host, tmp_path, "mine", "4")
    text = explained(host, "mine")
    assert "asked again now, it would be refused for the same reason" in text
    host.runtime("delete", "--force", "theirs")
    assert "asked again now, it would get GPU 4: start it again" in explained(host, "mine")


def test_settings_changed_after_the_start_and_settings_that_are_broken(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    time.sleep(0.01)  # so that the file is younger than the event, to the millisecond
    folder = SETTINGS.parent / "config.d"
    folder.mkdir()
    (folder / "20-observe.toml").write_text('[defaults]\nmode = "observe"\n')
    text = explained(host, "web")
    assert f"the settings were changed since: {folder.parent} (" in text
    assert f"{folder} (" in text
    assert "20-observe.toml" in text
    assert "they hold from the container's next start on" in text
    (folder / "20-observe.toml").write_text('[defaults]\nmode = "obsrve"\n')
    told = start(host, tmp_path, "late", "any:2")
    assert f"{folder}/20-observe.toml line 2, [defaults]" in told
    assert told.strip() in explained(host, "late")


def test_a_missing_node_on_the_host(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "first", "0") == ""  # the first look at the GPUs makes what is missing
    os.unlink("/dev/nvidia1")
    assert start(host, tmp_path, "web", "0") == ""  # a container's own node is made all the same
    assert "missing on the host: /dev/nvidia1; run: gpulatch probe" in explained(host, "web")
    assert host.gpulatch("probe").returncode == 0
    assert "missing" not in explained(host, "web")


def test_a_wrong_node_on_the_host(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "0") == ""
    os.unlink("/dev/nvidia1")
    os.mknod("/dev/nvidia1", 0o600 | stat.S_IFCHR, os.makedev(195, 5))
    text = explained(host, "web")
    assert "/dev/nvidia1 of the host is 195:5 instead of 195:1: run: rm /dev/nvidia1; gpulatch probe" in text


def test_a_missing_module(host: Host, tmp_path: Path) -> None:
    host.run(["umount", "/proc/devices"])
    told = start(host, tmp_path, "web", "0")
    assert "kernel module nvidia" in told
    text = explained(host, "web")
    assert "run: modprobe nvidia" in text


def test_a_gpu_that_fell_off_the_bus_under_its_container(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "0,1") == ""
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in os.listdir("/proc/driver/nvidia/gpus"):
        if not name.startswith("0000:03"):
            shutil.copytree(f"/proc/driver/nvidia/gpus/{name}", empty / name)
    host.run(["mount", "--bind", str(empty), "/proc/driver/nvidia/gpus"])
    try:
        assert "GPU 0 of it: gone from this host" in explained(host, "web")
    finally:
        host.run(["umount", "/proc/driver/nvidia/gpus"])


def test_a_container_that_gpulatch_never_saw(host: Host, tmp_path: Path) -> None:
    text = explained(host, "nobody", code=1)
    assert 'gpulatch knows no container "nobody"' in text
    assert "there is no event log" in text
    assert start(host, tmp_path, "web", "any:2") == ""
    assert "gpulatch saw no start of it since" in explained(host, "nobody", code=1)


def test_a_switched_off_runtime_is_told(host: Host, tmp_path: Path) -> None:
    off = CHECKOUT / "build/gpulatch/low-level/gpulatch-runtime/off"
    off.touch()
    try:
        assert start(host, tmp_path, "web", "any:2") == ""
        text = explained(host, "web", code=1)
        assert f"the runtime gpulatch-runtime is switched off: remove {off}" in text
    finally:
        off.unlink()


def test_a_container_under_plain_runc_is_explained_as_found(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "plain")
    bundle.spec["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"}
    )
    command = ["/usr/sbin/runc", "--root", "/run/runc", "run", "--detach", "--bundle", str(bundle.save().path), "plain"]
    assert host.run(command).returncode == 0
    text = explained(host, "plain")
    assert "not started by gpulatch" in text
    assert "it is running and holds GPU 0 (shared)" in text
    host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", "plain"])


# the log


@pytest.mark.parametrize("rubbish", [b"\0" * 5000, b'{"half": ', b"[]\n", b'{"schema": "other"}\n', b"\xff\xfe\n"])
def test_damaged_lines_of_the_log_are_left_out_and_told(host: Host, tmp_path: Path, rubbish: bytes) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    with LOG.open("ab") as file:
        file.write(rubbish)
    text = explained(host, "web")
    assert "it is running and holds GPUs 0,1" in text
    assert "1 line of the event log cannot be read" in text


def test_without_any_log_the_claim_is_told(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    shutil.rmtree(LOG.parent)
    text = explained(host, "web")
    assert "runtime gpulatch-runtime, its start is no longer in the event log" in text
    assert "it is running and holds GPUs 0,1 (exclusive)" in text
    assert 'asked for by env GPULATCH_GPUS: "any:2"' in text
    assert "there is no event log" in text


def test_a_log_that_cannot_be_written_is_told_and_stops_no_container(host: Host, tmp_path: Path) -> None:
    LOG.parent.mkdir(mode=0o777)
    LOG.parent.chmod(0o777)
    assert start(host, tmp_path, "web", "any:2") == ""
    assert host.held() == {"web": [0, 1]}
    text = explained(host, "web")
    assert "it is running and holds GPUs 0,1 (exclusive)" in text
    assert "no event can be written: gpulatch: event log directory, /var/log/gpulatch: owned by uid 0 with" in text


def test_the_json_follows_its_schema(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    start(host, tmp_path, "late", "any:9")
    host.runtime("delete", "--force", "web")
    assert start(host, tmp_path, "next", "any:1") == ""
    schema = json.loads((CHECKOUT / "schemas/explain.json").read_text())
    for name in ("web", "late", "next", "nobody"):
        done = host.gpulatch("explain", "--json", name)
        jsonschema.validate(json.loads(done.stdout), schema)
    events = json.loads((CHECKOUT / "schemas/event.json").read_text())
    assert len(host.events()) == 4
    for event in host.events():
        jsonschema.validate(event, events)


def test_a_container_is_found_by_the_beginning_of_its_id(host: Host, tmp_path: Path) -> None:
    long = "f00d" * 16
    bundle = Bundle(tmp_path, "a").asking_for("any:1")
    assert host.start(bundle.path, long).returncode == 0
    assert f"Container {long[:12]}," in explained(host, long[:12])


def test_no_container_can_move_the_cursor(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "evil").asking_for("any:1\x1b[31m,\x07").annotated("nerdctl/name", "a\x1b[2Jb")
    assert host.start(bundle.path, "evil").returncode == 1
    assert "\x1b" not in explained(host, "evil")


@pytest.mark.parametrize("code", ["GL-4001", "gl-4001"])
def test_a_code_is_explained(host: Host, code: str) -> None:
    text = explained(host, code)
    assert "GL-4001: Fewer free GPUs than asked for" in text
    assert "What to do: Stop a holder" in text


def test_a_code_of_another_version(host: Host) -> None:
    done = host.gpulatch("explain", "GL-0815")
    assert done.returncode == 1
    assert "GL-0815 is no code of this version; those are: GL-1001," in done.stderr


# claims


def heed_interrupts() -> None:
    """A shell's background jobs, and all that they start, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_claims_again_and_again_until_interrupted(host: Host, tmp_path: Path) -> None:
    assert start(host, tmp_path, "web", "any:2") == ""
    output = tmp_path / "output"
    code = "from runtime_wrapper.operate.cli import main; main()"
    with output.open("w") as file:
        watching = subprocess.Popen(
            [sys.executable, "-c", code, "claims", "--watch", "0.1"],
            cwd=CHECKOUT,
            stdout=file,
            stdin=subprocess.DEVNULL,
            preexec_fn=heed_interrupts,
        )
        try:
            wait_until(lambda: output.read_text().count("web") >= 2)
            host.runtime("delete", "--force", "web")
            wait_until(lambda: "No container holds a GPU." in output.read_text())
        finally:
            watching.send_signal(2)
        assert watching.wait(10) == 0
    assert "running" in output.read_text()


def test_claims_show_what_is_left_of_a_container(host: Host, tmp_path: Path) -> None:
    """Its first process is gone and another of its cgroup still has the GPU."""
    bundle = Bundle(tmp_path, "web").asking_for("any:2")
    bundle.spec["linux"]["namespaces"] = [
        {"type": "mount"},
        {"type": "uts"},
    ]  # the host's pids: nobody ends with the first process
    bundle.running("sh", "-c", "sleep 1000 & exec sleep 0.3")
    assert host.start(bundle.path, "web").returncode == 0
    wait_until(lambda: [claim["stage"] for claim in host.claims()] == ["leftover"])
    assert "(sleep) still have GPUs 0,1 (exclusive): end them" in explained(host, "web")
    assert STATE.exists()
