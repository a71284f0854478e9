"""What the drivers of all engines share: which GPUs a container was given, by the book and by the kernel."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drivers.engine_host import ENVIRONMENT, EngineHost, checked
from drivers.host import TIMEOUT_S, Done

# Images: one that asks for nothing, one as NVIDIA's CUDA images are, one that wants eight GPUs of its own.
BOX, CUDA, GREEDY = "box", "cuda", "greedy"
IMAGES = {BOX: [], CUDA: ["NVIDIA_VISIBLE_DEVICES=all"], GREEDY: ["GPULATCH_GPUS=any:8"]}

# Nodes that the container makes itself: the default specs let it, and only opening them is filtered.
_TRY_GPUS = (
    "for m in $(seq 0 31); do [ -e /dev/own$m ] || mknod /dev/own$m c 195 $m || exit 1;"
    ' echo "$m $( { : <>/dev/own$m; } 2>&1 )"; done'
)


class Engine:
    """Containers of one engine on an engine host. Subclasses say how to run a command in one, and its first process."""

    log: Path

    def __init__(self, machine: EngineHost) -> None:
        self.machine, self.host, self.gpus = machine, machine.host, machine.gpus

    def inside(self, name: str, *command: str) -> str:
        """What a command prints that is run in a container."""
        raise NotImplementedError

    def pid(self, name: str) -> int:
        """The container's first process."""
        raise NotImplementedError

    def name_of(self, claim: dict[str, Any]) -> str:
        """What people call the container of a claim."""
        return str(claim["name"] or claim["id"])

    def held(self) -> dict[str, list[int]]:
        """GPU indices by the container's name."""
        return {self.name_of(claim): [device["index"] for device in claim["devices"]] for claim in self.host.claims()}

    def claim(self, name: str) -> dict[str, Any]:
        """The one claim of a container."""
        (found,) = [claim for claim in self.host.claims() if self.name_of(claim) == name]
        return found

    def opens(self, name: str) -> list[int]:
        """Indices of the GPUs that the kernel lets a container open, by nodes of the container's own."""
        lines = self.inside(name, "sh", "-c", _TRY_GPUS).splitlines()
        answers = dict(line.split(" ", 1) for line in lines)
        allowed = [int(minor) for minor, answer in answers.items() if "No such device or address" in answer]
        refused = [int(minor) for minor, answer in answers.items() if "Operation not permitted" in answer]
        assert len(allowed) + len(refused) == len(answers) == 32, answers
        return [gpu["index"] for gpu in self.gpus if gpu["minor"] in allowed]

    def environment(self, name: str) -> list[str]:
        """The variables of the container's first process."""
        return Path(f"/proc/{self.pid(name)}/environ").read_text().split("\0")[:-1]

    def last_log_lines(self) -> str:
        return "".join(self.log.read_text().splitlines(keepends=True)[-15:]) if self.log.exists() else ""


class CommandLineEngine(Engine):
    """An engine with a command line: `program` is the command and the options that every call has."""

    program: tuple[str, ...]

    def call(self, *args: str, stdin: str = "") -> Done:
        """The command line, whatever comes of it."""
        return self.host.run([*self.program, *args], env=ENVIRONMENT, stdin=stdin)

    def run(self, *args: str) -> str:
        """The command line to success; what it prints."""
        return self.checked(self.call(*args)).stdout

    def call_at_once(self, commands: Sequence[Sequence[str]]) -> list[Done]:
        """The command line several times at once."""
        return at_once([[*self.program, *words] for words in commands])

    def checked(self, done: Done) -> Done:
        return checked(done, self.last_log_lines())


def at_once(commands: Sequence[Sequence[str]]) -> list[Done]:
    """Several commands at once, each to its end; a container that stays in the background keeps no pipe of ours."""
    started = [
        subprocess.Popen(
            words, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    ends = [(process, *process.communicate(timeout=TIMEOUT_S)) for process in started]
    return [Done(process.args, process.returncode, out, err) for process, out, err in ends]


def refusal(text: str) -> str:
    """The one line of gpulatch's in what an engine printed."""
    (line,) = [line for line in text.splitlines() if "gpulatch: " in line]
    return line


def wait_until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def running(text: str) -> dict[int, list[str]]:
    """Command lines by pid, of the processes that have some text in theirs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_text()
        except OSError:
            continue  # it has just ended
        if text in line:
            found[int(folder.name)] = line.split("\0")
    return found


def shims(word: str) -> dict[int, str]:
    """Container id by the pid of its containerd shim, of the shims that have some word on their command line."""
    lines = {pid: words for pid, words in running(word).items() if word in words}
    return {pid: words[words.index("-id") + 1] for pid, words in lines.items() if words[0].endswith("shim-runc-v2")}


def end(pids: Sequence[int]) -> None:
    """SIGKILL for processes, and wait until they are gone."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in pids))


def clear(*folders: Path) -> None:
    """Take away what an engine mounted at and below some folders, and the folders."""
    unmount(*folders)
    subprocess.run(["rm", "-rf", *map(str, folders)], check=True)


def unmount(*folders: Path) -> None:
    """Take away what an engine mounted at and below some folders."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed(mounts):
        if any(f"{mount}/".startswith(f"{folder}/") for folder in folders):
            subprocess.run(["umount", "--lazy", mount], check=True)
