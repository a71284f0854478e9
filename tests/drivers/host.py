"""A simulated GPU host inside the sandbox: fake /dev, /proc and /sys of a machine, real runc, real device filter."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime_wrapper.operate import sample_bundle, simulated_host

CHECKOUT = Path(__file__).parent.parent.parent
PRIVATE = CHECKOUT / "build/gpulatch"
RUNTIME = str(PRIVATE / "bin/gpulatch-runtime")
DGX_A100 = CHECKOUT / "runtime_wrapper/operate/machines/dgx_a100.json"
STATE = Path("/run/gpulatch")
ROOT = "/run/test-runc"
DEFAULT_ROOT = "/run/runc"
LOG = Path("/var/log/gpulatch/events.jsonl")
TIMEOUT_S = 60.0

Done = subprocess.CompletedProcess[str]


class Host:
    """One machine; `close` ends its containers and takes the fakes away."""

    def __init__(self, machine: Path = DGX_A100) -> None:
        simulated_host.build(str(machine))

    def close(self) -> None:
        for root in (ROOT, DEFAULT_ROOT):
            for container in self.containers(root):
                self.run(["runc", "--root", root, "delete", "--force", container])
        shutil.rmtree(STATE, ignore_errors=True)
        shutil.rmtree(ROOT, ignore_errors=True)
        shutil.rmtree(LOG.parent, ignore_errors=True)
        simulated_host.tear_down()

    def containers(self, root: str = ROOT) -> list[str]:
        listed = self.run(["runc", "--root", root, "list", "-q"])
        return listed.stdout.split()

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = ""
    ) -> Done:
        """Run a command to its end. Output goes through files: a detached container would keep a pipe open."""
        log = Path(f"/run/test-output-{os.getpid()}")
        with open(f"{log}.out", "w+") as out, open(f"{log}.err", "w+") as err, open(f"{log}.in", "w+") as given:
            given.write(stdin)
            given.seek(0)
            done = subprocess.run(
                command, stdin=given, stdout=out, stderr=err, env=env, cwd=cwd, timeout=TIMEOUT_S, check=False
            )
            return subprocess.CompletedProcess(
                command, done.returncode, Path(out.name).read_text(), Path(err.name).read_text()
            )

    def runtime(self, *args: str, **more: Any) -> Done:
        """Call the wrapper as an engine does."""
        return self.run([RUNTIME, "--root", ROOT, *args], **more)

    def start(self, bundle: Path, container: str) -> Done:
        """Run a container in the background."""
        return self.runtime("run", "--detach", "--bundle", str(bundle), container)

    def gpulatch(self, *args: str) -> Done:
        """Call the command line."""
        return self.gpulatch_as("", *args)

    def gpulatch_as(self, preparation: str, *args: str) -> Done:
        """Call the command line after some Python in the same process."""
        code = f"from runtime_wrapper.operate.cli import main; {preparation} main()"
        return self.run([sys.executable, "-c", code, *args], cwd=CHECKOUT)

    def claims(self) -> list[dict[str, Any]]:
        done = self.gpulatch("claims", "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def events(self, container: str | None = None) -> list[dict[str, Any]]:
        """The event log, oldest first, or one container's part of it."""
        lines = LOG.read_text().splitlines() if LOG.exists() else []
        found: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [event for event in found if container in (None, (event["container"] or {}).get("id"))]

    def held(self) -> dict[str, list[int]]:
        """GPU indices by container id."""
        return {claim["id"]: [device["index"] for device in claim["devices"]] for claim in self.claims()}

    def open_inside(self, container: str, paths: Sequence[str]) -> dict[str, str]:
        """What the kernel says when a process in the container opens each path."""
        return sample_bundle.try_to_open(["runc", "--root", ROOT], container, paths)

    def environment(self, container: str) -> list[str]:
        """The variables of the container's first process."""
        state = json.loads(self.run(["runc", "--root", ROOT, "state", container]).stdout)
        return Path(f"/proc/{state['pid']}/environ").read_text().split("\0")[:-1]


def private_directory(folder: Path, name: str, low_level: Path | str) -> Path:
    """A private directory of its own with one runtime name; returns the launcher."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "low-level" / name).mkdir(parents=True)
    (folder / "low-level" / name / os.path.basename(low_level)).symlink_to(low_level)
    if not (folder / "runtime_wrapper").exists():
        (folder / "runtime_wrapper").symlink_to(PRIVATE / "runtime_wrapper")
    return Path(shutil.copy(PRIVATE / "bin/gpulatch-runtime", folder / "bin" / name))
