"""The launcher: compiled, in a private directory of its own, against a probe, real runc and real crun.

The probe stands for the low-level runtime and prints all that a process is given. What it prints when the launcher is
in front must be, byte for byte, what it prints when it is called alone.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper.argv import parse

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "packaging" / "launcher" / "gpulatch-runtime.c"
RECORDED: list[dict[str, Any]] = json.loads((ROOT / "tests" / "data" / "recorded_argv.json").read_text())
OTHER_LINES = [recorded["argv"] for recorded in RECORDED if "expect" not in recorded]

pytestmark = pytest.mark.needs("cc")

# Prints argv, environment, signal sets, umask, open descriptors, working directory and stdin, then ends as it is told.
PROBE = r"""
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void copy(const char *title, FILE *from, const char *only)
{
	char text[65536];
	printf("== %s\n", title);
	for (size_t n; !only && (n = fread(text, 1, sizeof text, from)) > 0;)
		fwrite(text, 1, n, stdout);
	while (only && fgets(text, sizeof text, from))
		if (!strncmp(text, only, strlen(only)) && text[3] != 'Q') /* SigQ counts for the whole user */
			fputs(text, stdout);
}

int main(int argc, char **argv)
{
	char cwd[4096];
	copy("argv", fopen("/proc/self/cmdline", "r"), NULL);
	copy("environ", fopen("/proc/self/environ", "r"), NULL);
	copy("signals", fopen("/proc/self/status", "r"), "Sig");
	printf("== argc %d umask %o cwd %s descriptors", argc, umask(0), getcwd(cwd, sizeof cwd));
	for (int fd = 0; fd < 64; fd++)
		if (fd != 3 && fd != 4 && fd != 5 && lseek(fd, 0, SEEK_CUR) != -1)
			printf(" %d", fd);
	copy("stdin", stdin, NULL);
	fflush(stdout);
	const char *last = argc ? argv[argc - 1] : "";
	if (!strncmp(last, "signal=", 7))
		raise(atoi(last + 7));
	return strncmp(last, "exit=", 5) ? 0 : atoi(last + 5);
}
"""

# Stands for the pipeline: tells what it was given as one line of JSON.
MAIN = """
import json, os, sys
told = {
    "argv": sys.argv, "environ": open("/proc/self/environ", "rb").read().decode("latin-1"), "cwd": os.getcwd(),
    "stdin": sys.stdin.read(), "isolated": sys.flags.isolated, "no_site": sys.flags.no_site,
    "no_bytecode": sys.flags.dont_write_bytecode,
}
print("PIPELINE " + json.dumps(told))
"""


def compiled(source: Path, to: Path, *options: str) -> Path:
    command = ["cc", "-O2", "-static", "-Wall", "-Wextra", "-Werror", *options, "-o", str(to), str(source)]
    subprocess.run(command, check=True)
    return to


def compiled_launcher(to: Path, *options: str) -> Path:
    return compiled(SOURCE, to, "-nostdlib", "-ffreestanding", "-fno-stack-protector", *options)


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_launcher(tmp_path_factory.mktemp("launcher") / "launcher")


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("probe") / "probe.c"
    source.write_text(PROBE)
    return compiled(source, source.with_suffix(""))


class Called:
    """What came of one call."""

    def __init__(self, done: "subprocess.CompletedProcess[bytes]") -> None:
        self.exit, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def pipeline(self) -> dict[str, Any] | None:
        found = re.search(rb"^PIPELINE (.*)$", self.out, re.MULTILINE)
        return json.loads(found[1]) if found else None

    def __repr__(self) -> str:
        return f"exit {self.exit}\n{self.out!r}\n{self.err!r}"


def call(
    program: Path,
    argv: Sequence[str | bytes],
    env: Sequence[bytes] = (b"A=1",),
    cwd: Path | str = "/",
    stdin: bytes = b"",
    before: Callable[[], object] = lambda: None,
) -> Called:
    """Runs a program with exactly these words (argv[0] too) and environment entries, which `subprocess` cannot."""
    libc = ctypes.CDLL(None)
    words = [os.fsencode(word) for word in argv]

    def execute() -> None:
        before()
        libc.execve(
            os.fsencode(program), (ctypes.c_char_p * (len(words) + 1))(*words), (ctypes.c_char_p * (len(env) + 1))(*env)
        )
        os._exit(127)

    return Called(subprocess.run(["-"], input=stdin, capture_output=True, cwd=cwd, preexec_fn=execute, timeout=60))


class Libdir:
    """A private directory as an installation makes it."""

    def __init__(self, path: Path, launcher: Path) -> None:
        self.path, self.launcher = path, launcher
        (path / "bin").mkdir(parents=True)
        (path / "runtime_wrapper").mkdir()
        self.main.write_text(MAIN)

    @property
    def main(self) -> Path:
        return self.path / "runtime_wrapper" / "main.py"

    def add(self, name: str, *links: tuple[str, Path]) -> Path:
        """A runtime name with its links to low-level runtimes; returns the launcher that engines call."""
        (self.path / "low-level" / name).mkdir(parents=True)
        for basename, target in links:
            self.link(name, basename).symlink_to(target)
        shutil.copy(self.launcher, self.path / "bin" / name)
        return self.path / "bin" / name

    def link(self, name: str, basename: str) -> Path:
        return self.path / "low-level" / name / basename


@pytest.fixture
def libdir(tmp_path: Path, launcher: Path) -> Libdir:
    return Libdir(tmp_path / "lib", launcher)


# ---- straight to the low-level runtime ----

ODD_ENVIRONMENTS: dict[str, list[bytes]] = {
    "empty": [],
    "duplicates": [b"A=1", b"A=2", b"A=1"],
    "odd names": [b"a.b=1", b"a-b=2", b"=x", b"1=1", b"no equals sign", b"", b"A=\xff\xfe\n"],
    "what shells touch": [b"IFS=x", b"PWD=/nowhere", b"SHLVL=7", b"OPTIND=9", b"_=x", b"LC_ALL=C"],
}


@pytest.mark.parametrize("argv", OTHER_LINES, ids=lambda argv: " ".join(argv)[-60:])
def test_every_recorded_call_that_is_no_create_reaches_the_runtime_unchanged(
    libdir: Libdir, probe: Path, argv: list[str]
) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    given = [b"PATH=/usr/bin", *ODD_ENVIRONMENTS["odd names"], b"PATH=/bin"]
    alone = call(probe, [str(libdir.link("gpulatch-runtime", "runc")), *argv], given, "/usr", b"a\0b\n")
    behind = call(gpulatch, ["anything", *argv], given, "/usr", b"a\0b\n")
    assert "\0".join(argv).encode() in alone.out, "the probe itself tells its arguments"
    assert (behind.exit, behind.out, behind.err) == (alone.exit, alone.out, alone.err)


@pytest.mark.parametrize("given", ODD_ENVIRONMENTS.values(), ids=ODD_ENVIRONMENTS)
def test_the_environment_is_not_touched(libdir: Libdir, probe: Path, given: list[bytes]) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    behind = call(gpulatch, ["x", "state", "id"], given)
    shown = behind.out.split(b"== environ\n")[1].split(b"== signals\n")[0]
    assert shown == b"".join(entry + b"\0" for entry in given)


def test_arguments_of_any_bytes_and_number_are_not_touched(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    odd: list[str | bytes] = ["exec", "", "id", b"\xff\xfe", "a\nb", "--x=", "", *["word"] * 20_000, ""]
    link = str(libdir.link("gpulatch-runtime", "runc"))
    alone, behind = call(probe, [link, *odd]), call(gpulatch, ["x", *odd])
    assert (behind.exit, behind.out) == (0, alone.out)
    assert b"argc 20009 " in behind.out


def test_a_call_without_any_argument_is_passed_on(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    for argv in ([], ["x"]):
        assert call(gpulatch, argv).out.startswith(
            b"== argv\n" + bytes(libdir.link("gpulatch-runtime", "runc")) + b"\0=="
        )


def test_umask_signals_and_open_descriptors_are_not_touched(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))

    def before() -> None:
        os.umask(0o137)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.dup2(os.open("/etc/passwd", os.O_RDONLY), 17)

    alone = call(probe, [str(libdir.link("gpulatch-runtime", "runc")), "state"], before=before)
    behind = call(gpulatch, ["x", "state"], before=before)
    assert behind.out == alone.out
    assert b"umask 137" in behind.out
    assert b" 17" in behind.out.split(b"descriptors")[1]
    assert f"SigBlk:\t{1 << (signal.SIGUSR2 - 1):016x}".encode() in behind.out


@pytest.mark.parametrize(("last", "exit_code"), [("exit=0", 0), ("exit=7", 7), ("signal=9", -9), ("signal=15", -15)])
def test_the_exit_of_the_runtime_is_the_exit_of_the_call(
    libdir: Libdir, probe: Path, last: str, exit_code: int
) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    assert call(gpulatch, ["x", "state", last]).exit == exit_code


def test_the_runtime_name_comes_from_the_executable_and_not_from_argv(
    libdir: Libdir, probe: Path, tmp_path: Path
) -> None:
    libdir.add("one", ("runc", probe))
    libdir.add("two", ("crun", probe))
    (tmp_path / "one").symlink_to(libdir.path / "bin" / "two")
    called = call(tmp_path / "one", ["one", "state", "id"])
    assert called.out.startswith(b"== argv\n" + bytes(libdir.link("two", "crun")) + b"\0state\0id\0")


def test_a_runtime_name_may_hold_odd_characters(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add('a "b"\n%s é', ("runc", probe))
    assert call(gpulatch, ["x", "state", "exit=3"]).exit == 3


# ---- to the pipeline ----


@pytest.mark.parametrize("subcommand", ["create", "run", "restore"])
@pytest.mark.parametrize("low_level", ["runc", "crun", "krun", "crun-wasm", "nvidia-container-runtime"])
def test_create_run_and_restore_go_to_the_pipeline(
    libdir: Libdir, probe: Path, low_level: str, subcommand: str
) -> None:
    gpulatch = libdir.add("gpulatch-runtime", (low_level, probe))
    argv = ["--root", "/r", "--log=/l", subcommand, "--bundle", "/b", "id é\n", ""]
    given = [b"A=1", b"A=2", b"PYTHONPATH=/nowhere", b"PYTHONSTARTUP=/x", b"a.b=c"]
    told = call(gpulatch, ["x", *argv], given, "/usr", b"input").pipeline
    assert told is not None
    link = str(libdir.link("gpulatch-runtime", low_level))
    assert told["argv"] == [str(libdir.main), "gpulatch-runtime", link, *argv]
    assert told["environ"].encode("latin-1") == b"".join(entry + b"\0" for entry in given)
    assert (told["cwd"], told["stdin"]) == ("/usr", "input")
    assert (told["isolated"], told["no_site"], told["no_bytecode"]) == (1, 1, 1)


def test_the_switch_file_sends_everything_to_the_runtime_whatever_else_is_broken(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    libdir.link("gpulatch-runtime", "off").touch()
    libdir.main.unlink()
    called = call(gpulatch, ["x", "create", "-b", "/b", "exit=5"])
    assert called.exit == 5
    assert b"\0create\0-b\0/b\0exit=5\0" in called.out


# ---- one grammar, three readers: the launcher, argv.parse, the runtime itself ----

NOB = "-b nowhere"  # no such bundle: a runtime that takes the line fails later, with another message

# What the runtime takes as one of the three subcommands.
RUNC_OURS = [
    f"create {NOB} id",
    f"run {NOB} id",
    f"restore {NOB} id",
    f"-root r create {NOB} id",
    f"--root=r --log l --log-format=json --debug create {NOB} id",
    f"--debug=false -systemd-cgroup=F --help=false -v=0 create {NOB} id",
    f"--root create create {NOB} create",
    f"--root -- create {NOB} id",
    f"-- create {NOB} -- -id",
    f"create id {NOB} --no-pivot",
    "create -bundle=nowhere --pid-file run id",
    "create --bundle --no-pivot id",
    "create nowhere id --bundle",
    "run id -d -b nowhere --",
    f"--criu x --rootless=true create {NOB} --preserve-fds 3 id",
]
# What only runc 1.5 takes.
RUNC_1_5 = [f"create --root r {NOB} id", f"run --detach id {NOB}", f"--debug= create {NOB} id", f"create id {NOB} --"]
RUNC_REFUSED = [
    "--root",
    "--nope create id",
    "---root r create id",
    "--=x create id",
    "-=x create id",
    "--debug=maybe create id",
    "--debug false create id",
    "--roo r create id",
    "-b nowhere create id",
    "create",
    "create id other",
    "create id --bundle",
    "create --nope id",
    "create id --nope",
    "create ---bundle nowhere id",
    "create --no-pivot=maybe id",
    "create --no-pivot false id",
    "create -bnowhere id",
    "create --keep id",
    "run -db nowhere id",
    "create id -- -b nowhere",
    "create -- -b nowhere id",
    "restore id other",
    "creat id",
    "- create id",
    "--help create id",
    "-v create id",
    "create --help id",
    "create id -h",
]
CRUN_OURS = [
    f"create {NOB} id",
    f"run {NOB} id",
    f"--root r --log-format=json --debug create {NOB} id",
    f"--roo r --log-f json --deb create {NOB} id",
    f"--roo=r --log- json create {NOB} id",
    f"--HANG=0 --HAN=0 --prog x --cgroup-manager cgroupfs create {NOB} id",
    f"--sys --rootless=true --root r create {NOB} id",
    f"--root create create {NOB} create",
    f"--root -- create {NOB} id",
    f"-- create {NOB} -- -id",
    "create --bun nowhere --no-p --no-n id",
    "create -bnowhere id",
    "create -b=nowhere id",
    "run -db nowhere id",
    "run -dbnowhere id",
    "create --bundle -- id",
    "create --pid-file run --cons create -f nowhere id",
    "create -",
]
CRUN_REFUSED = [
    "--root",
    "--nope create id",
    "-root r create id",
    "--lo l create id",
    "--debug=1 create id",
    "--=x create id",
    "-d create id",
    "-b nowhere create id",
    "--log-format xml create id",
    "cre id",
    "-- -- create id",
    "- create id",
    "create",
    "create id other",
    "create id -b nowhere",
    "create id --",
    "create --bundle",
    "create -b",
    "create --nope id",
    "create --no id",
    "create --c x id",
    "create --root r id",
    "create --no-pivot=1 id",
    "create --bundle= id",
    "create -d id",
    "run -dx id",
    "run -d? id",
    "-v create id",
    "-? create id",
    "--he create id",
    "--usage create id",
    "--v create id",
    "create --hel id",
    "create --usage id",
]
OTHER = [
    "state create",
    "delete create",
    "exec id create",
    "--root create state id",
    "--log run start create",
    "--version",
]

REFUSED_BY_LAUNCHER = re.compile(r"^(-|creat? |cre )")  # before the subcommand; the rest is for argv.parse to see


def verdicts(libdir: Libdir, probe: Path, low_level: str, line: str) -> tuple[bool, bool]:
    """Whether the launcher calls the pipeline, and whether `parse` then takes the line for ours."""
    gpulatch = libdir.add("gpulatch-runtime", (low_level, probe))
    called = call(gpulatch, ["x", *line.split()])
    assert (called.exit, called.err) == (0, b"")
    return called.pipeline is not None, parse(line.split(), low_level, "/", {}, 0) is not None


@pytest.mark.parametrize(
    ("low_level", "line"),
    [("runc", line) for line in RUNC_OURS + RUNC_1_5] + [("crun", line) for line in [*CRUN_OURS, "restore -b b id id"]],
)
def test_launcher_and_parse_take_what_the_runtime_takes(libdir: Libdir, probe: Path, low_level: str, line: str) -> None:
    assert verdicts(libdir, probe, low_level, line) == (True, True)


@pytest.mark.parametrize(
    ("low_level", "line"), [("runc", line) for line in RUNC_REFUSED] + [("crun", line) for line in CRUN_REFUSED]
)
def test_launcher_or_parse_pass_on_what_the_runtime_refuses(
    libdir: Libdir, probe: Path, low_level: str, line: str
) -> None:
    to_pipeline, ours = verdicts(libdir, probe, low_level, line)
    assert not ours
    before_subcommand = bool(REFUSED_BY_LAUNCHER.match(line)) and "xml" not in line
    assert to_pipeline is not before_subcommand


@pytest.mark.parametrize("low_level", ["runc", "crun"])
def test_an_update_goes_to_python_for_crun_alone(libdir: Libdir, probe: Path, low_level: str) -> None:
    """crun would take the GPUs away where the engine's resources have device rules, see runtime_wrapper/crun_update."""
    line = "--root /r update --resources - id"
    assert verdicts(libdir, probe, low_level, line) == (low_level == "crun", False)


@pytest.mark.parametrize("low_level", ["runc", "crun"])
@pytest.mark.parametrize("line", OTHER)
def test_launcher_and_parse_pass_on_every_other_subcommand(
    libdir: Libdir, probe: Path, low_level: str, line: str
) -> None:
    assert verdicts(libdir, probe, low_level, line) == (False, False)


USAGE = {
    "runc": re.compile(r"Incorrect Usage|No help topic for|^NAME:|^runc version", re.MULTILINE),
    "crun": re.compile(
        r"unrecognized option|is ambiguous|requires an argument|doesn't allow an argument|invalid option"
        r"|unknown command|please specify|requires a maximum of|^Usage:|^crun version|unknown log format"
        r"|realpath `` failed",
        re.MULTILINE,
    ),
}


def asked(low_level: str, line: str, tmp_path: Path) -> bool:
    """Whether the real runtime refuses the line as a line, or prints something instead of doing it."""
    program = str(shutil.which(low_level, path=f"{os.environ['PATH']}:/usr/sbin"))
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    answer = subprocess.run(
        [program, *line.split()], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30
    )
    assert answer.returncode != 0 or USAGE[low_level].search(answer.stdout), "the line must not really start anything"
    return USAGE[low_level].search(answer.stdout + answer.stderr) is not None


@pytest.mark.needs("runc")
@pytest.mark.parametrize("line", RUNC_REFUSED)
def test_runc_refuses_the_lines_that_we_call_refused(line: str, tmp_path: Path) -> None:
    assert asked("runc", line, tmp_path)


@pytest.mark.needs("crun")
@pytest.mark.parametrize("line", CRUN_REFUSED)
def test_crun_refuses_the_lines_that_we_call_refused(line: str, tmp_path: Path) -> None:
    assert asked("crun", line, tmp_path)


@pytest.mark.needs("runc")
@pytest.mark.parametrize("line", RUNC_OURS)
def test_runc_takes_the_lines_that_we_take(line: str, tmp_path: Path) -> None:
    assert not asked("runc", line, tmp_path)


@pytest.mark.needs("crun")
@pytest.mark.parametrize("line", CRUN_OURS)
def test_crun_takes_the_lines_that_we_take(line: str, tmp_path: Path) -> None:
    assert not asked("crun", line, tmp_path)


# ---- errors of the launcher itself ----

DOCKER_WORDS = re.compile(
    "permission denied|is a directory|not a directory|no such file or directory|executable file not found",
    re.IGNORECASE,
)


def refusal(called: Called) -> str:
    """The one line on stderr of a call that the launcher itself refused."""
    assert (called.exit, called.out) == (1, b"")
    text = called.err.decode()
    assert text.endswith("\n")
    assert re.fullmatch(r"gpulatch: [^,\n]+, [^\n]+: [^\n]+; [^\n]+ \(GL-6001\)\n", text)
    assert not DOCKER_WORDS.search(text)
    return text[:-1]


def broken(libdir: Libdir, how: str, target: Path) -> Path:
    """A runtime name that is broken in the given way."""
    gpulatch = libdir.path / "bin" / "gpulatch-runtime"
    if how == "loop to itself":
        return libdir.add("gpulatch-runtime", ("runc", gpulatch))
    if how == "loop by a hard link":
        other = libdir.path / "runc"
        libdir.add("gpulatch-runtime", ("runc", other))
        os.link(gpulatch, other)
        return gpulatch
    if how == "loop by a chain of links":
        first, second = libdir.path / "first", libdir.path / "second"
        first.symlink_to(second)
        second.symlink_to(gpulatch)
        return libdir.add("gpulatch-runtime", ("runc", first))
    if "launcher" in how or "circle of directories" in how:
        return chained(libdir, how)
    if how == "dangling":
        return libdir.add("gpulatch-runtime", ("runc", libdir.path / "nowhere"))
    if how == "links in a circle":
        return libdir.add("gpulatch-runtime", ("runc", libdir.link("gpulatch-runtime", "runc")))
    if how == "two links":
        return libdir.add("gpulatch-runtime", ("runc", target), ("crun", target))
    if how == "a directory":
        return libdir.add("gpulatch-runtime", ("runc", libdir.path))
    if how == "not executable":
        return libdir.add("gpulatch-runtime", ("runc", libdir.main))
    assert how in ("no link", "no directory")
    libdir.add("gpulatch-runtime")
    if how == "no directory":
        libdir.link("gpulatch-runtime", "").rmdir()
    return gpulatch


def chained(libdir: Libdir, how: str) -> Path:
    """A runtime name on top of another launcher."""
    if how == "another launcher":
        return libdir.add("gpulatch-runtime", ("runc", libdir.add("other", ("runc", Path("/bin/true")))))
    if how == "a copy of the launcher elsewhere":
        return libdir.add("gpulatch-runtime", ("runc", Path(shutil.copy(libdir.launcher, libdir.path / "runc"))))
    if how == "a launcher of another build":
        return libdir.add("gpulatch-runtime", ("runc", compiled_launcher(libdir.path / "runc", '-DPYTHON="/other/py"')))
    assert how == "two names in a circle of directories"
    other = Libdir(libdir.path / "other", libdir.launcher)
    crun = other.add("crun", ("runc", libdir.path / "bin" / "gpulatch-runtime"))
    return libdir.add("gpulatch-runtime", ("crun", crun))


WAYS = {
    "loop to itself": "leads back to the launcher",
    "loop by a hard link": "leads back to the launcher",
    "loop by a chain of links": "leads back to the launcher",
    "another launcher": "leads to another launcher",
    "a copy of the launcher elsewhere": "leads to another launcher",
    "a launcher of another build": "leads to another launcher",
    "two names in a circle of directories": "leads to another launcher",
    "dangling": "cannot be followed (ENOENT)",
    "links in a circle": "cannot be followed (ELOOP)",
    "two links": "has several links",
    "a directory": "cannot be executed (EACCES)",
    "not executable": "cannot be executed (EACCES)",
    "no link": "has no link in it",
    "no directory": "cannot be read (ENOENT)",
}


@pytest.mark.parametrize("how", WAYS)
def test_a_low_level_link_that_leads_nowhere_good_is_told_in_one_line(libdir: Libdir, probe: Path, how: str) -> None:
    gpulatch = broken(libdir, how, probe)
    for line in (["state", "id"], ["--version"], [], ["delete", "--force", "id"]):
        text = refusal(call(gpulatch, ["x", *line]))
        assert WAYS[how] in text
        assert str(libdir.path / "low-level" / "gpulatch-runtime") in text


@pytest.mark.parametrize("how", [how for how in WAYS if how not in ("a directory", "not executable")])
def test_a_create_is_told_too_before_the_pipeline_starts(libdir: Libdir, probe: Path, how: str) -> None:
    assert WAYS[how] in refusal(call(broken(libdir, how, probe), ["x", "create", "id"]))


def test_a_small_runtime_and_a_script_are_no_launchers(libdir: Libdir, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n# not /runtime_wrapper/main.py\nexit 7\n")
    (tmp_path / "script").chmod(0o755)
    assert call(libdir.add("gpulatch-runtime", ("runc", tmp_path / "script")), ["x", "state"]).exit == 7
    assert call(libdir.add("other", ("runc", Path("/bin/false"))), ["x", "state"]).exit == 1


def exchange(one: Path, other: Path) -> None:
    at_fdcwd, rename_exchange = -100, 2
    ctypes.CDLL(None).renameat2(at_fdcwd, bytes(one), at_fdcwd, bytes(other), rename_exchange)


def test_calls_go_on_while_the_low_level_runtime_of_a_name_is_changed(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    libdir.add("next", ("crun", probe))
    done = threading.Event()

    def change() -> None:
        while not done.wait(0.001):
            exchange(libdir.link("gpulatch-runtime", ""), libdir.link("next", ""))

    changing = threading.Thread(target=change)
    changing.start()
    called = [call(gpulatch, ["x", "state", "exit=3"]) for _ in range(300)]
    done.set()
    changing.join()
    assert [each for each in called if each.exit != 3] == []
    assert {each.out.split(b"\0")[0].rsplit(b"/", 1)[1] for each in called} == {b"runc", b"crun"}


@pytest.mark.needs("runc", "crun")
@pytest.mark.parametrize("low_level", ["runc", "crun"])
def test_features_are_the_runtimes_own(libdir: Libdir, low_level: str) -> None:
    program = Path(str(shutil.which(low_level, path=f"{os.environ['PATH']}:/usr/sbin")))
    gpulatch = libdir.add("gpulatch-runtime", (low_level, program))
    for line in (["features"], ["--root", "/nowhere", "features"]):
        alone, behind = call(program, [low_level, *line]), call(gpulatch, ["x", *line])
        assert (behind.exit, behind.out, behind.err) == (alone.exit, alone.out, alone.err)
        assert behind.out or behind.exit  # crun before 1.8.6 has none and says so


def test_hidden_names_and_plain_files_beside_the_link_are_ignored(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe), (".runc.new", probe))
    libdir.link("gpulatch-runtime", "README").touch()
    assert call(gpulatch, ["x", "state", "exit=4"]).exit == 4


def test_a_pipeline_that_is_not_there_is_told(libdir: Libdir, probe: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    libdir.main.unlink()
    text = refusal(call(gpulatch, ["x", "create", "id"]))
    assert f"wrapper, {libdir.main}: cannot be read (ENOENT)" in text
    assert call(gpulatch, ["x", "state", "exit=6"]).exit == 6


def test_built_with_libc_it_behaves_the_same(libdir: Libdir, probe: Path, tmp_path: Path) -> None:
    libdir.launcher = compiled(SOURCE, tmp_path / "launcher")
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    alone = call(probe, [str(libdir.link("gpulatch-runtime", "runc")), "state", "exit=3"])
    behind = call(gpulatch, ["x", "state", "exit=3"])
    assert (behind.exit, behind.out) == (3, alone.out)
    assert call(gpulatch, ["x", "create", "id"]).pipeline is not None


def test_a_python_that_is_not_there_is_told(libdir: Libdir, probe: Path, tmp_path: Path) -> None:
    libdir.launcher = compiled_launcher(tmp_path / "launcher", '-DPYTHON="/nowhere/python3"')
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    text = refusal(call(gpulatch, ["x", "create", "id"]))
    assert "wrapper, /nowhere/python3: cannot be executed (ENOENT)" in text


def test_odd_characters_of_a_path_do_not_reach_the_message(libdir: Libdir, tmp_path: Path) -> None:
    gpulatch = libdir.add('no such file or directory\n"\\%s', ("runc", Path("/nowhere")))
    log = tmp_path / "log.json"
    text = refusal(call(gpulatch, ["x", "--log", str(log), "--log-format", "json", "state"]))
    assert '/no?such?file?or?directory?"\\%s/runc: cannot' in text
    assert json.loads(log.read_text())["msg"] == text


RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.mark.parametrize("low_level", ["runc", "crun"])
@pytest.mark.parametrize("line", ["--log {} --log-format json state", "--log-format=json --log=/x --log={} create id"])
def test_an_error_is_one_json_record_at_the_end_of_the_log(
    libdir: Libdir, tmp_path: Path, low_level: str, line: str
) -> None:
    gpulatch = libdir.add("gpulatch-runtime", (low_level, Path("/nowhere")))
    log = tmp_path / "log.json"
    log.write_text('{"level":"info"}\n')
    text = refusal(call(gpulatch, ["x", *line.format(log).split()]))
    before, record, end = log.read_text().split("\n")
    assert (before, end) == ('{"level":"info"}', "")
    fields = json.loads(record)
    assert (fields.pop("level"), fields.pop("msg")) == ("error", text)
    written = datetime.strptime(fields.pop("time"), "%Y-%m-%dT%H:%M:%S%z")
    assert abs(datetime.now(UTC) - written) < timedelta(minutes=1)
    assert fields == {}


def test_an_error_is_one_text_record_when_that_is_the_format(libdir: Libdir, tmp_path: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", Path("/nowhere")))
    text = refusal(call(gpulatch, ["x", "-log", "log", "state"], cwd=tmp_path))
    assert re.fullmatch(f'time="{RFC3339}" level=error msg="{re.escape(text)}"\n', (tmp_path / "log").read_text())
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) & 0o133 == 0


def test_an_error_reaches_the_log_when_even_the_grammar_is_unknown(libdir: Libdir, tmp_path: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime")
    text = refusal(call(gpulatch, ["x", "--log", str(tmp_path / "log"), "--log-format", "json", "state"]))
    assert json.loads((tmp_path / "log").read_text())["msg"] == text


def test_cruns_log_may_name_a_file_or_a_daemon(libdir: Libdir, tmp_path: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("crun", Path("/nowhere")))
    text = refusal(call(gpulatch, ["x", "--log", f"file:{tmp_path}/log", "state"], cwd=tmp_path))
    assert text in (tmp_path / "log").read_text()
    for elsewhere in ("journald:x", "syslog:x", "relative-to-the-bundle"):
        refusal(call(gpulatch, ["x", "--log", elsewhere, "state"], cwd=tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["lib", "log"]


def test_a_log_that_is_a_symlink_is_not_followed(libdir: Libdir, tmp_path: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", Path("/nowhere")))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "log").symlink_to(victim)
    refusal(call(gpulatch, ["x", "--log", str(tmp_path / "log"), "state"]))
    assert victim.read_text() == "mine"


def test_a_log_that_is_a_fifo_holds_nothing_up(libdir: Libdir, tmp_path: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", Path("/nowhere")))
    os.mkfifo(tmp_path / "log")
    refusal(call(gpulatch, ["x", "--log", str(tmp_path / "log"), "state"]))


def test_a_success_prints_nothing_and_writes_no_log(libdir: Libdir, probe: Path, tmp_path: Path) -> None:
    gpulatch = libdir.add("gpulatch-runtime", ("runc", probe))
    for line in ("create id", "state id"):
        called = call(gpulatch, ["x", "--log", str(tmp_path / "log"), *line.split()])
        assert (called.exit, called.err) == (0, b"")
    assert not (tmp_path / "log").exists()
