"""`gpulatch runtimes`: what it tells of installed names, good and broken ones, and its exit code."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from drivers.host import CHECKOUT, Done, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc", "crun", "cc")

RUNC, CRUN = "/usr/sbin/runc", "/usr/bin/crun"
SCHEMA = json.loads((CHECKOUT / "schemas/runtime.json").read_text())


class Private:
    """A private directory that the command looks at instead of the installed one."""

    def __init__(self, host: Host, path: Path) -> None:
        self.host, self.path = host, path

    def add(self, name: str, low_level: str) -> None:
        command = [str(CHECKOUT / "packaging/build"), "-o", str(self.path), "-n", name, "-l", low_level]
        subprocess.run(command, check=True, capture_output=True)

    def link(self, name: str, basename: str = "runc") -> Path:
        return self.path / "low-level" / name / basename

    def point(self, name: str, target: Path | str) -> None:
        """Make the link of a name lead elsewhere, as no installer would."""
        self.link(name).unlink()
        self.link(name).symlink_to(target)

    def call(self, *args: str) -> Done:
        directories = f"(Path({str(self.path)!r}), Path('/no/such'))"
        preparation = (
            f"from pathlib import Path; import runtime_wrapper.operate.runtimes as r; r.DIRECTORIES = {directories};"
        )
        return self.host.gpulatch_as(preparation, "runtimes", *args)

    def told(self, name: str) -> dict[str, Any]:
        """What `--json` says of one name; all of it fits the schema and the exit code."""
        done = self.call("--json")
        found = json.loads(done.stdout)
        for entry in found:
            jsonschema.Draft202012Validator(SCHEMA).validate(entry)
        wrong = any(entry["problems"] or entry["settings_error"] for entry in found)
        assert (done.returncode, done.stderr) == (int(wrong), "")
        return next(entry for entry in found if entry["name"] == name)


@pytest.fixture
def private(host: Host, tmp_path: Path) -> Private:
    found = Private(host, tmp_path / "private")
    found.add("gpulatch", RUNC)
    return found


def test_each_name_is_told_with_its_runtime_version_switch_and_mode(private: Private, tmp_path: Path) -> None:
    private.add("gpulatch-crun", CRUN)
    private.link("gpulatch-crun", "off").touch()
    Path("/etc/gpulatch/config.toml").write_text('[runtime.gpulatch-crun]\nmode = "observe"\n')
    said = subprocess.run([CRUN, "--version"], capture_output=True, text=True, check=True).stdout
    assert private.told("gpulatch-crun") == {
        "name": "gpulatch-crun",
        "directory": str(private.path),
        "low_level": CRUN,
        "resolved": CRUN,
        "program": "crun",
        "version": said.split()[2],
        "grammar": "crun",
        "off": True,
        "mode": "observe",
        "settings_error": None,
        "problems": [],
        "warnings": [],
    }
    told = private.told("gpulatch")
    assert (told["program"], told["grammar"], told["off"], told["mode"]) == ("runc", "runc", False, "enforce")
    done = private.call()
    assert done.returncode == 0
    rows = [line.split()[:6] for line in done.stdout.splitlines() if line.startswith("gpulatch")]
    assert rows[1] == ["gpulatch-crun", CRUN, "crun", said.split()[2], "crun", "off"]
    assert str(private.path) in done.stdout


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def spoil(private: Private, how: str, folder: Path) -> None:
    """Breaks the name gpulatch."""
    launcher = private.path / "bin/gpulatch"
    targets = {
        "dangling": "/no/such",
        "directory": folder,
        "not executable": "/etc/passwd",
        "recursive": launcher,
        "copy": folder / "copy",
        "wrong kind": CRUN,
        "too old": folder / "old",
        "writable": folder / "writable",
        "loops": folder / "loops",
    }
    shutil.copy(launcher, folder / "copy")
    script(folder / "old", "echo runc version 1.0.0-rc10")
    script(folder / "writable", f"echo > {folder}/executed", mode=0o777)
    script(folder / "loops", f"exec {launcher}")
    if how in targets:
        private.point("gpulatch", targets[how])
    elif how == "no link":
        private.link("gpulatch").unlink()
    elif how == "no folder":
        shutil.rmtree(private.link("gpulatch").parent)
    elif how == "several links":
        private.link("gpulatch", "crun").symlink_to(CRUN)
    elif how == "no launcher":
        launcher.unlink()
    elif how == "another program":
        shutil.copy("/bin/true", launcher)
    else:
        assert how == "writable launcher"
        launcher.chmod(0o777)


WAYS = {
    "dangling": "cannot be executed (ENOENT)",
    "directory": "no regular file",
    "not executable": "cannot be executed",
    "recursive": "is gpulatch itself",
    "copy": "is gpulatch itself",
    "wrong kind": "under a name that stands for runc",
    "too old": "is runc 1.0.0-rc10, older than 1.0.0",
    "writable": "others than root can change",
    "loops": "starts gpulatch again",
    "no link": "has no link in it",
    "no folder": "has no link in it",
    "several links": "has several links in it",
    "no launcher": "cannot be opened (ENOENT)",
    "another program": "is not gpulatch's launcher",
    "writable launcher": "others than root can change",
}


@pytest.mark.parametrize("how", WAYS)
def test_what_is_wrong_with_a_name_is_told_and_the_exit_code_is_1(private: Private, tmp_path: Path, how: str) -> None:
    private.add("healthy", CRUN)
    spoil(private, how, tmp_path)
    (problem,) = private.told("gpulatch")["problems"]
    assert WAYS[how] in problem
    assert "; " in problem
    assert private.told("healthy")["problems"] == []
    done = private.call()
    assert done.returncode == 1
    assert WAYS[how].split()[0] in done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "executed").exists()


def test_settings_that_cannot_be_used_are_told_in_the_column_of_the_mode(private: Private) -> None:
    Path("/etc/gpulatch/config.toml").write_text("mode = 7\n")
    told = private.told("gpulatch")
    assert told["mode"] is None
    assert told["settings_error"].endswith("(GL-7001)")
    assert told["problems"] == []
    done = private.call()
    assert done.returncode == 1
    assert "GL-7001" in done.stdout


def test_where_nothing_is_installed_it_says_so(host: Host, tmp_path: Path) -> None:
    private = Private(host, tmp_path)
    assert (private.call().stdout, private.call().returncode) == ("No runtime name is installed.\n", 0)
    assert json.loads(private.call("--json").stdout) == []


def test_by_itself_it_looks_at_the_checkout_and_the_installation(host: Host) -> None:
    done = host.gpulatch("runtimes", "--json")
    found = {(entry["directory"], entry["name"]) for entry in json.loads(done.stdout)}
    assert (str(CHECKOUT / "build/gpulatch"), "gpulatch-runtime") in found
    installed = Path("/usr/lib/gpulatch/bin")
    expected = os.listdir(installed) if installed.exists() else []
    assert {name for directory, name in found if directory == "/usr/lib/gpulatch"} == set(expected)
