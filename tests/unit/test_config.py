"""`gpulatch config`: what it prints, its exit codes, and that a check leaves the settings compiled."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from runtime_wrapper import settings, settings_folder, trust
from runtime_wrapper.operate import config
from runtime_wrapper.settings_values import NAMES

pytestmark = pytest.mark.needs("root")

CHECKOUT = Path(__file__).parent.parent.parent


class Machine:
    """A settings directory, a state directory and installed runtime names in a folder."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.run, self.private = folder / "etc", folder / "run", folder / "private"
        (self.etc / "config.d").mkdir(parents=True)
        self.run.mkdir(mode=0o700)
        for name in ("gpulatch", "gpulatch-nvidia"):
            (self.private / "low-level" / name).mkdir(parents=True)

    def write(self, main: str, **drop_ins: str) -> None:
        (self.etc / "config.toml").write_text(main)
        for name, text in drop_ins.items():
            (self.etc / f"config.d/{name}.toml").write_text(text)

    def call(self, *arguments: str) -> Result:
        result = CliRunner().invoke(config.config, arguments, env={"COLUMNS": "200"})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def json(self, *arguments: str) -> Any:
        return json.loads(self.call("show", "--json", *arguments).stdout)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setattr(settings, "DIRECTORY", str(found.etc))
    monkeypatch.setattr(trust, "STATE_DIR", str(found.run))
    monkeypatch.setattr(settings_folder, "GRANULE_NS", 20_000_000)
    monkeypatch.setattr(config, "PRIVATE_DIRECTORIES", (found.private, tmp_path / "nowhere"))
    return found


def test_good_settings_are_counted(machine: Machine) -> None:
    machine.write('[defaults]\n[runtime.gpulatch]\nmode = "observe"\n', a='[defaults]\nmode = "observe"\n')
    result = machine.call("check")
    assert (result.exit_code, result.output) == (0, "2 files, 2 sections: no problem\n")


def test_no_settings_are_good_settings(machine: Machine) -> None:
    assert machine.call("check").output == "0 files, 0 sections: no problem\n"
    (machine.etc / "config.d").rmdir()
    machine.etc.rmdir()
    assert machine.call("check").output == "0 files, 0 sections: no problem\n"


def test_every_problem_has_a_line_and_nothing_is_compiled(machine: Machine) -> None:
    machine.write("[defaults]\nmode = 1\nmodus = 2\n[other]\n", a="[broken", b="[runtime.gpulatch]\nsources = 'x'\n")
    (machine.etc / "config.d/c.toml").symlink_to("a.toml")
    result = machine.call("check")
    assert (result.exit_code, result.stdout) == (1, "")
    lines = result.stderr.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("gpulatch: ") for line in lines)
    for culprit in ('mode "1"', '"modus"', '"other"', "a.toml", "b.toml line 2, [runtime.gpulatch]", "c.toml"):
        assert sum(culprit in line for line in lines) == 1, culprit
    assert list(machine.run.iterdir()) == []


def test_a_section_of_no_runtime_name_is_warned_of_with_the_nearest(machine: Machine) -> None:
    machine.write("[runtime.gpulatsch]\n[runtime.defaults]\n[runtime.gpulatch]\n")
    result = machine.call("check")
    assert result.exit_code == 0
    assert result.stdout == "1 file, 3 sections: no problem\n"
    assert result.stderr.splitlines() == [
        f"warning: [runtime.gpulatsch], {machine.etc}/config.toml line 1: no such runtime name on this host; "
        "perhaps gpulatch is meant; installed: gpulatch, gpulatch-nvidia",
        f"warning: [runtime.defaults], {machine.etc}/config.toml line 2: no such runtime name on this host; "
        "installed: gpulatch, gpulatch-nvidia",
    ]


@pytest.mark.parametrize("fresh", [True, False])
def test_a_check_leaves_the_settings_compiled(machine: Machine, fresh: bool) -> None:
    machine.write('[defaults]\nmode = "observe"\n')
    if not fresh:
        settings.load("gpulatch", str(machine.etc), str(machine.run))
        (machine.run / "settings.json").write_text("{}")
    assert machine.call("check").exit_code == 0
    compiled = json.loads((machine.run / "settings.json").read_text())
    assert compiled["sections"] == {"defaults": {"mode": "observe"}}
    assert settings.load("gpulatch", str(machine.etc), str(machine.run)).note is None


def test_a_check_makes_no_state_directory(machine: Machine) -> None:
    machine.write("")
    machine.run.rmdir()
    assert machine.call("check").exit_code == 0
    assert not machine.run.exists()


def test_all_settings_are_shown_with_their_places(machine: Machine) -> None:
    machine.write('[defaults]\nlone_all = "none"\nsources = []\n', a='[runtime.gpulatch]\nmode = "observe"\n')
    rows = [" ".join(line.split()) for line in machine.call("show").stdout.splitlines()]
    assert rows[0] == "Defaults"
    assert [row.split()[0] for row in rows[2 : 2 + len(NAMES)]] == list(NAMES)
    assert f"lone_all none {machine.etc}/config.toml:2 [defaults]" in rows
    assert f"sources (none) {machine.etc}/config.toml:3 [defaults]" in rows
    assert "accept_env always default" in rows
    own = rows[rows.index("Runtime gpulatch, other than the defaults") :]
    assert own[2] == f"mode observe {machine.etc}/config.d/a.toml:2 [runtime.gpulatch]"
    assert own[4] == "Runtime gpulatch-nvidia: the defaults"


def test_one_runtime_name_is_shown_with_all_that_holds_for_it(machine: Machine) -> None:
    machine.write('[defaults]\nlone_all = "none"\nmode = "observe"\n[runtime.gpulatch]\nmode = "enforce"\n')
    rows = [" ".join(line.split()) for line in machine.call("show", "--runtime", "gpulatch").stdout.splitlines()]
    assert (rows[0], [row.split()[0] for row in rows[2:]]) == ("Runtime gpulatch", list(NAMES))
    assert f"mode enforce {machine.etc}/config.toml:5 [runtime.gpulatch]" in rows
    assert f"lone_all none {machine.etc}/config.toml:2 [defaults]" in rows


def test_an_unknown_runtime_name_has_the_defaults_and_is_warned_of(machine: Machine) -> None:
    result = machine.call("show", "--runtime", "gpulach")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: --runtime gpulach: no such runtime name on this host; perhaps gpulatch")
    assert "mode" in result.stdout


def test_json_says_the_same_and_fits_its_schema(machine: Machine) -> None:
    machine.write('[defaults]\nlone_all = "none"\n[runtime.x]\nmode = "observe"\n', a='runtime.x.numa_pin = "off"')
    found = machine.json()
    jsonschema.validate(found, json.loads((CHECKOUT / "schemas/config.json").read_text()))
    assert found["files"] == [f"{machine.etc}/config.toml", f"{machine.etc}/config.d/a.toml"]
    names = [(entry["name"], entry["installed"]) for entry in found["runtimes"]]
    assert names == [("gpulatch", True), ("gpulatch-nvidia", True), ("x", False)]
    entry = found["runtimes"][2]["settings"]
    place = {"file": f"{machine.etc}/config.toml", "line": 4, "section": "runtime.x"}
    assert entry["mode"] == {"value": "observe", "from": place}
    assert entry["numa_pin"]["from"] == {"file": f"{machine.etc}/config.d/a.toml", "line": None, "section": "runtime.x"}
    assert entry["lone_all"]["from"]["section"] == "defaults"
    assert entry["accept_env"] == {"value": "always", "from": None}
    assert [entry["name"] for entry in machine.json("--runtime", "x")["runtimes"]] == ["x"]


def test_what_is_shown_is_what_a_start_gets(machine: Machine) -> None:
    machine.write('[defaults]\nlone_all = "none"\n[runtime.gpulatch]\nmode = "observe"\nsources = ["nodes"]\n')
    for entry in machine.json()["runtimes"]:
        loaded = settings.load(entry["name"], str(machine.etc), str(machine.run))
        shown = {key: found["value"] for key, found in entry["settings"].items()}
        assert {key: tuple(value) if isinstance(value, list) else value for key, value in shown.items()} == {
            key: getattr(loaded, key) for key in NAMES
        }


def test_nothing_is_shown_of_broken_settings(machine: Machine) -> None:
    machine.write("[defaults]\nmode = 1\n")
    result = machine.call("show")
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'mode "1"' in result.stderr


def test_names_cannot_colour_the_terminal(machine: Machine) -> None:
    machine.write('[runtime."\\u001b[31m"]\n[runtime."\\u001b[32m"]\nmode = "observe"\n')
    assert "\x1b" not in machine.call("show").output
    assert "\x1b" not in machine.call("check").output
