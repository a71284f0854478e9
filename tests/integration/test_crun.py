"""crun as the low-level runtime: under Docker beside runc, and called without an engine."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from drivers.bundle import Bundle
from drivers.docker import Docker
from drivers.engine import alive, refusal, wait_until
from drivers.engine_host import ENVIRONMENT, LAUNCHERS, LOW_LEVEL, ON_CRUN, ON_RUNC, SETTINGS, EngineHost
from drivers.host import Done

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "crun", "cc")

ALL = list(range(8))
ROOT = Path("/run/crun")
LEDGER = Path("/run/gpulatch/ledger.json")


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    return LOW_LEVEL


@pytest.fixture
def settings() -> Iterator[Path]:
    """The settings file, absent again afterwards."""
    yield SETTINGS
    SETTINGS.unlink()


class Crun:
    """gpulatch on crun, called as an engine would that names no root."""

    def __init__(self, machine: EngineHost) -> None:
        self.machine = machine
        self.program = str(LAUNCHERS / ON_CRUN)

    def call(self, *args: str) -> Done:
        return self.machine.host.run([self.program, *args], env=ENVIRONMENT)

    def start(self, bundle: Bundle, name: str) -> Done:
        return self.call("run", "--detach", "--bundle", str(bundle.path), name)

    def status(self, name: str) -> dict[str, Any]:
        """crun's own state file."""
        found: dict[str, Any] = json.loads((ROOT / name / "status").read_text())
        return found

    def remove_all(self) -> None:
        for name in self.call("list", "--quiet").stdout.split():
            self.call("delete", "--force", name)


@pytest.fixture
def crun(engine_host: EngineHost) -> Iterator[Crun]:
    found = Crun(engine_host)
    yield found
    found.remove_all()


# under Docker


def test_docker_on_crun_gives_what_was_asked_for(docker: Docker) -> None:
    docker.started("named", "--env", "NVIDIA_VISIBLE_DEVICES=3", runtime=ON_CRUN)
    docker.started("pair", "--env", "GPULATCH_GPUS=any:2", runtime=ON_CRUN)
    docker.started("count", "--gpus", "2", runtime=ON_CRUN)
    docker.started("plain", runtime=ON_CRUN)
    held = docker.held()
    assert held["named"] == [3]
    assert [len(held["pair"]), len(held["count"])] == [2, 2]
    assert len({gpu for gpus in held.values() for gpu in gpus}) == 5
    assert {name: docker.opens(name) for name in [*held, "plain"]} == {**held, "plain": []}
    assert {claim["runtime"] for claim in docker.host.claims()} == {ON_CRUN}


def test_docker_on_crun_execs_updates_and_pauses(docker: Docker) -> None:
    docker.started("box", "--gpus", "device=4", runtime=ON_CRUN)
    assert docker.run("exec", "--user", "1000", "box", "id", "-u") == "1000\n"
    assert docker.call("exec", "box", "sh", "-c", "exit 7").returncode == 7
    docker.run("update", "--cpu-shares", "512", "box")
    docker.run("pause", "box")
    assert docker.held() == {"box": [4]}
    docker.run("unpause", "box")
    assert docker.opens("box") == [4]
    assert "sleep 1000" in docker.run("top", "box")


def test_docker_on_crun_restarts_on_the_same_gpus(docker: Docker) -> None:
    docker.started("first", "--gpus", "1", runtime=ON_CRUN)
    docker.started("second", "--gpus", "1", runtime=ON_CRUN)
    docker.run("rm", "--force", "first")
    docker.run("restart", "--time", "0", "second")
    assert docker.held() == {"second": [1]}
    docker.run("stop", "--time", "0", "second")
    assert docker.held() == {}
    docker.run("start", "second")
    assert docker.held() == {"second": [1]}
    assert docker.opens("second") == [1]


@pytest.mark.parametrize("ending", [["kill"], ["rm", "--force"]], ids=" ".join)
def test_docker_on_crun_frees_the_gpus_however_it_ends(docker: Docker, ending: list[str]) -> None:
    docker.started("box", "--gpus", "8", runtime=ON_CRUN)
    docker.run(*ending, "box")
    assert docker.held() == {}
    docker.started("next", "--gpus", "8", runtime=ON_CRUN)


def test_docker_on_crun_frees_the_gpus_of_a_container_whose_shim_is_killed(docker: Docker) -> None:
    docker.started("box", "--gpus", "8", runtime=ON_CRUN)
    (shim,) = docker.shims()
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not docker.state("box")["Running"])
    assert docker.held() == {}
    docker.run("start", "box")
    assert docker.held() == {"box": ALL}


def test_docker_on_crun_holds_nothing_for_a_container_that_never_came_to_be(docker: Docker) -> None:
    failed = docker.try_to_start("box", "--gpus", "8", "--entrypoint", "/no/such/program", runtime=ON_CRUN)
    assert failed.returncode != 0
    assert docker.held() == {}


@pytest.mark.parametrize(("gpus", "code"), [("device=4", "GL-4002"), ("2", "GL-4001")])
def test_a_refusal_is_one_line_that_names_the_holder_of_the_other_runtime(docker: Docker, gpus: str, code: str) -> None:
    docker.started("owner", "--gpus", "8", runtime=ON_RUNC)
    refused = docker.try_to_start("late", "--gpus", gpus, runtime=ON_CRUN)
    assert refused.returncode == 125
    line = refusal(refused.stderr)
    assert code in line
    assert "owner" in line
    assert code in docker.state("late")["Error"]


def test_no_gpu_is_given_twice_across_runc_and_crun(docker: Docker) -> None:
    for number in range(4):
        docker.started(f"runc-{number}", "--gpus", "1", runtime=ON_RUNC)
        docker.started(f"crun-{number}", "--gpus", "1", runtime=ON_CRUN)
    held = docker.held()
    assert sorted(gpu for gpus in held.values() for gpu in gpus) == ALL
    assert {name: docker.opens(name) for name in held} == held


# settings of each runtime name


def test_one_runtime_name_observes_while_the_other_enforces(docker: Docker, settings: Path) -> None:
    settings.write_text(f'[runtime.{ON_CRUN}]\nmode = "observe"\n')
    docker.started("owner", "--env", "GPULATCH_GPUS=any:8", runtime=ON_RUNC)
    docker.started("watched", "--env", "GPULATCH_GPUS=any:1", runtime=ON_CRUN)
    assert (docker.opens("owner"), docker.opens("watched")) == (ALL, [])
    docker.run("rm", "--force", "owner")
    docker.started("second", "--env", "GPULATCH_GPUS=any:2", runtime=ON_CRUN)
    assert docker.claim("second")["observed"]
    docker.started("next", "--env", "GPULATCH_GPUS=any:8", runtime=ON_RUNC)
    assert docker.opens("next") == ALL


def test_each_runtime_name_hears_its_own_sources(docker: Docker, settings: Path) -> None:
    settings.write_text(
        f'[runtime.{ON_RUNC}]\nsources = ["gpulatch_gpus"]\n[runtime.{ON_CRUN}]\nsources = ["nvidia_visible_devices"]\n'
    )
    both = ["--env", "GPULATCH_GPUS=1", "--env", "NVIDIA_VISIBLE_DEVICES=2"]
    docker.started("on-runc", *both, runtime=ON_RUNC)
    docker.started("on-crun", *both, runtime=ON_CRUN)
    assert docker.held() == {"on-runc": [1], "on-crun": [2]}
    assert (docker.opens("on-runc"), docker.opens("on-crun")) == ([1], [2])


def test_an_image_that_sets_all_counts_only_under_the_name_that_hears_it(docker: Docker, settings: Path) -> None:
    settings.write_text(f'[runtime.{ON_CRUN}]\nlone_all = "none"\n')
    docker.started("deaf", image="cuda", runtime=ON_CRUN)
    assert docker.held() == {}
    assert docker.opens("deaf") == []
    docker.started("hears", image="cuda", runtime=ON_RUNC)
    assert docker.held() == {"hears": ALL}


# without an engine


def test_liveness_is_read_from_cruns_own_state_below_its_default_root(
    crun: Crun, bundle: Bundle, tmp_path: Path
) -> None:
    assert crun.start(bundle.asking_for("any:2"), "c1").returncode == 0
    assert crun.start(Bundle(tmp_path, "other").asking_for("any:1"), "c2").returncode == 0  # looks who lives
    (claim,) = [claim for claim in json.loads(LEDGER.read_text())["claims"] if claim["id"] == "c1"]
    status = crun.status("c1")
    assert claim["root"] == str(ROOT)
    assert claim["init"] == {"pid": status["pid"], "start": status["process-start-time"]}
    assert claim["cgroup"]["path"] == f"/sys/fs/cgroup{status['cgroup-path']}"
    assert not alive(claim["holder"]["pid"])
    os.kill(status["pid"], signal.SIGKILL)
    wait_until(lambda: list(crun.machine.host.held()) == ["c2"])
    assert crun.status("c1") == status  # the file is no proof of life


def test_cruns_root_is_where_xdg_runtime_dir_says_also_for_root(engine_host: EngineHost, bundle: Bundle) -> None:
    environment = {**ENVIRONMENT, "XDG_RUNTIME_DIR": "/run/test-xdg"}
    program = str(LAUNCHERS / ON_CRUN)
    command = [program, "run", "--detach", "--bundle", str(bundle.asking_for("any").path), "c1"]
    assert engine_host.host.run(command, env=environment).returncode == 0
    (claim,) = engine_host.host.claims()
    assert claim["root"] == "/run/test-xdg/crun"
    assert Path("/run/test-xdg/crun/c1/status").exists()
    engine_host.host.run([program, "delete", "--force", "c1"], env=environment)
    assert engine_host.host.claims() == []


def test_the_holder_is_crun_under_that_name(crun: Crun, bundle: Bundle) -> None:
    command = [crun.program, "run", "--bundle", str(bundle.asking_for("any").path), "c1"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
    wait_until(lambda: (ROOT / "c1/status").exists() or process.poll() is not None)
    (claim,) = json.loads(LEDGER.read_text())["claims"]
    assert claim["holder"]["pid"] == process.pid
    name = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0]
    assert name == f"/usr/lib/gpulatch/low-level/{ON_CRUN}/crun".encode()
    crun.call("delete", "--force", "c1")
    assert process.wait() == 128 + signal.SIGKILL
    assert crun.machine.host.claims() == []


def test_the_container_on_crun_gets_its_devices_and_variables(crun: Crun, bundle: Bundle) -> None:
    assert crun.start(bundle.asking_for("any:2").with_host_dev(), "c1").returncode == 0
    (claim,) = crun.machine.host.claims()
    held = [device["index"] for device in claim["devices"]]
    tried = 'for p in "$@"; do ( : <>"$p" ) 2>&1 | grep -q "No such device or address" && echo "$p"; done; true'
    nodes = {f"/host-dev/nvidia{gpu['minor']}": gpu["index"] for gpu in crun.machine.gpus}
    opened = crun.call("exec", "c1", "sh", "-c", tried, "sh", *nodes).stdout.split()
    assert [nodes[node] for node in opened] == held
    assert len(held) == 2
    environment = Path(f"/proc/{crun.status('c1')['pid']}/environ").read_text().split("\0")
    assert f"GPULATCH_DEVICES={','.join(crun.machine.gpus[index]['uuid'] for index in held)}" in environment


def test_a_refusal_on_crun_starts_nothing_and_says_who_holds_it(crun: Crun, bundle: Bundle, tmp_path: Path) -> None:
    assert crun.start(bundle.asking_for("any:8"), "owner").returncode == 0
    refused = crun.start(Bundle(tmp_path, "other").asking_for("1"), "late")
    assert refused.returncode == 1
    assert "held by container owner (exclusive)" in refusal(refused.stderr)
    assert not (ROOT / "late").exists()
