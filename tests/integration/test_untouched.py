"""A container without a GPU request is as with plain runc: spec, argv, environment, stdin, output, exit code.

The comparison is first proved on plain runc itself: two runs of it give the same, and a difference is seen.
"""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import ROOT, RUNTIME, Host, private_directory

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

PLAIN = ["runc"]
TELL = 'env; cat; id; umask; grep -E "Sig(Ign|Blk)|Cap" /proc/self/status; ls /dev; echo to-stderr >&2; exit 3'


@dataclass(frozen=True)
class Behaviour:
    exit_code: int
    stdout: str
    stderr: str
    spec: bytes
    files: tuple[str, ...]
    mode: int


def behaviour(host: Host, runtime: Sequence[str], bundle: Bundle, env: dict[str, str] | None = None) -> Behaviour:
    command = [*runtime, "--root", ROOT, "run", "--bundle", str(bundle.path), "same-id"]
    done = host.run(command, stdin="from stdin\n", env=env or {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "A": "1"})
    return Behaviour(
        done.returncode,
        done.stdout,
        done.stderr,
        bundle.config.read_bytes(),
        tuple(bundle.files()),
        bundle.config.stat().st_mode,
    )


@pytest.fixture
def talker(bundle: Bundle) -> Bundle:
    return bundle.running("sh", "-c", TELL).env("B=2", "B=3", "x.y-z=1")


def test_the_comparison_holds_for_plain_runc_and_sees_a_difference(host: Host, talker: Bundle) -> None:
    first = behaviour(host, PLAIN, talker)
    assert first.exit_code == 3
    assert "from stdin" in first.stdout
    assert first.stderr == "to-stderr\n"
    assert behaviour(host, PLAIN, talker) == first
    talker.env("C=4")
    assert behaviour(host, PLAIN, talker) != first


@pytest.mark.parametrize(
    "env",
    [
        [],
        ["NVIDIA_VISIBLE_DEVICES="],
        ["NVIDIA_VISIBLE_DEVICES=void"],
        ["NVIDIA_VISIBLE_DEVICES=0,void"],
        ["NVIDIA_VISIBLE_DEVICES=all", "GPULATCH_GPUS=void"],
        ["nvidia_visible_devices=all"],
        ["CUDA_VISIBLE_DEVICES=0"],
        ["NVIDIA_DRIVER_CAPABILITIES=all"],
    ],
)
def test_a_container_without_a_request_is_as_with_plain_runc(host: Host, talker: Bundle, env: list[str]) -> None:
    talker.env(*env)
    assert behaviour(host, [RUNTIME], talker) == behaviour(host, PLAIN, talker)
    assert host.held() == {}


def test_it_is_so_without_any_nvidia_driver_and_without_our_state_directory(host: Host, talker: Bundle) -> None:
    host.run(["umount", "-l", "/proc/driver"])
    plain = behaviour(host, PLAIN, talker)
    assert behaviour(host, [RUNTIME], talker) == plain
    assert not Path("/run/gpulatch").exists()


def break_settings() -> None:
    Path("/etc/gpulatch/config.toml").write_text("[broken")


def break_state() -> None:
    Path("/run/gpulatch").mkdir(mode=0o777)
    Path("/run/gpulatch").chmod(0o777)


def break_ledger() -> None:
    Path("/run/gpulatch").mkdir(mode=0o700)
    Path("/run/gpulatch/ledger.json").write_text("{")


@pytest.mark.parametrize("breakage", [break_settings, break_state, break_ledger])
def test_nothing_that_is_broken_with_us_stops_it(host: Host, talker: Bundle, breakage: object) -> None:
    plain = behaviour(host, PLAIN, talker)
    assert callable(breakage)
    breakage()
    assert behaviour(host, [RUNTIME], talker) == plain


@pytest.mark.parametrize("fault", ["no file", "broken", "empty", "unknown version", "no process"])
def test_what_is_wrong_with_its_spec_is_for_runc_to_say(host: Host, talker: Bundle, fault: str) -> None:
    if fault == "no file":
        talker.config.unlink()
        command = ["--root", ROOT, "run", "--bundle", str(talker.path), "same-id"]
        plain, ours = host.run([*PLAIN, *command]), host.run([RUNTIME, *command])
        assert ours.returncode == plain.returncode != 0
        assert without_time(ours.stderr) == without_time(plain.stderr)
        return
    texts = {"broken": '{"ociVersion": ', "empty": "", "unknown version": '{"ociVersion": "9"}', "no process": "{}"}
    talker.config.write_text(texts[fault])
    plain_behaviour, ours_behaviour = behaviour(host, PLAIN, talker), behaviour(host, [RUNTIME], talker)
    assert ours_behaviour.exit_code == plain_behaviour.exit_code != 0
    assert without_time(ours_behaviour.stderr) == without_time(plain_behaviour.stderr)
    assert ours_behaviour.spec == plain_behaviour.spec


def without_time(text: str) -> list[str]:
    return [word for word in text.split() if not word.startswith("time=")]


@pytest.mark.parametrize("kind", ["link", "foreign owner"])
def test_rules_that_guard_gpu_containers_do_not_concern_it(host: Host, talker: Bundle, kind: str) -> None:
    if kind == "link":
        talker.config.rename(talker.path / "real.json")
        talker.config.symlink_to("real.json")
    else:
        os.chown(talker.path, 1000, 1000)
    assert behaviour(host, [RUNTIME], talker) == behaviour(host, PLAIN, talker)


def test_argv_and_environment_reach_the_low_level_runtime_byte_for_byte(
    host: Host, talker: Bundle, recorder: Path, tmp_path: Path
) -> None:
    launcher = private_directory(tmp_path / "private", "gpulatch-runtime", recorder)
    arguments = [
        b"--root",
        os.fsencode(ROOT),
        b"--log=/dev/null",
        b"run",
        b"--bundle",
        os.fsencode(talker.path),
        b"id-1",
    ]
    environment = [b"A=1", b"A=2", b"x.y=3", b"EMPTY=", b"UTF=\xff\xfe", b"PATH=/usr/sbin:/usr/bin", b"LC_ALL=C"]
    run_raw(launcher, arguments, environment)
    link = tmp_path / "private/low-level/gpulatch-runtime" / recorder.name
    words = (tmp_path / "cmdline").read_bytes().split(b"\0")[:-1]
    assert words[-len(arguments) :] == arguments
    assert words[-len(arguments) - 1] == os.fsencode(link)
    assert (tmp_path / "environ").read_bytes().split(b"\0")[:-1] == environment


@pytest.mark.parametrize("environment", [[], [b"no-equals-sign", b"=odd", b"PATH=/usr/sbin:/usr/bin"]])
def test_an_empty_or_odd_environment_stays_as_it_is(
    host: Host, talker: Bundle, recorder: Path, tmp_path: Path, environment: list[bytes]
) -> None:
    launcher = private_directory(tmp_path / "private", "gpulatch-runtime", recorder)
    run_raw(launcher, [b"run", b"--bundle", os.fsencode(talker.path), b"id-1"], environment)
    assert (tmp_path / "environ").read_bytes().split(b"\0")[:-1] == environment


def run_raw(launcher: Path, arguments: Sequence[bytes], environment: Sequence[bytes]) -> None:
    script = Path(__file__).parent.parent / "drivers/raw_exec.py"
    command = ["/usr/bin/python3", "-X", "utf8", str(script), str(len(environment)), *environment, str(launcher)]
    done = subprocess.run(
        [*command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr


def test_signal_dispositions_reach_the_container_as_with_plain_runc(host: Host, talker: Bundle) -> None:
    ignoring = ["/usr/bin/env", "--ignore-signal=PIPE"]
    for prefix in ([], ignoring):
        plain = behaviour(host, [*prefix, *PLAIN], talker)
        ours = behaviour(host, [*prefix, RUNTIME], talker)
        assert ours == plain, prefix


@pytest.mark.parametrize("request_", ["", "any:1"])
def test_the_low_level_runtime_starts_with_the_engines_signal_dispositions(
    host: Host, bundle: Bundle, tmp_path: Path, request_: str
) -> None:
    told = tmp_path / "told"
    low_level = tmp_path / "tell-signals"
    low_level.write_text(f'#!/bin/sh\ngrep -E "^Sig(Blk|Ign|Cgt)" /proc/$$/status > {told}\n')
    low_level.chmod(0o755)
    launcher = private_directory(tmp_path / "private", "gpulatch-runtime", low_level)
    for program in (low_level, launcher):
        done = host.run(
            ["env", "--default-signal", str(program), "run", "--bundle", str(bundle.asking_for(request_).path), "x"]
        )
        assert done.returncode == 0, done.stderr
        assert "SigIgn:\t0000000000000000" in told.read_text()
        told.unlink()


def test_an_exec_into_a_container_and_its_life_are_plain_runcs(host: Host, bundle: Bundle) -> None:
    assert host.start(bundle.path, "c1").returncode == 0
    done = host.runtime("exec", "c1", "sh", "-c", "cat; exit 5", stdin="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, "in\n", "")
    assert json.loads(host.runtime("state", "c1").stdout)["status"] == "running"
    assert host.runtime("kill", "c1", str(int(signal.SIGKILL))).returncode == 0
