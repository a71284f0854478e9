"""The README's first command shows the main job and leaves nothing behind."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from drivers.host import CHECKOUT

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")


def traces() -> dict[str, object]:
    """What a demo could leave on its host (here: the sandbox of the tests)."""
    return {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "cgroups": sorted(folder for folder, _, _ in os.walk("/sys/fs/cgroup")),
        "processes": sorted(name for name in os.listdir("/proc") if name.isdecimal()),
        "/run": sorted(os.listdir("/run")),
        "/etc": sorted(os.listdir("/etc")),
        "/dev": sorted(os.listdir("/dev")),
        "/tmp": sorted(name for name in os.listdir("/tmp") if "gpulatch" in name),
    }


def demo() -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "gpulatch"), "demo"]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def test_the_demo_shows_the_main_job_in_less_than_a_minute_and_leaves_nothing() -> None:
    before = traces()
    start = time.monotonic()
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - start < 60
    assert done.stderr == ""
    text = done.stdout
    assert text.count("GPUs 0,1: most NVLink bandwidth") == 1
    assert text.count("GPUs 2,3: most NVLink bandwidth") == 1
    assert "6 free GPUs" in text
    assert "3 of 8 are free, held: GPU 0 by trainer" in " ".join(text.split())
    control = "nvidia-uvm nvidia-uvm-tools"
    for name, nodes in (("trainer", "nvidia1 nvidia2"), ("tuner", "nvidia3 nvidia4"), ("notebook", "nvidia0")):
        assert re.search(rf"^{name} +passed on to the driver +{control} {nodes} nvidiactl *$", text, re.MULTILINE)
    assert text.count("refused, EPERM") == 3
    assert text.rstrip().endswith("are gone.")
    assert "No container holds a GPU." in text
    assert traces() == before


def test_without_a_build_it_says_what_to_do(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    subprocess.run(["cp", "-r", str(CHECKOUT / "runtime_wrapper"), str(copy)], check=True)
    code = "from runtime_wrapper.operate.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "demo"], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is not built; run: packaging/build" in done.stderr
    assert done.stderr.count("\n") == 1
