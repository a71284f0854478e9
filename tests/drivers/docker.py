"""Real Docker on an engine host: dockerd with its own containerd, gpulatch as users install it."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from drivers import engine, images
from drivers.engine import BOX, CUDA, GREEDY, IMAGES, CommandLineEngine, wait_until
from drivers.engine_host import ENVIRONMENT, LAUNCHERS, ON_RUNC, WORK, EngineHost
from drivers.host import TIMEOUT_S, Done

__all__ = ["BOX", "CUDA", "ENVIRONMENT", "GREEDY", "SETTINGS", "Docker", "wait_until"]

SETTINGS = Path("/etc/docker/daemon.json")

_DATA = Path("/run/test-docker-data")
_EXEC = Path("/run/docker")
_BUNDLES = _EXEC / "containerd/daemon/io.containerd.runtime.v2.task/moby"


class Docker(CommandLineEngine):
    """One dockerd; `close` ends it and its containers."""

    program = ("/usr/bin/docker",)

    def __init__(self, machine: EngineHost) -> None:
        super().__init__(machine)
        self.log = WORK / "dockerd.log"
        with ExitStack() as undo:
            undo.callback(engine.clear, _EXEC, _DATA)
            SETTINGS.parent.mkdir(exist_ok=True)
            self.start()
            undo.callback(self._end)
            self.run("load", "--quiet", "--input", str(images.archive(WORK / "docker-images.tar", IMAGES)))
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
        return self.machine.install()

    def uninstall(self) -> Done:
        return self.machine.uninstall()

    # the daemon

    def start(self, **settings: Any) -> None:
        """Start dockerd with the runtime and these entries in daemon.json, and wait until it answers."""
        runtimes = {name: {"path": str(LAUNCHERS / name)} for name in self.machine.runtimes}
        SETTINGS.write_text(json.dumps({"runtimes": runtimes, **settings}))
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
        engine.end(pids)
        engine.unmount(_EXEC, _DATA)
        subprocess.run(["rm", "-rf", str(_EXEC), "/run/docker.pid", "/run/docker.sock"], check=True)
        new_boot_id = WORK / "boot-id"
        new_boot_id.write_text("11111111-2222-4333-8444-555555555555\n")
        subprocess.run(["mount", "--bind", str(new_boot_id), "/proc/sys/kernel/random/boot_id"], check=True)

    def back_to_the_real_boot_id(self) -> None:
        subprocess.run(["umount", "/proc/sys/kernel/random/boot_id"], check=True)

    def shims(self) -> dict[int, str]:
        """Container id by the pid of its shim."""
        return engine.shims("moby")

    def end_shims(self) -> None:
        engine.end(list(self.shims()))

    # containers

    def started(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> str:
        """Run a container in the background that sleeps; its id."""
        return self.checked(self.try_to_start(name, *options, image=image, runtime=runtime)).stdout.strip()

    def try_to_start(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> Done:
        return self.call(*self.start_words(name, *options, image=image, runtime=runtime))

    def start_words(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> list[str]:
        """The words after `docker`."""
        return ["run", "--detach", "--name", name, "--runtime", runtime, *options, image]

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

    def inside(self, name: str, *command: str) -> str:
        return self.run("exec", name, *command)

    def bundle(self, name: str) -> Path:
        """Where the runtime finds a running container's spec."""
        return _BUNDLES / str(self.inspect(name)["Id"])
