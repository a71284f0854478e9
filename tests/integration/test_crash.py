"""Killed at any state-changing system call, the wrapper leaves each claim whole or absent and every file whole."""

import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import RUNTIME, Done, Host, private_directory

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc", "strace")

CHANGING = (
    *("openat", "write", "ftruncate", "fchmod", "flock", "mkdir", "mkdirat", "symlink"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "link", "linkat"),
)
_CALL = re.compile(r"^\d+ +(\w+)\((.*)$")


class Victim:
    """A create of a GPU container, with /bin/true as the low-level runtime, that can be killed at any of its calls."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.launcher = str(private_directory(folder / "private", "gpulatch-runtime", "/bin/true"))
        self.number = 0

    def create(self, *strace: str) -> tuple[Done, Bundle]:
        self.number += 1
        bundle = Bundle(self.folder, f"victim{self.number}").asking_for("any:1")
        command = [self.launcher, "create", "--bundle", str(bundle.path), f"victim{self.number}"]
        return self.host.run(["strace", "-f", "-o", str(self.folder / "trace"), *strace, *command]), bundle

    def points(self) -> list[tuple[str, int]]:
        """Every state-changing call of an undisturbed create, as the name of the call and which one of its kind."""
        done, _ = self.create("-e", f"trace={','.join(CHANGING)}")
        assert done.returncode == 0, done.stderr
        counts: dict[str, int] = {}
        found = []
        for line in (self.folder / "trace").read_text().splitlines():
            if match := _CALL.match(line):
                name, arguments = match.groups()
                counts[name] = counts.get(name, 0) + 1
                if name != "openat" or "O_CREAT" in arguments:
                    found.append((name, counts[name]))
        return found


def test_a_kill_at_any_state_changing_call_leaves_everything_whole(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "other").asking_for("any:2").path, "other").returncode == 0
    victim = Victim(host, tmp_path)
    points = victim.points()
    assert len(points) > 8
    assert {"openat", "write", "renameat", "flock"} <= {name for name, _ in points}
    for name, number in points:
        done, bundle = victim.create("-e", f"inject={name}:signal=KILL:when={number}")
        assert done.returncode == -signal.SIGKILL, (name, number, done)
        assert host.held() == {"other": [0, 1]}, (name, number)
        written = bundle.on_disk()  # whole JSON: the engine's or ours
        if "gpulatch.io/original" in written["annotations"]:
            assert (bundle.path / "config.gpulatch.json").exists()
        else:
            assert written == bundle.spec
        ledger = json.loads(Path("/run/gpulatch/ledger.json").read_text())
        assert ledger["schema"] == "gpulatch-ledger/2"
        again = host.run([RUNTIME, "--root", "/run/test-runc", "run", "--bundle", str(ended(bundle).path), "again"])
        assert again.returncode == 0, (name, number, again.stderr)


def ended(bundle: Bundle) -> Bundle:
    """The killed bundle as the engine would start it again, with a program that ends at once."""
    return bundle.running("true")


@pytest.mark.parametrize("fault", ["ENOSPC", "EROFS", "EIO", "EMFILE"])
def test_a_failing_write_is_one_line_and_leaves_everything_whole(host: Host, tmp_path: Path, fault: str) -> None:
    assert host.start(Bundle(tmp_path, "other").asking_for("any:2").path, "other").returncode == 0
    victim = Victim(host, tmp_path)
    for name, number in points_of(victim.points(), ("write", "renameat", "mkdir", "fchmod", "flock")):
        done, bundle = victim.create("-e", f"inject={name}:error={fault}:when={number}")
        assert host.held() == {"other": [0, 1]}, (name, number)
        if done.returncode == 0:  # an event that does not matter, as the snapshot that the next create makes again
            continue
        assert done.returncode == 1, (name, number, done)
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("gpulatch: ")
        assert fault in done.stderr
        assert bundle.on_disk() == bundle.spec
        assert bundle.files() == ["config.json"]


def points_of(points: Sequence[tuple[str, int]], names: Sequence[str]) -> list[tuple[str, int]]:
    return [point for point in points if point[0] in names]
