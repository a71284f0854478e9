"""Real Podman on an engine host: everything that it keeps lies below /run, its runtimes stand in containers.conf."""

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from drivers import engine, images, usr_overlay
from drivers.engine import BOX, IMAGES, CommandLineEngine, wait_until
from drivers.engine_host import LAUNCHERS, ON_RUNC, WORK, EngineHost
from drivers.host import Done

CONTAINERS_CONF = Path("/etc/containers/containers.conf")
LOCKS = Path("/dev/shm/libpod_lock")

_DATA = Path("/run/test-podman")


class Podman(CommandLineEngine):
    """Podman has no daemon; `close` ends its containers and removes what it kept."""

    program = (
        *("/usr/bin/podman", "--root", str(_DATA / "root"), "--runroot", str(_DATA / "run")),
        *("--tmpdir", str(_DATA / "tmp"), "--storage-driver", "overlay"),
    )

    def __init__(self, machine: EngineHost) -> None:
        super().__init__(machine)
        self.log = WORK / "podman.log"
        with ExitStack() as undo:
            undo.callback(LOCKS.unlink, missing_ok=True)
            undo.callback(engine.clear, _DATA)
            shutil.copytree(usr_overlay.ENGINES / "podman/etc/containers", "/etc/containers", dirs_exist_ok=True)
            self.configure()
            undo.callback(self._end)
            names = {f"localhost/{name}": variables for name, variables in IMAGES.items()}
            self.run("load", "--quiet", "--input", str(images.archive(WORK / "podman-images.tar", names)))
            self._undo = undo.pop_all()

    def close(self) -> None:
        self._undo.close()

    def _end(self) -> None:
        """Remove the containers; each one's monitor starts a Podman that cleans up after it."""
        self.remove_all()
        wait_until(lambda: not engine.running(str(_DATA)))

    def configure(self, *, supports_json: bool = False) -> None:
        """Write containers.conf, which counts at once; only with `supports_json` Podman asks the runtime for a log."""
        runtimes = [f'{name} = ["{LAUNCHERS / name}"]' for name in self.machine.runtimes]
        told = json.dumps(list(self.machine.runtimes) if supports_json else [])
        lines = ["[engine]", 'cgroup_manager = "cgroupfs"', 'events_logger = "file"', f"runtime_supports_json = {told}"]
        CONTAINERS_CONF.write_text("\n".join([*lines, "[engine.runtimes]", *runtimes, ""]))

    def started(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> str:
        """Run a container in the background that sleeps; its id."""
        return self.checked(self.try_to_start(name, *options, image=image, runtime=runtime)).stdout.strip()

    def try_to_start(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> Done:
        return self.call(*self.start_words(name, *options, image=image, runtime=runtime))

    def start_words(self, name: str, *options: str, image: str = BOX, runtime: str = ON_RUNC) -> list[str]:
        """The words after `podman`. Podman's containers may make no nodes by themselves: `opens` needs that."""
        words = ["--runtime", runtime, "run", "--detach", "--name", name, "--network", "none", "--cap-add", "MKNOD"]
        return [*words, *options, f"localhost/{image}"]

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("container", "inspect", name))[0]
        return found

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.inspect(name)["State"]
        return found

    def pid(self, name: str) -> int:
        pid: int = self.state(name)["Pid"]
        return pid

    def name_of(self, claim: dict[str, Any]) -> str:
        listed = self.run("ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}}").splitlines()
        return str(dict(line.split() for line in listed).get(claim["id"], claim["id"]))

    def inside(self, name: str, *command: str) -> str:
        return self.run("exec", name, *command)

    def remove_all(self) -> None:
        self.run("rm", "--all", "--force", "--time", "0")
