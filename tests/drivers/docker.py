"""Real Docker on a simulated host: dockerd with its own containerd inside the sandbox, gpulatch as users install it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from drivers import images, usr_overlay
from drivers.host import CHECKOUT, TIMEOUT_S, Done, Host

RUNTIME_NAME = "gpulatch"
LAUNCHER = Path("/usr/lib/gpulatch/bin") / RUNTIME_NAME
SETTINGS = Path("/etc/docker/daemon.json")
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run/test-docker", "LANG": "C.UTF-8"}

# Images: one that asks for nothing, one as NVIDIA's CUDA images are, one that wants eight GPUs of its own.
BOX, CUDA, GREEDY = "box", "cuda", "greedy"
_IMAGES = {BOX: [], CUDA: ["NVIDIA_VISIBLE_DEVICES=all"], GREEDY: ["GPULATCH_GPUS=any:8"]}

_WORK = Path(ENVIRONMENT["HOME"])
_DATA = Path("/run/test-docker-data")
_EXEC = Path("/run/docker")
_BUNDLES = _EXEC / "containerd/daemon/io.containerd.runtime.v2.task/moby"
_ENTRY = {RUNTIME_NAME: {"path": str(LAUNCHER)}}
# Nodes that the container makes itself: the default spec lets it, and only opening them is filtered.
_TRY_GPUS = (
    "for m in $(seq 0 31); do [ -e /dev/own$m ] || mknod /dev/own$m c 195 $m || exit 1;"
    ' echo "$m $( { : <>/dev/own$m; } 2>&1 )"; done'
)


class Docker:
    """One dockerd; `close` ends it, its containers and the host below it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.log = _WORK / "dockerd.log"
        with ExitStack() as undo:
            undo.callback(host.close)
            usr_overlay.mount()
            undo.callback(usr_overlay.unmount)
            undo.callback(_clear)
            _WORK.mkdir()
            self.install()
            SETTINGS.parent.mkdir(exist_ok=True)
            self.start()
            undo.callback(self._end)
            self.gpus: list[dict[str, Any]] = self._inventory()["gpus"]
            self.run("load", "--quiet", "--input", str(images.archive(_WORK / "images.tar", _IMAGES)))
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def _end(self) -> None:
        try:
            self.remove_all()
        finally:
            self.stop()
            self.end_shims()

    def install(self) -> Done:
        """Install gpulatch as its documents say."""
        command = [str(CHECKOUT / "packaging/install"), RUNTIME_NAME, str(usr_overlay.RUNC)]
        return self._checked(self.host.run(command, env=ENVIRONMENT))

    def uninstall(self) -> Done:
        return self.host.run([str(CHECKOUT / "packaging/uninstall"), RUNTIME_NAME], env=ENVIRONMENT)

    # the daemon

    def start(self, **settings: Any) -> None:
        """Start dockerd with the runtime and these entries in daemon.json, and wait until it answers."""
        SETTINGS.write_text(json.dumps({"runtimes": _ENTRY, **settings}))
        self.start_as_configured()

    def start_as_configured(self) -> None:
        """Start dockerd with whatever stands in daemon.json."""
        command = ["dockerd", "--data-root", str(_DATA), "--iptables=false", "--ip6tables=false"]
        command += ["--storage-driver", "overlay2", "--exec-opt", "native.cgroupdriver=cgroupfs"]
        with open(self.log, "a") as log:
            self.daemon = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: self.daemon.poll() is not None or self.call("version").returncode == 0)
        assert self.daemon.poll() is None, self.log.read_text()[-2000:]

    def stop(self) -> None:
        """End dockerd as the init system does."""
        self.daemon.terminate()
        self.daemon.wait(TIMEOUT_S)

    def restart(self, **settings: Any) -> None:
        self.stop()
        self.start(**settings)

    def kill_daemon(self) -> None:
        """SIGKILL for dockerd, which takes its containerd with it; shims and containers go on."""
        self.daemon.kill()
        self.daemon.wait(TIMEOUT_S)

    def power_off(self) -> None:
        """End all of Docker at once and empty what lies in /run, as a power failure does; a new boot id."""
        pids = [self.pid(container) for container in self.ids()]
        self.kill_daemon()
        self.end_shims()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(_alive(pid) for pid in pids))
        _unmount(_EXEC, _DATA)
        subprocess.run(["rm", "-rf", str(_EXEC), "/run/docker.pid", "/run/docker.sock"], check=True)
        new_boot_id = _WORK / "boot-id"
        new_boot_id.write_text("11111111-2222-4333-8444-555555555555\n")
        subprocess.run(["mount", "--bind", str(new_boot_id), "/proc/sys/kernel/random/boot_id"], check=True)

    def back_to_the_real_boot_id(self) -> None:
        subprocess.run(["umount", "/proc/sys/kernel/random/boot_id"], check=True)

    def shims(self) -> dict[int, str]:
        """Container id by the pid of its shim."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if words[0].endswith("containerd-shim-runc-v2") and "moby" in words:
                found[int(folder.name)] = words[words.index("-id") + 1]
        return found

    def end_shims(self) -> None:
        for pid in self.shims():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.shims())

    # containers

    def call(self, *args: str, stdin: str = "") -> Done:
        """Docker's command line, whatever comes of it."""
        return self.host.run(["/usr/bin/docker", *args], env=ENVIRONMENT, stdin=stdin)

    def call_at_once(self, commands: Sequence[Sequence[str]]) -> list[Done]:
        """Docker's command line several times at once."""
        started = [
            subprocess.Popen(
                ["/usr/bin/docker", *words],
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in commands
        ]
        ends = [(process, *process.communicate(timeout=TIMEOUT_S)) for process in started]
        return [Done(process.args, process.returncode, out, err) for process, out, err in ends]

    def run(self, *args: str) -> str:
        """Docker's command line to success; what it prints."""
        return self._checked(self.call(*args)).stdout

    def started(self, name: str, *options: str, image: str = BOX, runtime: str = RUNTIME_NAME) -> str:
        """Run a container in the background that sleeps; its id."""
        return self._checked(self.try_to_start(name, *options, image=image, runtime=runtime)).stdout.strip()

    def try_to_start(self, name: str, *options: str, image: str = BOX, runtime: str = RUNTIME_NAME) -> Done:
        return self.call("run", "--detach", "--name", name, "--runtime", runtime, *options, image)

    def ids(self) -> list[str]:
        return self.run("ps", "--quiet", "--no-trunc").split()

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("inspect", name))[0]
        return found

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.inspect(name)["State"]
        return found

    def pid(self, name: str) -> int:
        pid: int = self.state(name)["Pid"]
        return pid

    def remove_all(self) -> None:
        if containers := self.run("ps", "--all", "--quiet").split():
            self.run("rm", "--force", "--volumes", *containers)

    # what gpulatch made of them

    def held(self) -> dict[str, list[int]]:
        """GPU indices by Docker's name of the container."""
        return {claim["name"]: [device["index"] for device in claim["devices"]] for claim in self.host.claims()}

    def claim(self, name: str) -> dict[str, Any]:
        """The one claim of a container."""
        (found,) = [claim for claim in self.host.claims() if claim["name"] == name]
        return found

    def opens(self, name: str) -> list[int]:
        """Indices of the GPUs that the kernel lets a container open, by nodes of the container's own."""
        answers = dict(line.split(" ", 1) for line in self.run("exec", name, "sh", "-c", _TRY_GPUS).splitlines())
        allowed = [int(minor) for minor, answer in answers.items() if "No such device or address" in answer]
        refused = [int(minor) for minor, answer in answers.items() if "Operation not permitted" in answer]
        assert len(allowed) + len(refused) == len(answers) == 32, answers
        return [gpu["index"] for gpu in self.gpus if gpu["minor"] in allowed]

    def bundle(self, name: str) -> Path:
        """Where the runtime finds a running container's spec."""
        return _BUNDLES / str(self.inspect(name)["Id"])

    def environment(self, name: str) -> list[str]:
        """The variables of the container's first process."""
        return Path(f"/proc/{self.pid(name)}/environ").read_text().split("\0")[:-1]

    def _inventory(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._checked(self.host.gpulatch("probe", "--json")).stdout)
        return found

    def _checked(self, done: Done) -> Done:
        assert done.returncode == 0, f"{done.args}: {done.stdout}{done.stderr}\n{self._last_log_lines()}"
        return done

    def _last_log_lines(self) -> str:
        return "".join(self.log.read_text().splitlines(keepends=True)[-15:]) if self.log.exists() else ""


def wait_until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _unmount(*folders: Path) -> None:
    """Take away what dockerd mounted at and below some folders."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed(mounts):
        if any(f"{mount}/".startswith(f"{folder}/") for folder in folders):
            subprocess.run(["umount", "--lazy", mount], check=True)


def _clear() -> None:
    _unmount(_EXEC, _DATA)
    subprocess.run(["rm", "-rf", str(_EXEC), str(_DATA), str(_WORK)], check=True)
