"""packaging/build: what it makes, and that an engine may call while it is made anew."""

import os
import subprocess
import threading
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import CHECKOUT, ROOT, Done, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc", "cc")


def build(*options: str, cwd: Path = CHECKOUT) -> Done:
    command = [str(CHECKOUT / "packaging/build"), *options]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_directory_holds_all_that_a_call_needs(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    private = tmp_path / "private"
    done = build("-o", str(private), "-n", "gpulatch-own", "-l", "/usr/sbin/runc")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(private)) == ["bin", "hooks", "low-level", "runtime_wrapper", "schemas"]
    assert os.readlink(private / "low-level/gpulatch-own/runc") == "/usr/sbin/runc"
    launcher = str(private / "bin/gpulatch-own")
    done = host.run(
        [launcher, "--root", ROOT, "run", "--detach", "--bundle", str(bundle.asking_for("any:1").path), "c1"]
    )
    assert done.returncode == 0, done.stderr
    assert host.claims()[0]["runtime"] == "gpulatch-own"


def test_a_relative_runtime_is_linked_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "runc").symlink_to("/usr/sbin/runc")
    done = build("-o", str(tmp_path / "private"), "-l", "./runc", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    link = tmp_path / "private/low-level/gpulatch-runtime/runc"
    assert os.path.samefile(link, "/usr/sbin/runc")


@pytest.mark.parametrize("runtime", ["/no/such/runc", "/etc/passwd"])
def test_a_runtime_that_cannot_be_executed_is_refused_and_changes_nothing(tmp_path: Path, runtime: str) -> None:
    done = build("-o", str(tmp_path / "private"), "-l", runtime)
    assert done.returncode == 1
    assert "cannot be executed" in done.stderr
    assert not (tmp_path / "private").exists()


def test_calls_go_on_while_it_is_built_anew_and_off_stays_off(host: Host, tmp_path: Path) -> None:
    private = tmp_path / "private"
    options = ["-o", str(private), "-l", "/usr/sbin/runc"]
    assert build(*options).returncode == 0
    failures: list[str] = []
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            called = subprocess.run(
                [str(private / "bin/gpulatch-runtime"), "--version"], capture_output=True, text=True, check=False
            )
            if called.returncode:
                failures.append(called.stderr)

    caller = threading.Thread(target=call)
    caller.start()
    (private / "low-level/gpulatch-runtime/off").touch()
    for _ in range(3):
        assert build(*options).returncode == 0
    done.set()
    caller.join()
    assert failures == []
    assert sorted(os.listdir(private / "low-level/gpulatch-runtime")) == ["off", "runc"]
    assert build(*options, "-l", "/bin/true").returncode == 0
    assert sorted(os.listdir(private / "low-level/gpulatch-runtime")) == ["off", "true"]
