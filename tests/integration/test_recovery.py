"""The book is found again in what runs, whatever became of the ledger, and containers that nobody booked are found."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers.bundle import Bundle
from drivers.docker import wait_until
from drivers.host import PRIVATE, ROOT, STATE, Host, private_directory

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

LEDGER = STATE / "ledger.json"


def rule(minor: int) -> dict[str, Any]:
    return {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rwm"}


def minor_of(host: Host, index: int) -> int:
    gpus = json.loads(host.gpulatch("probe", "--json").stdout)["gpus"]
    minor: int = gpus[index]["minor"]
    return minor


def three_containers(host: Host, folder: Path) -> list[dict[str, Any]]:
    for name, text in (("own", "any:2"), ("guest", "5"), ("monitor", "all+policy=monitor")):
        bundle = Bundle(folder, name).asking_for(text).annotated("io.kubernetes.cri.container-name", f"the-{name}")
        assert host.start(bundle.path, name).returncode == 0
    claims = host.claims()
    assert sorted(claim["name"] for claim in claims) == ["the-guest", "the-monitor", "the-own"]
    return claims


def downgraded() -> None:
    data = {**json.loads(LEDGER.read_text()), "schema": "gpulatch-ledger/0", "claims": "in another form"}
    LEDGER.write_text(json.dumps(data))


DAMAGES: dict[str, Callable[[], object]] = {
    "deleted": LEDGER.unlink,
    "truncated": lambda: os.truncate(LEDGER, LEDGER.stat().st_size // 2),
    "emptied": lambda: os.truncate(LEDGER, 0),
    "zero-filled": lambda: LEDGER.write_bytes(b"\0" * LEDGER.stat().st_size),
    "downgraded": downgraded,
    "foreign": lambda: LEDGER.write_text('["somebody else\'s"]'),
    "given away": lambda: os.chown(LEDGER, 1000, 1000),
    "a folder": lambda: (LEDGER.unlink(), LEDGER.mkdir()),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_lost_ledger_is_found_again_in_the_running_containers(host: Host, tmp_path: Path, how: str) -> None:
    before = three_containers(host, tmp_path)
    DAMAGES[how]()
    assert sorted(host.claims(), key=lambda claim: claim["since"]) == before  # a reader
    done = host.start(Bundle(tmp_path, "late").asking_for("any:6").path, "late")
    assert "GPU 0 by the-own (own), GPU 1 by the-own (own), GPU 5 by the-guest (guest);" in done.stderr
    assert host.start(Bundle(tmp_path, "next").asking_for("any:5").path, "next").returncode == 0
    assert sorted(host.claims(), key=lambda claim: claim["since"])[:3] == before  # and a writer
    rebuilt = [event for event in host.events() if event["kind"] == "rebuilt"]
    assert len(rebuilt) == 1
    assert "from 3 running containers" in rebuilt[0]["notes"][0]
    assert (STATE / "ledger.bad.json").exists() == (how != "deleted")
    host.runtime("delete", "--force", "own")
    assert "own" not in host.held()


def test_a_state_directory_that_is_gone_is_made_anew_with_the_containers_of_default_roots(
    host: Host, tmp_path: Path
) -> None:
    bundle = Bundle(tmp_path, "a").asking_for("any:2")
    command = [str(private_directory(tmp_path / "p", "gpulatch-runtime", "/usr/sbin/runc")), "--root", "/run/runc"]
    assert host.run([*command, "run", "--detach", "--bundle", str(bundle.path), "a"]).returncode == 0
    before = host.claims()
    shutil.rmtree(STATE)
    assert host.claims() == before
    assert host.start(Bundle(tmp_path, "b").asking_for("any:6").path, "b").returncode == 0
    assert host.held() == {"a": [0, 1], "b": [2, 3, 4, 5, 6, 7]}
    host.run([*command, "delete", "--force", "a"])


def plain_runc(host: Host, bundle: Bundle, container: str, root: str = ROOT) -> None:
    done = host.run(["/usr/sbin/runc", "--root", root, "run", "--detach", "--bundle", str(bundle.path), container])
    assert done.returncode == 0, done


def test_a_gpu_container_under_plain_runc_is_found_and_keeps_its_gpu(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "plain").annotated("io.kubernetes.cri.container-name", "old-job")
    bundle.spec["linux"]["resources"]["devices"].append(rule(minor_of(host, 2)))
    plain_runc(host, bundle.save(), "plain", "/run/runc")
    (claim,) = host.claims()
    assert (claim["name"], claim["policy"], claim["runtime"]) == ("old-job", "shared", "")
    assert claim["source"] == "device rules of the running container"
    assert [device["index"] for device in claim["devices"]] == [2]
    assert host.start(Bundle(tmp_path, "a").asking_for("any:7").path, "a").returncode == 0
    assert host.held()["a"] == [0, 1, 3, 4, 5, 6, 7]
    done = host.start(Bundle(tmp_path, "b").asking_for("2+policy=exclusive").path, "b")
    assert "held by container old-job (plain) (shared)" in done.stderr
    assert [event["kind"] for event in host.events("plain")] == ["found"]
    host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", "plain"])
    assert "plain" not in host.held()
    assert host.start(Bundle(tmp_path, "c").asking_for("any:1").path, "c").returncode == 0
    assert [event["kind"] for event in host.events("plain")] == ["found", "ended"]


def test_a_container_without_gpus_or_with_all_devices_open_holds_none(host: Host, tmp_path: Path) -> None:
    plain_runc(host, Bundle(tmp_path, "none"), "none", "/run/runc")
    everything = Bundle(tmp_path, "every")
    everything.spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})
    plain_runc(host, everything.save(), "every", "/run/runc")
    assert host.claims() == []
    for container in ("none", "every"):
        host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", container])


def test_a_tenants_own_record_gives_nothing_but_what_the_rules_open(host: Host, tmp_path: Path) -> None:
    """Copied from a real one, with its id: only the original that root keeps beside a spec makes it true."""
    real = Bundle(tmp_path, "real").asking_for("any:2")
    assert host.start(real.path, "real").returncode == 0
    marks = real.on_disk()["annotations"]
    record = json.loads(marks["gpulatch.io/record"])
    host.runtime("delete", "--force", "real")
    for name, minor in (("liar", None), ("half-liar", minor_of(host, 7))):
        forged = {**record, "id": name, "root": "/run/runc", "config": str(tmp_path / name / "config.json")}
        bundle = Bundle(tmp_path, name)
        bundle.spec["annotations"] = {**marks, "gpulatch.io/record": json.dumps(forged)}
        if minor is not None:
            bundle.spec["linux"]["resources"]["devices"].append(rule(minor))
        plain_runc(host, bundle.save(), name, "/run/runc")
    (claim,) = host.claims()
    assert (claim["id"], claim["policy"]) == ("half-liar", "shared")
    assert [device["index"] for device in claim["devices"]] == [7]
    for name in ("liar", "half-liar"):
        host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", name])


def test_what_nvidias_own_hook_gave_is_found_by_the_containers_nodes(host: Host, tmp_path: Path) -> None:
    """The hook here only makes the node, for without a driver NVIDIA's own cannot run."""
    hook = tmp_path / "nvidia-container-runtime-hook"
    hook.write_text(
        "#!/bin/sh\n"
        'pid=$(sed "s/.*\\"pid\\":\\([0-9]*\\).*/\\1/")\n'
        f"exec nsenter --target $pid --mount mknod {tmp_path}/rootfs/dev/nvidia{minor_of(host, 4)} c 195 "
        f"{minor_of(host, 4)}\n"
    )
    hook.chmod(0o755)
    bundle = Bundle(tmp_path, "legacy")
    path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
    bundle.spec["hooks"] = {"prestart": [{"path": str(hook), "args": [hook.name, "prestart"], "env": [path]}]}
    plain_runc(host, bundle.save(), "legacy", "/run/runc")
    (claim,) = host.claims()
    assert claim["source"] == "NVIDIA's hook in the running container"
    assert [device["index"] for device in claim["devices"]] == [4]
    host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", "legacy"])


def test_the_hosts_dev_shown_in_a_container_holds_nothing(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "dev").mounting("/dev", "/dev", "rbind", "ro")
    bundle.spec["hooks"] = {"prestart": [{"path": "/bin/true", "args": ["nvidia-container-runtime-hook"]}]}
    bundle.spec["mounts"] = [mount for mount in bundle.spec["mounts"] if mount.get("source") != "tmpfs"]
    plain_runc(host, bundle.save(), "dev", "/run/runc")
    assert host.claims() == []
    host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", "dev"])


def test_a_claim_released_by_hand_is_not_found_again(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "a").asking_for("any:2").path, "a").returncode == 0
    bundle = Bundle(tmp_path, "plain")
    bundle.spec["linux"]["resources"]["devices"].append(rule(minor_of(host, 7)))
    plain_runc(host, bundle.save(), "plain", "/run/runc")
    assert host.held() == {"a": [0, 1], "plain": [7]}
    for container in ("a", "plain"):
        assert host.gpulatch("release", "--force", container).returncode == 0
    assert host.claims() == []
    assert host.start(Bundle(tmp_path, "b").asking_for("any:8").path, "b").returncode == 0
    assert [event["kind"] for event in host.events("plain")] == ["found", "released"]
    host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", "plain"])


def test_a_create_that_is_not_over_when_the_ledger_is_lost_keeps_its_claim(host: Host, tmp_path: Path) -> None:
    """Its low-level runtime has the edited spec and has written no state yet."""
    slow = tmp_path / "slow-runc"
    gate = tmp_path / "gate"
    slow.write_text(f'#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\nexec /usr/sbin/runc "$@"\n')
    slow.chmod(0o755)
    launcher = private_directory(tmp_path / "private", "gpulatch-slow", slow)
    bundle = Bundle(tmp_path, "slow").asking_for("any:6")
    command = [str(launcher), "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path), "slow"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as creating:
        try:
            wait_until(lambda: Path(f"/proc/{creating.pid}/cmdline").read_bytes().startswith(b"/bin/sh"))
            LEDGER.unlink()
            done = host.start(Bundle(tmp_path, "late").asking_for("any:3").path, "late")
            assert "by slow" in done.stderr
            (claim,) = host.claims()
            assert claim["stage"] == "starting"
        finally:
            gate.touch()
        assert creating.wait(30) == 0
    assert host.start(Bundle(tmp_path, "next").asking_for("any:2").path, "next").returncode == 0
    assert host.held() == {"slow": [0, 1, 2, 3, 4, 5], "next": [6, 7]}
    assert [claim["stage"] for claim in host.claims()] == ["running", "running"]


def stop_at_spec_write(host: Host, folder: Path, bundle: Bundle) -> subprocess.Popen[bytes]:
    """A create of a container that stops itself after booking, when its spec is not written yet."""
    private = folder / "private"
    private_directory(private, "gpulatch-stopped", "/usr/sbin/runc")
    (private / "runtime_wrapper").unlink()
    shutil.copytree(PRIVATE / "runtime_wrapper", private / "runtime_wrapper")
    path = private / "runtime_wrapper/spec.py"
    stopping = "def write(*words):\n    os.kill(os.getpid(), 19)\n    _write(*words)\n\n\ndef _write("
    path.write_text(path.read_text().replace("def write(", stopping))
    command = [str(private / "bin/gpulatch-stopped"), "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path)]
    with (folder / "told").open("w") as told:  # a pipe would be the container's as long as it runs
        creating = subprocess.Popen([*command, "slow"], stdin=subprocess.DEVNULL, stderr=told)
    wait_until(lambda: ") T " in Path(f"/proc/{creating.pid}/stat").read_text())
    return creating


@pytest.mark.parametrize("others", [0, 1])
def test_a_claim_lost_before_the_spec_is_written_is_booked_again_or_the_start_refused(
    host: Host, tmp_path: Path, others: int
) -> None:
    slow = Bundle(tmp_path, "slow").asking_for("any:6")
    creating = stop_at_spec_write(host, tmp_path, slow)
    try:
        assert host.held() == {"slow": [0, 1, 2, 3, 4, 5]}
        LEDGER.unlink()
        for number in range(others):
            bundle = Bundle(tmp_path, f"late{number}").asking_for("any:4")
            assert host.start(bundle.path, f"late{number}").returncode == 0
    finally:
        os.kill(creating.pid, 18)
    code, told = creating.wait(30), (tmp_path / "told").read_text()
    if others:
        assert code == 1
        assert "the ledger was lost during this start, and container late0 got one of its GPUs" in told
        assert list(host.held()) == ["late0"]
        assert slow.on_disk() == slow.spec
    else:
        assert (code, told) == (0, "")
        assert host.held() == {"slow": [0, 1, 2, 3, 4, 5]}
