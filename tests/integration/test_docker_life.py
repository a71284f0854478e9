"""What people do with a running GPU container in Docker, and what the book says meanwhile."""

import os
import signal

import pytest
from drivers import usr_overlay
from drivers.docker import Docker, wait_until

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "cc")


def test_a_process_started_by_exec_has_the_containers_gpus(docker: Docker) -> None:
    docker.started("box", "--gpus", "device=4")
    assert docker.opens("box") == [4]  # asks by docker exec
    assert docker.run("exec", "--user", "1000", "box", "id", "-u") == "1000\n"
    assert docker.call("exec", "box", "sh", "-c", "exit 7").returncode == 7


def test_update_changes_nothing_about_the_gpus(docker: Docker) -> None:
    docker.started("box", "--gpus", "1")
    options = {"pids": ["--pids-limit", "100"], "memory": ["--memory", "64m", "--memory-swap", "64m"]}
    given = [word for name in sorted(usr_overlay.controllers() & set(options)) for word in options[name]]
    docker.run("update", "--restart", "no", *given, "box")
    assert docker.opens("box") == [0]
    assert docker.held() == {"box": [0]}


def test_a_paused_container_keeps_its_gpus(docker: Docker) -> None:
    docker.started("paused", "--gpus", "1")
    docker.run("pause", "paused")
    docker.started("other", "--gpus", "1")
    assert docker.held() == {"paused": [0], "other": [1]}
    docker.run("unpause", "paused")
    assert docker.opens("paused") == [0]


def test_stats_top_and_logs_work(docker: Docker) -> None:
    docker.call("run", "--name", "speaker", "--runtime", "gpulatch", "--gpus", "1", "box", "echo", "spoken")
    docker.started("box", "--gpus", "1")
    assert docker.run("stats", "--no-stream", "--format", "{{.Name}}", "box") == "box\n"
    assert "sleep 1000" in docker.run("top", "box")
    assert docker.run("logs", "speaker") == "spoken\n"


def test_standard_input_output_and_exit_code_are_the_containers(docker: Docker) -> None:
    command = ["run", "--rm", "--interactive", "--runtime", "gpulatch", "--gpus", "1", "box"]
    done = docker.call(*command, "sh", "-c", "cat; echo told >&2; exit 3", stdin="heard\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "heard\n", "told\n")


def test_a_restart_keeps_the_gpus_though_better_ones_are_free(docker: Docker) -> None:
    docker.started("first", "--gpus", "1")
    docker.started("second", "--gpus", "1")
    docker.run("rm", "--force", "first")
    docker.run("restart", "--time", "0", "second")
    assert docker.held() == {"second": [1]}
    assert docker.opens("second") == [1]


def test_stop_frees_the_gpus_and_start_gets_the_same_if_they_are_free(docker: Docker) -> None:
    docker.started("first", "--gpus", "1")
    docker.started("second", "--gpus", "1")
    docker.run("stop", "--time", "0", "first", "second")
    assert docker.held() == {}
    docker.run("start", "second")
    assert docker.held() == {"second": [1]}
    docker.run("start", "first")
    assert docker.held() == {"first": [0], "second": [1]}


def test_start_gets_other_gpus_when_the_old_ones_are_taken(docker: Docker) -> None:
    docker.started("first", "--gpus", "1")
    docker.run("stop", "--time", "0", "first")
    docker.started("thief", "--gpus", "1")
    assert docker.held() == {"thief": [0]}
    docker.run("start", "first")
    assert docker.held() == {"thief": [0], "first": docker.opens("first")}
    assert docker.opens("first") not in ([], [0])


@pytest.mark.parametrize("ending", [["kill"], ["kill", "--signal", "KILL"], ["rm", "--force"], ["stop", "--time", "0"]])
def test_the_gpus_are_free_at_the_next_look_however_it_ends(docker: Docker, ending: list[str]) -> None:
    docker.started("box", "--gpus", "8")
    docker.run(*ending, "box")
    assert docker.held() == {}
    docker.started("next", "--gpus", "8")


def test_a_signal_that_ends_nothing_frees_nothing(docker: Docker) -> None:
    docker.started("box", "--gpus", "1")
    docker.run("kill", "--signal", "CONT", "box")
    assert docker.held() == {"box": [0]}


def test_a_container_that_ends_by_itself_frees_its_gpus(docker: Docker) -> None:
    docker.run("run", "--rm", "--runtime", "gpulatch", "--gpus", "8", "box", "true")
    assert docker.held() == {}
    docker.run("run", "--name", "kept", "--runtime", "gpulatch", "--gpus", "8", "box", "true")
    assert docker.held() == {}


def test_a_container_that_never_came_to_be_holds_nothing(docker: Docker) -> None:
    failed = docker.call("run", "--name", "box", "--runtime", "gpulatch", "--gpus", "8", "box", "/no/such/program")
    assert failed.returncode == 127
    assert "/no/such/program" in failed.stderr
    assert docker.held() == {}


def test_restart_always_brings_it_back_on_the_same_gpus(docker: Docker) -> None:
    docker.started("first", "--gpus", "1")
    docker.started("always", "--gpus", "1", "--restart", "always")
    docker.run("rm", "--force", "first")
    before = docker.pid("always")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: docker.state("always")["Running"] and docker.pid("always") not in (0, before))
    assert docker.inspect("always")["RestartCount"] == 1
    assert docker.held() == {"always": [1]}
    assert docker.opens("always") == [1]


def test_a_name_that_is_used_again_is_another_container(docker: Docker) -> None:
    docker.started("box", "--gpus", "2")
    docker.run("rm", "--force", "box")
    docker.started("box", "--gpus", "1")
    assert docker.held() == {"box": docker.opens("box")}
    assert len(docker.opens("box")) == 1


def test_gpulatch_cannot_be_taken_out_under_a_container_that_holds_a_gpu(docker: Docker) -> None:
    docker.started("trainer", "--gpus", "1")
    refused = docker.uninstall()
    assert refused.returncode == 1
    assert refused.stderr == "packaging/uninstall: containers of gpulatch hold GPUs: trainer; stop them first\n"
    assert docker.opens("trainer") == [0]


def test_docker_says_what_is_missing_when_gpulatch_was_taken_out_too_early(docker: Docker) -> None:
    docker.started("trainer", "--gpus", "0")
    assert docker.uninstall().returncode == 0
    try:
        assert "fork/exec /usr/lib/gpulatch/bin/gpulatch" in docker.try_to_start("late").stderr
        hook = 'exec: "nvidia-container-runtime-hook": executable file not found in $PATH'
        assert hook in docker.try_to_start("asking", "--gpus", "1").stderr
    finally:
        docker.install()
    docker.run("stop", "trainer")
