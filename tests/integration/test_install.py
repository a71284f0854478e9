"""packaging/install and packaging/uninstall below a folder of their own, and the hook that they put on PATH."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import CHECKOUT, ROOT, Done, Host

pytestmark = pytest.mark.needs("root", "runc", "cc")

RUNC = "/usr/sbin/runc"
PRIVATE = "usr/lib/gpulatch"
TMPFILES = "usr/lib/tmpfiles.d/gpulatch.conf"
HOOK = "usr/bin/nvidia-container-runtime-hook"


def script(name: str, below: Path, *words: str) -> Done:
    command = [str(CHECKOUT / "packaging" / name), *words]
    env = {"PATH": os.environ["PATH"], "DESTDIR": str(below)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def install(below: Path, name: str = "gpulatch", low_level: str = RUNC) -> Done:
    done = script("install", below, name, low_level)
    assert done.returncode == 0, done.stderr
    return done


def uninstall(below: Path, name: str = "gpulatch") -> Done:
    done = script("uninstall", below, name)
    assert done.returncode == 0, done.stderr
    return done


def everything(below: Path) -> list[str]:
    """Files, links and empty folders below a folder, without Python's own."""
    found = (path for path in below.rglob("*") if not path.is_dir() or path.is_symlink() or not any(path.iterdir()))
    return sorted(str(path.relative_to(below)) for path in found if "__pycache__" not in path.parts)


def call_hook(below: Path, given: str) -> Done:
    command = [str(below / HOOK), "prestart"]
    return subprocess.run(command, input=given, env={}, capture_output=True, text=True, check=False)


def test_it_installs_launcher_state_directory_and_hook_and_says_what_docker_needs(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert os.readlink(tmp_path / PRIVATE / "low-level/gpulatch/runc") == RUNC
    assert os.access(tmp_path / PRIVATE / "bin/gpulatch", os.X_OK)
    assert "d /run/gpulatch 0700 root root -" in (tmp_path / TMPFILES).read_text().splitlines()
    assert (tmp_path / HOOK).resolve() == tmp_path / PRIVATE / "hooks/nvidia-container-runtime-hook"
    assert os.access(tmp_path / HOOK, os.X_OK)
    entry = json.loads(done.stdout[done.stdout.index("{") :])
    assert entry == {"runtimes": {"gpulatch": {"path": "/usr/lib/gpulatch/bin/gpulatch"}}}


@pytest.mark.needs("sandbox")
def test_what_it_installs_gives_containers_their_gpus(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    install(tmp_path / "dest")
    launcher = str(tmp_path / "dest" / PRIVATE / "bin/gpulatch")
    command = [launcher, "--root", ROOT, "run", "--detach", "--bundle", str(bundle.asking_for("any:1").path), "c1"]
    assert host.run(command).returncode == 0
    assert host.claims()[0]["runtime"] == "gpulatch"


def test_installing_again_changes_nothing(tmp_path: Path) -> None:
    install(tmp_path)
    before = everything(tmp_path)
    done = install(tmp_path)
    assert everything(tmp_path) == before
    assert done.stderr == ""


def test_the_low_level_runtime_of_a_name_can_be_changed(tmp_path: Path) -> None:
    install(tmp_path)
    install(tmp_path, low_level="/bin/true")
    assert os.listdir(tmp_path / PRIVATE / "low-level/gpulatch") == ["true"]


def test_names_live_side_by_side_and_the_last_takes_everything_along(tmp_path: Path) -> None:
    install(tmp_path)
    before = everything(tmp_path)
    install(tmp_path, "gpulatch-other", "/bin/true")
    uninstall(tmp_path, "gpulatch-other")
    assert everything(tmp_path) == before
    uninstall(tmp_path)
    assert everything(tmp_path) == ["usr/bin", "usr/lib/tmpfiles.d"]


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_hook_that_is_not_ours_stays_through_all(tmp_path: Path, kind: str) -> None:
    hook = tmp_path / HOOK
    hook.parent.mkdir(parents=True)
    if kind == "file":
        hook.write_text("NVIDIA's")
    else:
        hook.symlink_to("/bin/true" if kind == "link" else "/no/such")
    before = hook.read_text() if kind == "file" else os.readlink(hook)
    done = install(tmp_path)
    assert done.stderr.count("\n") == 1
    assert f"{hook} is not gpulatch's" in done.stderr
    assert (tmp_path / PRIVATE / "bin/gpulatch").exists()
    uninstall(tmp_path)
    assert (hook.read_text() if kind == "file" else os.readlink(hook)) == before


def test_files_that_are_not_ours_keep_their_folder(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / PRIVATE / "notes").write_text("mine")
    done = uninstall(tmp_path)
    assert "stays" in done.stderr
    assert everything(tmp_path / PRIVATE) == ["notes"]


@pytest.mark.parametrize("name", ["Gpulatch", "-x", ".x", "a/b", "../up", "", "a b", "a\nb", "runc"])
def test_a_bad_name_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    done = script("install", tmp_path, name, RUNC)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert everything(tmp_path) == []


@pytest.mark.parametrize("low_level", ["/no/such/runc", "/etc/passwd", "/etc", "runc"])
def test_a_runtime_that_cannot_be_executed_is_refused_in_one_line(tmp_path: Path, low_level: str) -> None:
    done = script("install", tmp_path, "gpulatch", low_level)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot be executed" in done.stderr
    assert everything(tmp_path) == []


def test_a_runtime_that_would_call_itself_is_refused(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "runc").symlink_to(tmp_path / PRIVATE / "bin/gpulatch")
    for low_level in (tmp_path / PRIVATE / "bin/gpulatch", tmp_path / "runc"):
        done = script("install", tmp_path, "again", str(low_level))
        assert done.returncode == 1
        assert "would call itself" in done.stderr
    assert os.listdir(tmp_path / PRIVATE / "low-level") == ["gpulatch"]


@pytest.mark.parametrize("words", [("install", "gpulatch", RUNC), ("uninstall", "gpulatch")])
def test_without_root_one_line_says_so(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")  # a real other user may not be able to read the checkout
    (tmp_path / "id").chmod(0o755)
    command = [str(CHECKOUT / "packaging" / words[0]), *words[1:]]
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DESTDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs root" in done.stderr


def test_a_name_that_is_not_installed_cannot_be_uninstalled(tmp_path: Path) -> None:
    install(tmp_path)
    before = everything(tmp_path)
    done = script("uninstall", tmp_path, "gpulatch-other")
    assert done.returncode == 1
    assert "gpulatch-other is not installed" in done.stderr
    assert everything(tmp_path) == before


@pytest.mark.parametrize("words", [("install",), ("install", "a"), ("install", "a", "b", "c"), ("uninstall",)])
def test_a_wrong_number_of_words_is_answered_with_the_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = script(words[0], tmp_path, *words[1:])
    assert (done.returncode, done.stderr.splitlines()[0].split()[0]) == (2, "usage:")


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        (["NVIDIA_VISIBLE_DEVICES=0"], True),
        (["GPULATCH_GPUS=any:2"], True),
        (["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=1"], True),
        (["NVIDIA_VISIBLE_DEVICES=void"], False),
        (["NVIDIA_VISIBLE_DEVICES="], False),
        (["NVIDIA_VISIBLE_DEVICES=none"], False),
        ([], False),
    ],
)
def test_the_hook_fails_with_one_line_if_gpus_are_asked_for_and_else_says_nothing(
    tmp_path: Path, bundle: Bundle, env: list[str], wanted: bool
) -> None:
    install(tmp_path / "dest", "gpulatch-own")
    bundle.env(*env)
    done = call_hook(tmp_path / "dest", json.dumps({"id": "x", "bundle": str(bundle.path)}))
    assert (done.returncode, done.stdout) == (int(wanted), "")
    if wanted:
        assert done.stderr.startswith("gpulatch: GPUs asked for, env ")
        assert done.stderr.endswith(" (GL-6002)\n")
        assert done.stderr.count("\n") == 1
        assert "add --runtime gpulatch-own" in done.stderr
    else:
        assert done.stderr == ""


@pytest.mark.parametrize(
    "given",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"bundle": 7}',
        '{"bundle": "relative"}',
        '{"bundle": "/no/such"}',
        "[" * 9999,
    ],
)
def test_a_state_that_says_nothing_is_one_line(tmp_path: Path, given: str) -> None:
    install(tmp_path)
    done = call_hook(tmp_path, given)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpulatch: ")
    assert done.stderr.count("\n") == 1
    assert "GL-1001" in done.stderr


@pytest.mark.parametrize("text", ["NVIDIA_VISIBLE_DEVICES", "{", "[]"])
def test_a_spec_that_is_no_json_is_one_line(tmp_path: Path, bundle: Bundle, text: str) -> None:
    install(tmp_path / "dest")
    bundle.config.write_text(text)
    done = call_hook(tmp_path / "dest", json.dumps({"id": "x", "bundle": str(bundle.path)}))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "GL-1001" in done.stderr
