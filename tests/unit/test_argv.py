"""The command line grammars of runc and crun: what is ours, and what each option means."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper.argv import Invocation, Update, parse, parse_update

DATA = Path(__file__).parent.parent / "data"
CWD = "/cwd"


def runc(line: str, uid: int = 0, **environ: str) -> Invocation | None:
    return parse(line.split(), "/usr/lib/gpulatch/low-level/gpulatch-runtime/runc", CWD, environ, uid)


def crun(line: str, low_level: str = "crun", **environ: str) -> Invocation | None:
    return parse(line.split(), low_level, CWD, environ, 0)


def found(invocation: Invocation | None) -> Invocation:
    assert invocation is not None
    return invocation


RECORDED: list[dict[str, Any]] = json.loads((DATA / "recorded_argv.json").read_text())


@pytest.mark.parametrize("low_level", ["runc", "crun"])
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: f"{r['engine']} {' '.join(r['argv'])[-50:]}")
def test_every_recorded_line_is_read_as_the_engine_meant_it(recorded: dict[str, Any], low_level: str) -> None:
    invocation = parse(recorded["argv"], low_level, recorded["cwd"], {}, 0)
    if "expect" not in recorded:
        assert invocation is None
        return
    expect = recorded["expect"]
    root = expect["root"].replace("/run/runc", f"/run/{low_level}")
    assert invocation == Invocation(
        "create",
        expect["container_id"],
        expect["bundle"],
        expect["bundle"] + "/config.json",
        root,
        expect["log"],
        expect["log_format"],
    )


def test_the_recordings_hold_creates_and_other_calls_of_every_engine() -> None:
    kinds = {(recorded["engine"], "expect" in recorded) for recorded in RECORDED}
    assert kinds == {(engine, create) for engine in ("docker", "cri", "ctr", "podman") for create in (True, False)}


@pytest.mark.parametrize("subcommand", ["create", "run", "restore"])
@pytest.mark.parametrize("read", [runc, crun])
def test_the_three_subcommands_are_ours(read: Any, subcommand: str) -> None:
    invocation = found(read(f"{subcommand} --bundle /b id"))
    assert (invocation.subcommand, invocation.container_id, invocation.bundle) == (subcommand, "id", "/b")


@pytest.mark.parametrize("read", [runc, crun])
@pytest.mark.parametrize(
    "line",
    [
        "",
        "--",
        "-",
        "--root",
        "--root create",
        "--version",
        "--help create id",
        "state create",
        "delete create",
        "kill create 9",
        "exec id create",
        "--log create start id",
        "--pid-file create start id",
        "--nope create id",
        "---root /r create id",
        "--=x create id",
        "creat id",
        "create",
        "create id other",
        "create id --bundle",
        "create --bundle",
        "create -b",
        "create --nope id",
        "create --keep id",
        "create --no-pivot=maybe id",
        "create --help id",
        "create -d id",
        "create ---bundle /b id",
        "create id -- -b /b",
        "--log-format xml create id",
    ],
)
def test_a_line_that_is_no_create_or_that_the_runtime_refuses_is_not_ours(read: Any, line: str) -> None:
    assert read(line) is None


@pytest.mark.parametrize("read", [runc, crun])
def test_option_values_and_ids_named_like_a_subcommand_are_values(read: Any) -> None:
    invocation = found(read("--root run --log=create create --bundle create --pid-file run restore"))
    assert (invocation.subcommand, invocation.container_id) == ("create", "restore")
    assert invocation.bundle == "/cwd/create"


@pytest.mark.parametrize("read", [runc, crun])
def test_the_last_of_duplicate_options_wins(read: Any) -> None:
    line = "--root /r1 --root=/r2 --log /l1 --log /l2 create -b /b1 --bundle /b2 id"
    invocation = found(read(line))
    assert (invocation.root, invocation.log, invocation.bundle) == ("/r2", "/l2", "/b2")


@pytest.mark.parametrize("read", [runc, crun])
def test_the_bundle_defaults_to_the_working_directory(read: Any) -> None:
    invocation = found(read("create id"))
    assert (invocation.bundle, invocation.config) == ("/cwd", "/cwd/config.json")


@pytest.mark.parametrize("read", [runc, crun])
def test_a_relative_bundle_is_resolved_without_guessing_at_symlinks(read: Any) -> None:
    assert found(read("create --bundle ../b id")).bundle == "/cwd/../b"
    assert found(read("create --bundle . id")).bundle == "/cwd"


@pytest.mark.parametrize("read", [runc, crun])
def test_an_id_that_begins_with_a_dash_follows_two_dashes(read: Any) -> None:
    assert found(read("create -- -b")).container_id == "-b"
    assert found(read("-- create -")).container_id == "-"


# ---- runc ----


def test_runc_takes_one_dash_for_two() -> None:
    invocation = found(runc("-root /r -log=/l -log-format json -debug create -bundle=/b -no-pivot=false id"))
    assert (invocation.root, invocation.log, invocation.log_format) == ("/r", "/l", "json")
    assert (invocation.bundle, invocation.container_id) == ("/b", "id")


def test_runc_takes_options_after_the_container_id() -> None:
    invocation = found(runc("run id --detach -b /b"))
    assert (invocation.container_id, invocation.bundle) == ("id", "/b")


def test_runc_before_1_5_gives_a_last_option_the_first_word_as_its_value() -> None:
    invocation = found(runc("create /b id --bundle"))
    assert (invocation.container_id, invocation.bundle) == ("id", "/b")


def test_runc_1_5_takes_global_options_after_the_subcommand() -> None:
    invocation = found(runc("create --root /r id --log-format json --log /l -b /b"))
    assert (invocation.root, invocation.log, invocation.log_format) == ("/r", "/l", "json")
    assert (invocation.container_id, invocation.bundle) == ("id", "/b")


def test_runc_1_5_takes_an_option_without_value_before_the_container_id() -> None:
    invocation = found(runc("run --detach id -b /b"))
    assert (invocation.container_id, invocation.bundle) == ("id", "/b")


def test_runc_takes_no_bundled_letters_and_no_abbreviations() -> None:
    assert runc("run -db /b id") is None
    assert runc("--roo /r create id") is None
    assert runc("create -b/b id") is None


def test_runc_takes_the_value_of_a_switch_only_after_an_equals_sign() -> None:
    assert runc("--debug false create id") is None
    assert found(runc("--debug=false create id")).container_id == "id"
    assert found(runc("--help=false create --help=F id")).container_id == "id"
    assert runc("--debug=2 create id") is None


def test_runc_takes_a_dash_and_two_dashes_as_values() -> None:
    invocation = found(runc("--root -- create -b --no-pivot id"))
    assert (invocation.root, invocation.bundle) == ("/cwd/--", "/cwd/--no-pivot")


def test_runcs_config_is_always_relative_to_the_working_directory() -> None:
    assert found(runc("create -b /b --config config.json id")).config == "/cwd/config.json"
    assert found(runc("create -b /b --config= id")).config == "/b/config.json"


def test_runcs_root_and_log_are_relative_to_the_working_directory() -> None:
    invocation = found(runc("--root r/../s --log l create -b /b id"))
    assert (invocation.root, invocation.log) == ("/cwd/s", "/cwd/l")
    assert found(runc("--root= create id")).root == "/cwd"
    assert found(runc("--log= create id")).log is None


def test_runcs_default_root_follows_xdg_only_for_an_ordinary_user() -> None:
    assert found(runc("create id", XDG_RUNTIME_DIR="/run/user/0")).root == "/run/runc"
    assert found(runc("create id", uid=1000, XDG_RUNTIME_DIR="/run/user/1000")).root == "/run/user/1000/runc"
    assert found(runc("create id", uid=1000, XDG_RUNTIME_DIR="")).root == "/run/runc"


def test_runc_restores_with_its_own_options() -> None:
    line = "restore --image-path /i --work-path /w --empty-ns network --empty-ns pid --lazy-pages -d -b /b id"
    assert found(runc(line)).bundle == "/b"
    assert runc("restore --config /c id") is None


def test_every_other_runtime_is_read_as_runc() -> None:
    read = parse(["create", "-bundle", "/b", "id"], "nvidia-container-runtime", CWD, {}, 0)
    assert found(read).bundle == "/b"


# ---- crun ----


def test_crun_takes_abbreviations_of_long_options() -> None:
    invocation = found(crun("--roo /r --log-f json --sys create --bun /b --no-p --pid /p id"))
    assert (invocation.root, invocation.log_format, invocation.bundle) == ("/r", "json", "/b")


def test_crun_takes_no_abbreviated_commands() -> None:
    assert crun("cre id") is None


@pytest.mark.parametrize("line", ["--lo /l create id", "create --c /c id", "create --no id", "create --p 1 id"])
def test_crun_refuses_an_ambiguous_abbreviation(line: str) -> None:
    assert crun(line) is None


def test_an_option_that_older_cruns_lack_does_not_make_an_abbreviation_ambiguous() -> None:
    assert found(crun("--log- json create id")).log_format == "json"
    assert found(crun("restore --tcp -b /b id")).bundle == "/b"


def test_crun_takes_bundled_letters() -> None:
    assert found(crun("run -db /b id")).bundle == "/b"
    assert found(crun("run -db/b id")).bundle == "/b"
    assert found(crun("create -b=/b id")).bundle == "/cwd/=/b"
    assert found(crun("run -df c.json id")).config == "/cwd/c.json"
    assert crun("run -dx id") is None
    assert crun("run -d? id") is None
    assert crun("-d create id") is None


def test_crun_takes_no_options_after_the_container_id() -> None:
    assert crun("create id -b /b") is None
    assert crun("create --root /r id") is None


def test_crun_takes_a_value_only_where_the_option_has_one() -> None:
    assert crun("--debug=1 create id") is None
    assert crun("create --no-pivot=1 id") is None
    assert found(crun("--HANG=0 --HANG --program-name x create --HAN=0 id")).container_id == "id"


def test_crun_restore_takes_a_second_word() -> None:
    assert found(crun("restore -b /b id more")).container_id == "id"
    assert crun("restore -b /b id more still") is None


def test_cruns_config_is_relative_to_the_working_directory_unless_it_is_config_json() -> None:
    assert found(crun("create -b /b --config config.json id")).config == "/b/config.json"
    assert found(crun("create -b /b -f other.json id")).config == "/cwd/other.json"
    assert found(crun("create -b /b -f ./config.json id")).config == "/cwd/./config.json"
    assert found(crun("run --config=/c.json -b /b id")).config == "/c.json"


def test_cruns_root_and_log_are_relative_to_the_bundle() -> None:
    invocation = found(crun("--root r --log l create -b /b id"))
    assert (invocation.root, invocation.log) == ("/b/r", "/b/l")


def test_crun_logs_to_a_file_or_to_a_daemon() -> None:
    assert found(crun("--log file:/l create id")).log == "/l"
    assert found(crun("--log journald:x create id")).log is None
    assert found(crun("--log syslog:x create id")).log is None


def test_cruns_default_root_follows_xdg_for_root_too() -> None:
    assert found(crun("create id")).root == "/run/crun"
    assert found(crun("create id", XDG_RUNTIME_DIR="")).root == "/run/crun"
    assert found(crun("create id", XDG_RUNTIME_DIR="/x")).root == "/x/crun"


def test_crun_ignores_rootless() -> None:
    assert found(crun("--root /r --rootless=true create id")).root == "/r"


def test_crun_refuses_an_empty_bundle() -> None:
    assert crun("create --bundle= id") is None


@pytest.mark.parametrize("low_level", ["crun", "/x/crun-wasm", "krun", "crun1.27"])
def test_the_basename_selects_cruns_grammar(low_level: str) -> None:
    assert found(crun("--roo /r create id", low_level)).root == "/r"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("update --resources - c1", Update("c1", "/run/crun", "-", 3)),
        ("--root /r update -r res.json c1", Update("c1", "/r", "/cwd/res.json", 5)),
        ("--root=r update --resources=/x/y -- c1", Update("c1", "/cwd/r", "/x/y", 3)),
        ("update --cpu-share 5 --resource /x c1", Update("c1", "/run/crun", "/x", 5)),
        ("update --memory 5 c1", None),
        ("update --resources - c1 c2", None),
        ("update --resources -", None),
        ("update --bogus --resources - c1", None),
        ("state c1", None),
        ("update --help --resources - c1", None),
    ],
)
def test_an_update_of_crun_by_a_file(line: str, expected: Update | None) -> None:
    assert parse_update(line.split(), "/x/crun", "/cwd", {}) == expected
    assert parse_update(line.split(), "/x/runc", "/cwd", {}) is None
