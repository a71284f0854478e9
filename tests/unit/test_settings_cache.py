"""The compiled settings: when they hold, and that they never change anything but the time it takes."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import settings, settings_cache, settings_folder, settings_reading, trust
from runtime_wrapper.errors import GpulatchError, SettingsError, UntrustedPathError
from runtime_wrapper.settings import Settings

pytestmark = pytest.mark.needs("root")

CHECKOUT = Path(__file__).parent.parent.parent
OBSERVE = '[defaults]\nmode = "observe"\n'
ENFORCE = '[defaults]\nmode = "enforce"\n'  # of the same length
ENTRY = {"defaults": {"mode": "observe"}}


class Machine:
    """A settings directory and a state directory in a folder."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.run = folder / "etc", folder / "run"
        (self.etc / "config.d").mkdir(parents=True)
        self.run.mkdir(mode=0o700)
        self.file, self.cache = self.etc / "config.toml", self.run / "settings.json"

    def load(self, name: str = "gpulatch") -> Settings:
        return settings.load(name, str(self.etc), str(self.run))

    def settle(self) -> None:
        """Wait until what was written is old enough to be compiled."""
        time.sleep(2 * settings_folder.GRANULE_NS / 1e9)

    def compiled(self, text: str = OBSERVE) -> None:
        """The settings are compiled from this text."""
        self.file.write_text(text)
        self.settle()
        self.load()
        assert self.cache.exists()

    def pretend(self, sections: Any = ENTRY, **other: Any) -> None:
        """Let the compiled settings say something else than their sources, to see whether they are believed."""
        data = json.loads(self.cache.read_text())
        data["sections"] = sections
        self.cache.write_text(json.dumps(data | other))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(settings_folder, "GRANULE_NS", 20_000_000)
    return Machine(tmp_path)


def test_they_hold_while_nothing_changes(machine: Machine) -> None:
    machine.compiled(ENFORCE)
    machine.pretend()
    assert (machine.load().mode, machine.load().note) == ("observe", None)


def test_all_sections_are_compiled_and_private(machine: Machine) -> None:
    text = '[defaults]\nsources = ["nodes", "nodes"]\n[runtime.a]\nmode = "observe"\n[runtime.empty]\n'
    machine.compiled(text)
    compiled = json.loads(machine.cache.read_text())
    assert compiled["schema"] == "gpulatch-settings/1"
    assert compiled["sections"] == {
        "defaults": {"sources": ["nodes"]},
        "runtime.a": {"mode": "observe"},
        "runtime.empty": {},
    }
    assert machine.cache.stat().st_mode & 0o7777 == 0o600
    assert (machine.load("a").mode, machine.load("a").sources) == ("observe", ("nodes",))
    assert (machine.load("b").mode, machine.load("b").sources) == ("enforce", ("nodes",))


def in_place(machine: Machine) -> None:
    machine.file.write_text(ENFORCE)


def in_place_with_the_old_times(machine: Machine) -> None:
    before = machine.file.stat()
    machine.file.write_text(ENFORCE)
    os.utime(machine.file, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_rename(machine: Machine) -> None:
    (machine.etc / "new").write_text(ENFORCE)
    (machine.etc / "new").rename(machine.file)


def by_rename_with_the_old_times(machine: Machine) -> None:
    before = machine.file.stat()
    (machine.etc / "new").write_text(ENFORCE)
    os.utime(machine.etc / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (machine.etc / "new").rename(machine.file)


def by_a_drop_in(machine: Machine) -> None:
    (machine.etc / "config.d/a.toml").write_text(ENFORCE)


def by_removal(machine: Machine) -> None:
    machine.file.unlink()


def by_another_directory(machine: Machine) -> None:
    machine.etc.rename(machine.etc.parent / "old")
    machine.etc.mkdir()
    machine.file.write_text(ENFORCE)


@pytest.mark.parametrize(
    "change",
    [
        in_place,
        in_place_with_the_old_times,
        by_rename,
        by_rename_with_the_old_times,
        by_a_drop_in,
        by_removal,
        by_another_directory,
    ],
)
def test_a_change_counts_at_once(machine: Machine, change: Callable[[Machine], None]) -> None:
    machine.compiled()
    change(machine)
    assert machine.load().mode == "enforce"
    machine.settle()
    assert machine.load().mode == "enforce"


def test_a_changed_and_a_removed_drop_in_count_at_once(machine: Machine) -> None:
    drop_in = machine.etc / "config.d/a.toml"
    drop_in.write_text(ENFORCE)
    machine.compiled()
    assert machine.load().mode == "enforce"
    drop_in.write_text(OBSERVE)
    assert machine.load().mode == "observe"
    drop_in.write_text(ENFORCE)
    machine.settle()
    assert machine.load().mode == "enforce"
    drop_in.unlink()
    assert machine.load().mode == "observe"


def test_stale_ones_are_said_and_made_anew(machine: Machine) -> None:
    machine.compiled()
    assert machine.load().note is None
    machine.file.write_text(ENFORCE)
    note = f"compiled settings were stale: read anew from {machine.file}"
    assert (machine.load().mode, machine.load().note) == ("enforce", note)
    machine.settle()
    assert machine.load().note == note  # this call compiles them
    assert machine.load().note is None
    assert machine.load() == Settings()


@pytest.mark.parametrize("text", ["[broken", "[defaults]\nmode = 'x'"])
def test_they_never_hide_a_broken_file(machine: Machine, text: str) -> None:
    machine.compiled()
    machine.file.write_text(text)
    for _ in range(2):
        with pytest.raises(SettingsError):
            machine.load()
        machine.settle()
    machine.file.write_text(ENFORCE)
    assert machine.load().mode == "enforce"


@pytest.mark.parametrize("change", ["mode", "owner", "link", "directory", "drop-ins", "symlink"])
def test_they_never_hide_a_file_that_others_could_change(machine: Machine, change: str) -> None:
    machine.compiled()
    if change == "mode":
        machine.file.chmod(0o666)
    elif change == "owner":
        os.chown(machine.file, 1000, 0)
    elif change == "link":
        machine.run.with_name("other").hardlink_to(machine.file)
    elif change == "symlink":
        (machine.etc / "config.d/a.toml").symlink_to("../config.toml")
    else:
        (machine.etc if change == "directory" else machine.etc / "config.d").chmod(0o777)
    with pytest.raises(UntrustedPathError):
        machine.load()


def damaged(data: bytes) -> Callable[[Machine], None]:
    return lambda machine: machine.cache.write_bytes(data) and None


def with_key(key: str, value: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.pretend(**{key: value})


def with_sections(sections: Any) -> Callable[[Machine], None]:
    return lambda machine: machine.pretend(sections)


def replaced_by(make: Callable[[Path], Any]) -> Callable[[Machine], None]:
    def damage(machine: Machine) -> None:
        machine.cache.rename(machine.run / "real")
        make(machine.cache)

    return damage


DAMAGES: dict[str, Callable[[Machine], None]] = {
    "empty": damaged(b""),
    "no JSON": damaged(b"{"),
    "not UTF-8": damaged(b"\xff\xfe\x00"),
    "a list": damaged(b"[]"),
    "null": damaged(b"null"),
    "an empty object": damaged(b"{}"),
    "deep": damaged(b"[" * 100_000),
    "a long number": damaged(b"1" * 10_000),
    "too large": damaged(b" " * 17_000_000),
    "another version": with_key("schema", "gpulatch-settings/0"),
    "other sources": with_key("sources", []),
    "sections of another type": with_sections([]),
    "a section of another type": with_sections({"defaults": "observe"}),
    "an unknown setting": with_sections({"defaults": {"mode": "observe", "colour": "red"}}),
    "an unknown value": with_sections({"defaults": {"mode": "watch"}}),
    "a value of another type": with_sections({"defaults": {"mode": ["observe"]}}),
    "unhashable": with_sections({"defaults": {"sources": [["nodes"]]}}),
    "another owner": lambda machine: os.chown(machine.cache, 1000, 0),
    "writable by all": lambda machine: machine.cache.chmod(0o666),
    "hard link": lambda machine: (machine.run / "other").hardlink_to(machine.cache),
    "symbolic link": replaced_by(lambda path: path.symlink_to("real")),
    "FIFO": replaced_by(os.mkfifo),
    "directory": replaced_by(Path.mkdir),
    "state directory open to all": lambda machine: machine.run.chmod(0o755),
    "state directory of another": lambda machine: os.chown(machine.run, 1000, 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_wrong_with_them_the_sources_count(machine: Machine, damage: str) -> None:
    machine.compiled(ENFORCE)
    DAMAGES[damage](machine)
    found = machine.load()
    assert found.mode == "enforce"
    assert str(found.note).startswith("compiled settings were ")
    machine.file.write_text(OBSERVE)
    machine.settle()
    assert (machine.load().mode, machine.load().mode) == ("observe", "observe")


def test_without_a_state_directory_nothing_is_made(machine: Machine) -> None:
    machine.file.write_text(OBSERVE)
    machine.run.rmdir()
    machine.settle()
    assert (machine.load().mode, machine.load().note) == ("observe", None)
    assert not machine.run.exists()


def test_without_settings_nothing_is_compiled(machine: Machine) -> None:
    (machine.etc / "machine.json").write_text("{}")
    machine.settle()
    assert machine.load() == Settings()
    assert list(machine.run.iterdir()) == []


def test_a_full_file_system_changes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(settings_cache.atomic, "replace", full)
    machine.file.write_text(OBSERVE)
    machine.settle()
    assert machine.load().mode == "observe"


def test_a_file_dated_in_the_future_is_not_compiled(machine: Machine) -> None:
    machine.file.write_text(OBSERVE)
    os.utime(machine.file, (time.time() + 1000,) * 2)
    machine.settle()
    assert machine.load().mode == "observe"
    assert not machine.cache.exists()


@pytest.mark.parametrize(("granule_ns", "seen"), [(2_000_000_000, "enforce"), (-2_000_000_000, "observe")])
def test_two_changes_within_one_granule_are_told_apart(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, granule_ns: int, seen: str
) -> None:
    """The second change leaves all stamps as they are. Without the rule, as the other case shows, it goes unseen."""
    now = 1_700_000_000
    stamp = settings_folder.stamp

    def rounded(path: str, found: os.stat_result) -> settings_folder.Stamp:
        made = stamp(path, found)
        return [*made[:4], now * 10**9, now * 10**9, *made[6:]]

    monkeypatch.setattr(settings_folder, "stamp", rounded)
    monkeypatch.setattr(settings_reading.time, "time_ns", lambda: now * 10**9 + 900_000_000)
    monkeypatch.setattr(settings_folder, "GRANULE_NS", granule_ns)
    machine.file.write_text(OBSERVE)
    assert machine.load().mode == "observe"
    machine.file.write_text(ENFORCE)
    assert machine.load().mode == seen


def change_while_reading(machine: Machine, monkeypatch: pytest.MonkeyPatch, changes: list[Callable[[], Any]]) -> None:
    """After each file that is read the next change happens."""
    read_file = trust.read_file

    def read(dir_fd: int, name: str, what: str, where: str) -> bytes:
        data = read_file(dir_fd, name, what, where)
        if what == "settings file" and changes:
            changes.pop(0)()
        return data

    monkeypatch.setattr(trust, "read_file", read)


def test_a_mix_of_two_states_is_neither_used_nor_compiled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files change after the first was read: old and new together would say what neither state said."""
    drop_in = machine.etc / "config.d/a.toml"
    machine.file.write_text('[defaults]\nmode = "observe"\nlone_all = "all"\n')
    drop_in.write_text('[defaults]\ncount_when_busy = "share"\n')
    machine.settle()

    def change() -> None:
        machine.file.write_text('[defaults]\nmode = "enforce"\nlone_all = "none"\n')
        drop_in.write_text('[defaults]\ncount_when_busy = "refuse"\n')

    change_while_reading(machine, monkeypatch, [change])
    for _ in range(3):
        found = machine.load()
        assert (found.mode, found.lone_all, found.count_when_busy) == ("enforce", "none", "refuse")
        machine.settle()


def test_a_file_that_never_rests_is_used_and_not_compiled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.file.write_text(OBSERVE)
    machine.settle()
    change_while_reading(machine, monkeypatch, [lambda: machine.file.write_text(OBSERVE)] * 20)
    assert machine.load().mode == "observe"
    assert not machine.cache.exists()


def test_one_that_compiles_late_is_not_believed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow call stores what it read before a change that another call has already compiled."""
    machine.compiled()
    late = machine.cache.read_bytes()
    machine.file.write_text(ENFORCE)
    machine.settle()
    machine.load()
    machine.cache.write_bytes(late)
    assert machine.load().mode == "enforce"


def test_random_changes_between_loads_always_count(machine: Machine) -> None:
    """As many writes and loads as fit, with and without rest: each load sees the last write."""
    for number in range(120):
        text = (OBSERVE, ENFORCE)[number % 2]
        if number % 3:
            machine.file.write_text(text)
        else:
            (machine.etc / "new").write_text(text)
            (machine.etc / "new").rename(machine.file)
        if number % 5 == 0:
            machine.settle()
        assert machine.load().mode == ("observe", "enforce")[number % 2]
        assert machine.load().mode == ("observe", "enforce")[number % 2]


def imported(machine: Machine) -> set[str]:
    """What the distribution's Python has to import for a load."""
    code = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from runtime_wrapper import settings;"
        f"settings.load('gpulatch', {str(machine.etc)!r}, {str(machine.run)!r}); print(*sys.modules)"
    )
    done = subprocess.run(["/usr/bin/python3", "-ISBc", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_reading_toml_is_imported_only_where_they_do_not_hold(machine: Machine) -> None:
    slow = {"tomllib", "runtime_wrapper.settings_toml", "runtime_wrapper.settings_reading"}
    assert not slow & imported(machine)  # a directory without settings
    machine.compiled()
    assert not slow & imported(machine)
    in_place(machine)
    assert slow <= imported(machine)
    machine.file.unlink()
    (machine.etc / "config.d").rmdir()
    machine.etc.rmdir()
    assert not {*slow, "runtime_wrapper.settings_folder", "runtime_wrapper.settings_cache"} & imported(machine)


def test_a_refusal_is_the_same_with_and_without_them(machine: Machine) -> None:
    machine.compiled()
    machine.file.write_text("[defaults]\nmode = 3\n")
    texts = set()
    for state_dir in (machine.run, "/nonexistent"):
        with pytest.raises(GpulatchError) as caught:
            settings.load("gpulatch", str(machine.etc), str(state_dir))
        texts.add(str(caught.value))
    assert len(texts) == 1
