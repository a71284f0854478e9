"""Which programs can be a low-level runtime: their files (a fake file system) and what they say (real processes)."""

import os
import time
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from runtime_wrapper.errors import LowLevelError
from runtime_wrapper.operate import vetting

RUNC = "/usr/sbin/runc"
LAUNCHER = b"\x7fELF...\0/runtime_wrapper/main.py\0..."
GPULATCH = "/usr/lib/gpulatch/bin/gpulatch"


@pytest.fixture
def disk(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> FakeFilesystem:
    """A host with a runc and a launcher; `--version` is answered by what the file holds."""
    monkeypatch.setattr(vetting, "ask", lambda path: Path(path).read_bytes().decode(errors="replace"))
    program(fs, RUNC, b"runc version 1.3.0\n")
    program(fs, GPULATCH, LAUNCHER)
    return fs


def program(fs: FakeFilesystem, path: str, content: bytes) -> str:
    """A program of root's, in folders of root's."""
    fs.create_file(path, contents=content, st_mode=0o100755)
    os.chown(path, 0, 0)
    folder = os.path.dirname(path)
    while True:
        os.chown(folder, 0, 0)
        os.chmod(folder, 0o755)
        if folder == "/":
            return path
        folder = os.path.dirname(folder)


def refusal(path: str) -> str:
    error = vetting.vet(path).error
    assert error is not None
    text = str(error)
    assert text.startswith(f"gpulatch: low-level runtime, {path}: ")
    assert text.endswith(" (GL-6001)")
    return text


def test_a_good_runtime_is_taken_without_a_word(disk: FakeFilesystem) -> None:
    found = vetting.vet(RUNC)
    assert (str(found.version), found.error, found.warnings) == ("runc 1.3.0", None, ())


@pytest.mark.parametrize("path", ["/no/such/runc", "/usr/sbin", "/usr/sbin/plain", "/usr/sbin/dangling"])
def test_what_cannot_be_executed_is_refused(disk: FakeFilesystem, path: str) -> None:
    disk.create_file("/usr/sbin/plain", st_mode=0o100644)
    disk.create_symlink("/usr/sbin/dangling", "/nowhere")
    assert "cannot be executed" in refusal(path)


@pytest.mark.parametrize("name", ["off", ".runc"])
def test_a_name_that_the_launcher_would_not_take_for_a_link_is_refused(disk: FakeFilesystem, name: str) -> None:
    assert "make a link of another name" in refusal(program(disk, f"/opt/{name}", b"runc version 1.3.0\n"))


@pytest.mark.parametrize(
    ("step", "mode", "uid"),
    [
        (RUNC, 0o775, 0),
        (RUNC, 0o757, 0),
        (RUNC, 0o755, 1000),
        ("/usr/sbin", 0o775, 0),
        ("/usr", 0o755, 1000),
        ("/", 0o777, 0),
    ],
)
def test_what_others_can_change_is_refused_and_never_executed(
    disk: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, step: str, mode: int, uid: int
) -> None:
    monkeypatch.setattr(vetting, "ask", lambda path: pytest.fail("executed"))
    os.chmod(step, mode)
    os.chown(step, uid, 0)
    text = refusal(RUNC)
    assert f"others than root can change {step} (uid {uid}, mode {mode:04o})" in text
    assert f"chown -h root {step}" in text


def test_every_folder_of_a_chain_of_links_is_looked_at(disk: FakeFilesystem) -> None:
    program(disk, "/b/runc", b"runc version 1.3.0\n")
    disk.create_dir("/a")
    os.chown("/a", 0, 0)
    os.chmod("/a", 0o755)
    disk.create_symlink("/a/second", "../b/./runc")
    disk.create_symlink("/usr/sbin/first", "/a/second")
    os.chown("/a/second", 0, 0, follow_symlinks=False)
    os.chown("/usr/sbin/first", 0, 0, follow_symlinks=False)
    assert vetting.vet("/usr/sbin/first").error is None
    os.chmod("/a", 0o777)
    assert "can change /a (" in refusal("/usr/sbin/first")
    os.chmod("/a", 0o1777)
    assert vetting.vet("/usr/sbin/first").error is None
    os.chown("/a/second", 1000, 0, follow_symlinks=False)
    assert "can change /a/second (" in refusal("/usr/sbin/first")


def test_a_launcher_is_known_under_every_name(disk: FakeFilesystem) -> None:
    program(disk, "/opt/runc", LAUNCHER)
    disk.create_symlink("/opt/crun", GPULATCH)
    os.chown("/opt/crun", 0, 0, follow_symlinks=False)
    for path in (GPULATCH, "/opt/runc", "/opt/crun"):
        assert "is gpulatch itself" in refusal(path)


@pytest.mark.parametrize(
    ("script", "refused"),
    [
        (b'#!/bin/sh\nexec /usr/lib/gpulatch/bin/gpulatch "$@"\n', True),
        (b"#!/bin/sh\nR=/usr/lib/gpulatch/bin/gpulatch; exec $R\n", True),
        (b"#!/usr/lib/gpulatch/bin/gpulatch\n", True),
        (b'#!/bin/sh\n  # for /usr/lib/gpulatch/bin/gpulatch\nexec /usr/sbin/runc "$@"\n', False),
        (b"#!/bin/sh\nexec gpulatch\n", False),
    ],
)
def test_a_script_that_names_a_launcher_is_refused(disk: FakeFilesystem, script: bytes, refused: bool) -> None:
    program(disk, "/opt/runc", script)
    if refused:
        assert f"starts gpulatch again ({GPULATCH})" in refusal("/opt/runc")
    else:
        assert vetting.vet("/opt/runc").error is None


@pytest.mark.parametrize(
    ("path", "says", "why"),
    [
        ("/opt/runc", "crun version 1.8.1", "is crun 1.8.1 under a name that stands for runc"),
        ("/opt/my-runtime", "crun version 1.8.1", "is crun 1.8.1 under a name that stands for runc"),
        ("/opt/crun", "runc version 1.3.0", "is runc 1.3.0 under a name that stands for crun"),
        ("/opt/krun", "runc version 1.3.0", "is runc 1.3.0 under a name that stands for crun"),
        ("/opt/nvidia-container-runtime", "NVIDIA x version 1\n\ncrun version 1.8.1", 'name runc first in "runtimes"'),
        ("/opt/runc", "runc version 1.0.0-rc93", "is runc 1.0.0-rc93, older than 1.0.0; install a newer runc"),
        ("/opt/crun", "crun version 0.17", "is crun 0.17, older than 1.0.0; install a newer crun"),
        ("/opt/nvidia-container-runtime", "runc version 1.0.0-rc8", "older than 1.0.0"),
    ],
)
def test_the_wrong_kind_and_too_old_a_version_are_refused(disk: FakeFilesystem, path: str, says: str, why: str) -> None:
    assert why in refusal(program(disk, path, says.encode()))
    assert vetting.vet(path).version is not None


@pytest.mark.parametrize(
    ("path", "says", "warning"),
    [
        ("/opt/runc", "garbage", "in a form known here; it is called as runc"),
        ("/opt/crun-wrapper", "", "in a form known here; it is called as crun"),
        ("/opt/runc", "runc version unknown", "does not say which version"),
        ("/opt/youki", "youki version 0.3.3", "is youki 0.3.3, on which gpulatch is not tested"),
        ("/opt/runc", "runc version 1.2.4", "runc 1.2.4: "),
    ],
)
def test_what_is_not_known_to_be_wrong_is_taken_with_a_warning(
    disk: FakeFilesystem, path: str, says: str, warning: str
) -> None:
    found = vetting.vet(program(disk, path, says.encode()))
    assert found.error is None
    assert len(found.warnings) == 1
    assert warning in found.warnings[0]


def test_one_that_does_not_answer_in_time_is_taken_with_a_warning(
    disk: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vetting, "ask", lambda path: None)
    found = vetting.vet(RUNC)
    assert found.error is None
    assert "does not answer --version within 5 s" in found.warnings[0]


# ---- asking a real program ----


def script(folder: Path, text: str) -> str:
    path = folder / "runtime"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_it_is_asked_without_environment_terminal_and_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    text = 'echo "$*"; pwd; cat; echo "[$SECRET]"; (: </dev/tty) 2>/dev/null && echo tty; echo hidden >&2'
    assert vetting.ask(script(tmp_path, text)) == "--version\n/\n[]\n"


def test_its_exit_code_does_not_matter(tmp_path: Path) -> None:
    assert vetting.ask(script(tmp_path, "echo runc version 1.3.0; exit 7")) == "runc version 1.3.0\n"


@pytest.mark.parametrize("text", ["sleep 60", "sleep 60 & echo runc version 1.3.0", "trap '' TERM; sleep 60"])
def test_a_hanging_one_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(vetting, "TIME_LIMIT_S", 0.2)
    before = time.monotonic()
    assert vetting.ask(script(tmp_path, f"echo $$ > {tmp_path}/pid; {text}")) is None
    assert time.monotonic() - before < 30
    group = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        while True:  # killed, but its orphans may not have been reaped by init yet
            os.killpg(group, 0)
            assert time.monotonic() - before < 30
            time.sleep(0.01)


def test_endless_output_is_cut_off(tmp_path: Path) -> None:
    output = vetting.ask(script(tmp_path, "echo runc version 1.3.0; exec yes"))
    assert output is not None
    assert output.startswith("runc version 1.3.0\n")
    assert len(output) <= vetting.MAX_OUTPUT_BYTES + 4096


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    assert vetting.ask(script(tmp_path, r"printf '\377\376\0'")) == "\ufffd\ufffd\0"


def test_one_that_cannot_be_started_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runtime"
    path.write_bytes(b"\x7fELF rubbish")
    path.chmod(0o755)
    with pytest.raises(LowLevelError, match="cannot be executed \\(ENOEXEC\\)"):
        vetting.ask(str(path))


@pytest.mark.parametrize(
    ("path", "grammar"),
    [
        ("/usr/sbin/runc", "runc"),
        ("/usr/bin/nvidia-container-runtime", "runc"),
        ("/usr/bin/my-crun", "runc"),
        ("/usr/bin/crun", "crun"),
        ("/usr/bin/crun-wasm", "crun"),
        ("/usr/bin/krun", "crun"),
        ("/crun/runc", "runc"),
    ],
)
def test_the_grammar_comes_from_the_last_part_of_the_path(path: str, grammar: str) -> None:
    assert vetting.grammar(path) == grammar
