import subprocess
import sys
from pathlib import Path

import pytest

from runtime_wrapper import engine

DOCKER_ROOT = "/var/run/docker/runtime-runc/moby"


@pytest.mark.parametrize(
    ("root", "annotations", "expected"),
    [
        (DOCKER_ROOT, {}, "docker"),
        ("/run/x/runtime-runc/other", {}, "docker"),
        (DOCKER_ROOT, {"io.container.manager": "libpod"}, "docker"),
        ("/run/containerd/runc/default", {}, "containerd"),
        ("/run/containerd/runc/k8s.io", {"io.kubernetes.cri.container-type": "container"}, "kubernetes"),
        ("/run/other", {"io.kubernetes.cri.container-type": "container"}, "kubernetes"),
        ("/run/runc", {"io.container.manager": "libpod"}, "podman"),
        ("/run/crun", {"io.container.manager": "cri-o"}, "cri-o"),
        ("/run/runc", {}, "none"),
        ("/", {"io.container.manager": "someone"}, "none"),
    ],
)
def test_the_engine_is_told_by_the_state_root_then_by_annotations(
    root: str, annotations: dict[str, str], expected: str
) -> None:
    assert engine.of({"annotations": annotations}, root) == expected


@pytest.mark.parametrize(
    ("kind", "annotations", "name"),
    [
        (
            "kubernetes",
            {"io.kubernetes.cri.container-name": "c", "io.kubernetes.cri.sandbox-name": "p"},
            "p/c",
        ),
        ("kubernetes", {"io.kubernetes.cri.container-name": "c"}, "c"),
        ("kubernetes", {"io.kubernetes.cri.sandbox-name": "p"}, "p"),
        ("cri-o", {"io.kubernetes.pod.name": "p", "io.kubernetes.cri-o.ContainerName": "c"}, "p/c"),
        ("containerd", {"nerdctl/name": "web"}, "web"),
        ("containerd", {}, None),
    ],
)
def test_containers_are_named_as_their_engine_names_them(
    kind: str, annotations: dict[str, str], name: str | None
) -> None:
    assert engine.container_name(kind, {"annotations": annotations}, "id", 0) == name


def test_a_long_name_is_cut() -> None:
    data = {"annotations": {"io.kubernetes.cri.container-name": "x" * 10**6}}
    assert len(str(engine.container_name("kubernetes", data, "id", 0))) == 128


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["-c", "abc", "-n", "web"], "web"),
        (["--cid", "abc", "--name", "web"], "web"),
        (["-c", "another", "-n", "web"], None),
        (["-c", "abc", "-n"], None),
        (["-c", "abc"], None),
    ],
)
def test_podmans_name_is_what_the_containers_own_conmon_was_told(words: list[str], name: str | None) -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as conmon:
        assert conmon.stdout
        conmon.stdout.readline()
        assert engine.container_name("podman", {}, "abc", conmon.pid) == name


def test_a_parent_that_is_gone_leaves_a_container_without_a_name(tmp_path: Path) -> None:
    assert engine.container_name("podman", {}, "abc", 2**22 + 1) is None
