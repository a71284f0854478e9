"""packaging/install and packaging/uninstall below a folder of their own, and the hook that they put on PATH."""

import json
import os
import shutil
import subprocess
import tomllib
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
    assert done.stdout.count("\n") <= 30


@pytest.mark.parametrize("name", ["gpulatch", "gpulatch-1.x"])
def test_it_prints_what_each_engine_needs_in_words_that_each_can_read(tmp_path: Path, name: str) -> None:
    launcher = f"/usr/lib/gpulatch/bin/{name}"
    parts = [part.partition("\n")[2] for part in install(tmp_path, name).stdout.split("\n\n")]
    docker, cri, ctr, podman = json.loads(parts[1]), tomllib.loads(parts[2]), parts[3], tomllib.loads(parts[4])
    assert docker == {"runtimes": {name: {"path": launcher}}}
    runtimes = cri["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    ours = {"BinaryName": launcher, "SystemdCgroup": True}  # which must be the same for both
    assert runtimes[name] == {"runtime_type": "io.containerd.runc.v2", "options": ours}
    assert runtimes["runc"] == {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    assert f"--runc-binary {launcher} " in ctr
    assert podman["engine"]["runtimes"] == {name: [launcher]}
    assert {"runc", "crun", name} <= set(podman["engine"]["runtime_supports_json"])


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
    assert all(line.startswith(f"warning: {RUNC}: runc ") for line in done.stderr.splitlines())


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
    assert done.stderr.count(f"packaging/install: {hook} is not gpulatch's") == 1
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


@pytest.mark.parametrize("how", ["itself", "link", "hard link", "copy", "script"])
def test_a_runtime_that_would_call_itself_is_refused(tmp_path: Path, how: str) -> None:
    install(tmp_path)
    launcher, runc = tmp_path / PRIVATE / "bin/gpulatch", tmp_path / "runc"
    if how == "link":
        runc.symlink_to(launcher)
    elif how == "hard link":
        os.link(launcher, runc)
    elif how == "copy":
        shutil.copy(launcher, runc)
    elif how == "script":
        program(runc, f'exec {launcher} "$@"')
    for name in ("gpulatch", "again"):
        refused(tmp_path, launcher if how == "itself" else runc, "gpulatch", name)


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def refused(below: Path, low_level: Path, why: str, name: str = "again") -> None:
    """Installing is refused in one line and changes nothing."""
    before = everything(below)
    done = script("install", below, name, str(low_level))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"gpulatch: low-level runtime, {low_level}: ")
    assert why in done.stderr
    assert everything(below) == before


@pytest.mark.needs("crun")
@pytest.mark.parametrize(("name", "behind"), [("runc", "/usr/bin/crun"), ("crun", RUNC)])
def test_a_real_crun_under_the_name_runc_is_refused_and_the_reverse(tmp_path: Path, name: str, behind: str) -> None:
    (tmp_path / name).symlink_to(behind)
    refused(tmp_path, tmp_path / name, f"under a name that stands for {name}")


@pytest.mark.parametrize("how", ["writable file", "other owner", "writable folder"])
def test_a_runtime_that_others_can_change_is_refused(tmp_path: Path, how: str) -> None:
    runc = program(tmp_path / "runc", f"echo executed > {tmp_path}/executed")
    if how == "other owner":
        os.chown(runc, 1000, 1000)
    else:
        (runc if how == "writable file" else tmp_path).chmod(0o777)
    refused(tmp_path, runc, "others than root can change")


@pytest.mark.parametrize("version", ["runc version 1.0.0-rc93", "runc version 0.1.1"])
def test_a_runtime_that_is_too_old_is_refused(tmp_path: Path, version: str) -> None:
    refused(tmp_path, program(tmp_path / "runc", f"echo {version}"), "older than 1.0.0; install a newer runc")


@pytest.mark.parametrize("text", ["echo my own runtime 7", "exit 1", "yes", "echo youki version 0.3.3"])
def test_a_runtime_of_another_kind_is_installed_with_a_warning(tmp_path: Path, text: str) -> None:
    done = install(tmp_path, low_level=str(program(tmp_path / "own", text)))
    assert done.stderr.startswith(f"warning: {tmp_path}/own: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.needs("sandbox", "crun")
def test_names_on_runc_and_crun_share_one_book_and_have_modes_of_their_own(host: Host, tmp_path: Path) -> None:
    below, names = tmp_path / "dest", {"gpulatch": RUNC, "gpulatch-next": RUNC, "gpulatch-crun": "/usr/bin/crun"}
    Path("/etc/gpulatch/config.toml").write_text('[runtime.gpulatch-crun]\nmode = "observe"\n')
    for name, low_level in names.items():
        install(below, name, low_level)
        # crun before 1.14 raises a limit for its device filter, which needs a capability that not every machine gives
        more = ["--cgroup-manager", "disabled"] if name == "gpulatch-crun" else []
        bundle = Bundle(tmp_path, name).asking_for("any:2")
        command = [str(below / PRIVATE / "bin" / name), "--root", f"{ROOT}-{name}", *more, "run", "--detach"]
        done = host.run([*command, "--bundle", str(bundle.path), name])
        assert done.returncode == 0, done.stderr
    claims = {claim["runtime"]: claim["observed"] for claim in host.claims()}
    assert claims == {"gpulatch": False, "gpulatch-next": False, "gpulatch-crun": True}
    assert host.held()["gpulatch"] != host.held()["gpulatch-next"]
    for name in names:
        host.run([str(below / PRIVATE / "bin" / name), "--root", f"{ROOT}-{name}", "delete", "--force", name])
    assert host.claims() == []
    uninstall(below, "gpulatch-next")
    assert sorted(os.listdir(below / PRIVATE / "bin")) == ["gpulatch", "gpulatch-crun"]
    assert host.run([str(below / PRIVATE / "bin/gpulatch-crun"), "--version"]).stdout.startswith("crun version")


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
