"""`gpulatch demo`: the main job on a simulated 8-GPU host, with real runc and the kernel's real device filter.

The host is faked in namespaces of its own (`sandbox`, `simulated_host`): nothing of it is left behind. The command
starts this module again inside; what happens there is what happens on a real host, except that no driver stands behind
the device nodes: the kernel answers ENXIO where it would hand the open to the driver, EPERM where it refuses.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
from rich.panel import Panel
from rich.text import Text

from runtime_wrapper.errors import LowLevelError, NotRootError
from runtime_wrapper.operate import sample_bundle, sandbox, simulated_host, tables

_PACKAGE = Path(__file__).resolve().parent.parent
MACHINE = _PACKAGE / "operate/machines/dgx_a100.json"
PRIVATE_DIRECTORIES = (_PACKAGE.parent / "build/gpulatch", _PACKAGE.parent)

_WORK = Path("/run/gpulatch-demo")
_ROOT = str(_WORK / "runc")
_RUNTIME_NAME = "gpulatch-runtime"

# name, request, what it stands for
_ACCEPTED = (
    ("trainer", "any:2", "two free GPUs, its own"),
    ("tuner", "any:2", "two more free GPUs, its own"),
    ("notebook", "7", "GPU 7 by name, shared"),
)
_REFUSED = ("greedy", "any:6", "six free GPUs, of which there are no longer enough")


@click.command()
def demo() -> None:
    """Watch containers get their GPUs on a simulated DGX A100; needs root and no GPU, leaves nothing behind."""
    if os.geteuid() != 0:
        raise NotRootError("demo", "this user", "making namespaces and containers needs root", "run it with sudo")
    sys.exit(sandbox.run([sys.executable, "-m", __name__, str(_launcher())]))


def _launcher() -> Path:
    for directory in PRIVATE_DIRECTORIES:
        launcher = directory / "bin" / _RUNTIME_NAME
        if launcher.exists():
            return launcher
    raise LowLevelError("gpulatch-runtime", str(PRIVATE_DIRECTORIES[0]), "is not built", "run: packaging/build")


class Story:
    """The demo inside its sandbox; each step prints what it shows."""

    def __init__(self, launcher: str) -> None:
        self.launcher = launcher
        self.console = tables.console()
        self.step = 0

    def tell(self) -> None:
        """All steps in order."""
        self.say("Faking a DGX A100 in namespaces of its own: 8 GPUs, NVLink, 4 NUMA nodes")
        simulated_host.build(str(MACHINE))
        try:
            self.gpulatch("probe")
            for name, text, meaning in _ACCEPTED:
                self.start(name, text, meaning)
            self.refuse(*_REFUSED)
            self.say("Who holds what:")
            self.gpulatch("claims")
            self.show_access()
            self.end()
        finally:
            simulated_host.tear_down()
        self.console.print("\nDone. The simulated host and all that ran on it are gone.")

    def start(self, name: str, text: str, meaning: str) -> None:
        """Start a container and say why it gets what it gets."""
        self.say(f"Container {name} asks for {text}: {meaning}")
        bundle = self.bundle(name, text)
        answer = subprocess.run(
            [*self.cli(), "resolve", "--json", "--config", str(bundle / "config.json")],
            stdout=subprocess.PIPE,
            check=True,
        )
        for reason in json.loads(answer.stdout)["reasons"]:
            self.console.print(f"    {reason}", markup=False)
        subprocess.run(self.run_command(name, bundle), stdin=subprocess.DEVNULL, check=True)

    def refuse(self, name: str, text: str, meaning: str) -> None:
        """Start a container that must be refused, and show what its user reads."""
        self.say(f"Container {name} asks for {text}: {meaning}")
        command = self.run_command(name, self.bundle(name, text))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            raise RuntimeError(f"container {name} should have been refused")
        self.console.print(Panel(Text(tables.printable(done.stderr.strip())), title=f"exit code {done.returncode}"))
        self.gpulatch("explain", name)

    def show_access(self) -> None:
        """Try every node from inside each container."""
        self.say("From inside each container, with the host's whole /dev mounted: which nodes does the kernel open?")
        nodes = sorted(path.name for path in Path("/dev").glob("nvidia*") if path.is_char_device())
        rows = []
        for name, _, _ in _ACCEPTED:
            paths = {node: f"{sample_bundle.HOST_DEV}/{node}" for node in nodes}
            answers = sample_bundle.try_to_open(["runc", "--root", _ROOT], name, list(paths.values()))
            opened = [node for node in nodes if answers[paths[node]] == "ENXIO"]
            refused = [node for node in nodes if answers[paths[node]] == "EPERM"]
            rows += [(name, "passed on to the driver", " ".join(opened)), ("", "refused, EPERM", " ".join(refused))]
        tables.show("Opening each node", ("container", "the kernel's answer", "nodes"), rows)
        self.console.print("  (A node is numbered by its minor, not by its GPU's index: see the first table.)")

    def end(self) -> None:
        """End the containers; the book empties by itself."""
        self.say("The containers end; no hook runs, the book is empty at the next look:")
        for name, _, _ in _ACCEPTED:
            subprocess.run([self.launcher, "--root", _ROOT, "delete", "--force", name], check=True)
        self.gpulatch("claims")

    def bundle(self, name: str, text: str) -> Path:
        """A bundle that asks for GPUs by annotation, as an engine would hand it over."""
        data = sample_bundle.spec(sample_bundle.root_fs(_WORK / "rootfs"))
        data["annotations"]["gpulatch.io/gpus"] = text
        sample_bundle.mount_host_dev(data)
        return sample_bundle.write(_WORK / name, data)

    def run_command(self, name: str, bundle: Path) -> list[str]:
        """What an engine would call."""
        return [self.launcher, "--root", _ROOT, "run", "--detach", "--bundle", str(bundle), name]

    def gpulatch(self, *args: str) -> None:
        """Show the command line's own output."""
        self.console.print(f"  $ gpulatch {' '.join(args)}", style="dim")
        subprocess.run([*self.cli(), *args], check=True)

    def cli(self) -> list[str]:
        """The command line, as a process of its own."""
        return [sys.executable, "-c", "from runtime_wrapper.operate.cli import main; main()"]

    def say(self, text: str) -> None:
        """Announce a step."""
        self.step += 1
        self.console.print(f"\n[{self.step}] {text}", style="bold", markup=False)


if __name__ == "__main__":
    Story(sys.argv[1]).tell()
