"""Real containerd on an engine host, used by `ctr`; its CRI plugin is the business of `drivers.cri`."""

import itertools
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from drivers import engine, images
from drivers.engine import BOX, IMAGES, CommandLineEngine, wait_until
from drivers.engine_host import ENVIRONMENT, LAUNCHERS, ON_RUNC, WORK, EngineHost
from drivers.host import TIMEOUT_S, Done
from drivers.usr_overlay import RUNC

CONFIG = Path("/etc/containerd/config.toml")
PAUSE = "localhost/box:latest"

_DATA = Path("/run/test-containerd")
_ROOTS = Path("/run/containerd/runc")  # the runtimes' roots; the shims' sockets beside them may also be Docker's
SOCKET = _DATA / "containerd.sock"

_HANDLER = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["gpulatch.io/*"]
container_annotations = ["gpulatch.io/*"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
BinaryName = "{path}"
"""


class Containerd(CommandLineEngine):
    """One containerd; `close` ends it and the containers that `ctr` started."""

    program = ("/usr/bin/ctr", "--address", str(SOCKET))

    def __init__(self, machine: EngineHost) -> None:
        super().__init__(machine)
        self.log = WORK / "containerd.log"
        self._exec_ids = itertools.count()
        with ExitStack() as undo:
            undo.callback(engine.clear, _DATA, _ROOTS)
            self.start()
            undo.callback(self._end)
            self.load_images("default")
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def _end(self) -> None:
        try:
            self.remove_all()
        finally:
            self.stop()
            engine.end(list(self.shims()))

    def load_images(self, namespace: str) -> None:
        """Images live in namespaces: `default` is ctr's, `k8s.io` the CRI plugin's."""
        names = {f"localhost/{name}": variables for name, variables in IMAGES.items()}
        archive = images.archive(WORK / "containerd-images.tar", names)
        self.run("--namespace", namespace, "images", "import", str(archive))

    # the daemon

    def start(self, pause: str = PAUSE) -> None:
        """Start containerd, with this image for the sandbox containers of pods, and wait until it answers."""
        CONFIG.parent.mkdir(exist_ok=True)
        CONFIG.write_text(self._config(pause))
        with open(self.log, "a") as log:
            self.daemon = subprocess.Popen(
                ["containerd", "--config", str(CONFIG)],
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        wait_until(lambda: self.daemon.poll() is not None or self.call("version").returncode == 0)
        assert self.daemon.poll() is None, self.log.read_text()[-2000:]

    def _config(self, pause: str) -> str:
        top = f'version = 2\nroot = "{_DATA}/root"\nstate = "{_DATA}/state"\n[grpc]\naddress = "{SOCKET}"\n'
        cri = f'[plugins."io.containerd.grpc.v1.cri"]\nsandbox_image = "{pause}"\n'
        handlers = {"runc": RUNC, **{name: LAUNCHERS / name for name in self.machine.runtimes}}
        return top + cri + "".join(_HANDLER.format(name=name, path=path) for name, path in handlers.items())

    def stop(self) -> None:
        """End containerd as the init system does; containers go on."""
        self.daemon.terminate()
        self.daemon.wait(TIMEOUT_S)

    def kill_daemon(self) -> None:
        """SIGKILL for containerd; shims and containers go on."""
        self.daemon.kill()
        self.daemon.wait(TIMEOUT_S)

    def shims(self) -> dict[int, str]:
        """Container id by the pid of its shim; a pod's containers share the pod's."""
        return engine.shims(str(SOCKET))

    # containers

    def started(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> str:
        """Run a container in the background that sleeps; its id, which is its name."""
        self.checked(self.try_to_start(name, *options, image=image, runtime=runtime))
        return name

    def try_to_start(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> Done:
        return self.call(*self.start_words(name, *options, image=image, runtime=runtime))

    def start_words(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> list[str]:
        """The words after `ctr`."""
        words = ["run", "--detach", "--runc-binary", str(LAUNCHERS / runtime)]
        return [*words, *options, f"localhost/{image}:latest", name]

    def inside(self, name: str, *command: str) -> str:
        return self.run(*self.exec_words(name), *command)

    def exec_words(self, name: str) -> list[str]:
        """The words after `ctr` that run a command in a container."""
        return ["tasks", "exec", "--exec-id", f"exec-{next(self._exec_ids)}", name]

    def tasks(self) -> dict[str, tuple[int, str]]:
        """Pid and state of the containers that were started, by their names."""
        rows = [line.split() for line in self.run("tasks", "list").splitlines()[1:]]
        return {name: (int(pid), state) for name, pid, state in rows}

    def pid(self, name: str) -> int:
        return self.tasks()[name][0]

    def kill(self, name: str, signal: str = "KILL") -> None:
        self.run("tasks", "kill", "--signal", signal, name)

    def stop_container(self, name: str) -> None:
        """End a container's process and take its task away; the container itself stays."""
        self.run("tasks", "delete", "--force", name)

    def start_again(self, name: str) -> Done:
        return self.call("tasks", "start", "--detach", name)

    def remove_all(self) -> None:
        for name in self.tasks():
            self.stop_container(name)
        if containers := self.run("containers", "list", "--quiet").split():
            self.run("containers", "delete", *containers)

    def name_of(self, claim: dict[str, Any]) -> str:
        return str(claim["id"])

    def end_shim_of(self, name: str) -> None:
        engine.end([pid for pid, owner in self.shims().items() if owner == name])
