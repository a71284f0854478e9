"""The ledger is broken again and again while containers come, go and are killed: no GPU is ever given twice."""

import contextlib
import fcntl
import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.engine import wait_until
from drivers.host import ROOT, RUNTIME, STATE, Host, private_directory

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

LEDGER = STATE / "ledger.json"
SECONDS = 15.0
WORKERS = 8
WISHES = ("any:1", "any:2", "7+policy=exclusive")

DAMAGES: tuple[Callable[[], object], ...] = (
    LEDGER.unlink,
    lambda: os.truncate(LEDGER, LEDGER.stat().st_size // 2),
    lambda: os.truncate(LEDGER, 0),
    lambda: LEDGER.write_bytes(os.urandom(300)),
    lambda: LEDGER.write_text("[1]"),
    lambda: os.truncate(LEDGER, 17 << 20),
    lambda: LEDGER.write_text('{"boot_id": "x", "generation": 1e999}'),
)


class Fire:
    """Workers that start and end containers, some killed while they start; what each running one may open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.running: dict[str, set[int]] = {}
        self.given_twice: list[str] = []
        self.refusals: list[str] = []
        self.started = 0

    def go(self) -> None:
        threads = [threading.Thread(target=self.work, args=(number,)) for number in range(WORKERS)]
        threads.append(threading.Thread(target=self.damage))
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        self.over.set()
        for thread in threads:
            thread.join()

    def damage(self) -> None:
        chance = random.Random(1)
        while not self.over.wait(chance.random() * 0.4):
            with contextlib.suppress(OSError):  # it is not there now
                chance.choice(DAMAGES)()

    def work(self, number: int) -> None:
        chance = random.Random(number)
        turn = 0
        while not self.over.is_set():
            turn += 1
            container = f"c{number}-{turn % 3}"
            bundle = Bundle(self.folder / str(number), f"{turn}").asking_for(chance.choice(WISHES))
            if self.start(bundle, container, killed=chance.random() < 0.1):
                time.sleep(chance.random() * 0.5)
                with self.lock:
                    del self.running[container]
            delete = ["/usr/sbin/runc", "--root", ROOT, "delete", "--force", container]
            subprocess.run(delete, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def start(self, bundle: Bundle, container: str, *, killed: bool) -> bool:
        """Whether the container runs; it is noted then, with what it may open."""
        command = [RUNTIME, "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path), container]
        with (bundle.path / "told").open("w") as told:
            creating = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=told)
            if killed:
                time.sleep(random.random() * 0.2)
                creating.kill()
            code = creating.wait(60)
        if code:
            self.refusals += [(bundle.path / "told").read_text()] if code > 0 else []
            return False
        mine = opened(bundle)
        with self.lock:
            self.started += 1
            self.given_twice += [f"{container} and {other}" for other, theirs in self.running.items() if mine & theirs]
            self.running[container] = mine
        return True


def opened(bundle: Bundle) -> set[int]:
    rules = bundle.on_disk()["linux"]["resources"]["devices"]
    return {rule["minor"] for rule in rules if rule.get("major") == 195 and rule["minor"] < 255}


def test_no_gpu_is_given_twice_while_the_ledger_is_broken_again_and_again(host: Host, tmp_path: Path) -> None:
    fire = Fire(tmp_path)
    fire.go()
    assert fire.given_twice == []
    assert fire.started > 20
    told = [text for text in fire.refusals if "GL-4001" not in text and "GL-4002" not in text]
    assert told == []
    assert host.claims() == []  # all have ended, and nothing stays booked


def slow_runtime(folder: Path, gate: Path, *, becomes: str | None = None) -> Path:
    """A launcher whose low-level runtime waits for a file to appear before it is runc, under another name if given."""
    waiting = f'#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.02; done\nexec /usr/sbin/runc "$@"\n'
    program = folder / "slow-runc"
    if becomes:
        Path(becomes).write_text(waiting)
        Path(becomes).chmod(0o755)
        waiting = f'#!/bin/sh\nexec {becomes} "$@"\n'
    program.write_text(waiting)
    program.chmod(0o755)
    return private_directory(folder / "private", "gpulatch-slow", program)


def creating(launcher: Path | str, bundle: Bundle, container: str) -> subprocess.Popen[bytes]:
    command = [str(launcher), "--root", ROOT, "run", "--detach", "--bundle", str(bundle.path), container]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null)


def command_line(process: subprocess.Popen[bytes]) -> bytes:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_a_create_that_ends_while_another_waits_for_the_lock_is_seen(host: Host, tmp_path: Path) -> None:
    """It is neither there when the other looks around before the lock, nor at work when that has the lock."""
    assert host.start(Bundle(tmp_path, "warm").asking_for("any:1").path, "warm").returncode == 0
    host.runtime("delete", "--force", "warm")
    gate = tmp_path / "gate"
    first = creating(slow_runtime(tmp_path, gate), Bundle(tmp_path, "first").asking_for("any:6"), "first")
    wait_until(lambda: command_line(first).startswith(b"/bin/sh"))
    lock = os.open(STATE / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    second = creating(RUNTIME, Bundle(tmp_path, "second").asking_for("any:6"), "second")
    wait_until(lambda: b"flock" in Path(f"/proc/{second.pid}/wchan").read_bytes() or _waits_for_lock(second.pid))
    gate.touch()
    assert first.wait(30) == 0
    LEDGER.unlink()
    os.close(lock)
    assert second.wait(30) == 1
    assert host.held() == {"first": [0, 1, 2, 3, 4, 5]}


def _waits_for_lock(pid: int) -> bool:
    """Whether /proc/locks shows a process that waits (proc_locks(5))."""
    return any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_low_level_runtime_that_becomes_another_program_is_still_known(host: Host, tmp_path: Path) -> None:
    """As nvidia-container-runtime becomes runc."""
    gate = tmp_path / "gate"
    other = str(tmp_path / "other-runc")
    launcher = slow_runtime(tmp_path, gate, becomes=other)
    first = creating(launcher, Bundle(tmp_path, "first").asking_for("any:6"), "first")
    wait_until(lambda: other.encode() in command_line(first))
    try:
        LEDGER.unlink()
        done = host.start(Bundle(tmp_path, "second").asking_for("any:6").path, "second")
        assert "by first" in done.stderr
    finally:
        gate.touch()
    assert first.wait(30) == 0
    assert host.held() == {"first": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize("config", ["/x\0", 5, "\ud800/x", "/dev/zero", "/dev", "", None, ["x"], "/etc/passwd"])
def test_an_odd_record_of_a_tenant_keeps_nobody_from_starting(host: Host, tmp_path: Path, config: object) -> None:
    bundle = Bundle(tmp_path, "odd")
    record = {"id": "odd", "root": "/run/runc", "config": config, "devices": [], "holder": {"pid": 1, "start": 1}}
    bundle.annotated("gpulatch.io/record", json.dumps(record))
    command = ["/usr/sbin/runc", "--root", "/run/runc", "run", "--detach", "--bundle", str(bundle.path), "odd"]
    assert host.run(command).returncode == 0
    try:
        assert host.start(Bundle(tmp_path, "a").asking_for("any:1").path, "a").returncode == 0
    finally:
        host.run(["/usr/sbin/runc", "--root", "/run/runc", "delete", "--force", "odd"])


def test_a_forged_command_line_makes_root_open_nothing(host: Host, tmp_path: Path) -> None:
    """An ordinary user's process that looks like a low-level runtime at work; its spec is a FIFO that hangs readers."""
    folder = tmp_path / "low-level"
    folder.mkdir()
    for path in (tmp_path, *tmp_path.parents):
        if path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    program = folder / "runc"
    program.write_text("#!/bin/sh\nsleep 1000\n")
    program.chmod(0o755)
    spec = tmp_path / "config.json"
    os.mkfifo(spec)
    forged = subprocess.Popen([str(program), "create", "--config", str(spec), "x"], user=1000, group=1000)
    try:
        wait_until(lambda: b"low-level" in command_line(forged))
        trace = tmp_path / "trace"
        bundle = Bundle(tmp_path, "a").asking_for("any:1")
        launcher = str(private_directory(tmp_path / "private", "gpulatch-true", "/bin/true"))
        command = [launcher, "create", "--bundle", str(bundle.path), "a"]
        assert host.run(["strace", "-f", "-o", str(trace), "-e", "trace=openat,open", *command]).returncode == 0
        opened_paths = trace.read_text()
        assert f"/proc/{forged.pid}/cmdline" not in opened_paths
        assert str(spec) not in opened_paths
    finally:
        forged.kill()
        forged.wait()
