"""Drop-ins in config.d: order, what is passed over, whom they must belong to, and how files are put together."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import settings, settings_reading
from runtime_wrapper.errors import GpulatchError, SettingsError, UntrustedPathError
from runtime_wrapper.settings import Settings
from runtime_wrapper.settings_values import CHOICES, LISTS, NAMES
from runtime_wrapper.sources import SOURCES

pytestmark = pytest.mark.needs("root")

OBSERVE = '[defaults]\nmode = "observe"\n'
ENFORCE = '[defaults]\nmode = "enforce"\n'


def write(folder: Path, **texts: str) -> Path:
    """Files by name, with `config` for config.toml and the others in config.d."""
    (folder / "config.d").mkdir(exist_ok=True)
    for name, text in texts.items():
        path = folder / "config.toml" if name == "config" else folder / f"config.d/{name}.toml"
        path.write_text(text)
    return folder


def load(folder: Path, name: str = "gpulatch") -> Settings:
    return settings.load(name, str(folder), "/nonexistent")


def test_a_drop_in_replaces_single_keys_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, config='[defaults]\nmode = "observe"\nlone_all = "none"\n', site=ENFORCE)
    assert (load(tmp_path).mode, load(tmp_path).lone_all) == ("enforce", "none")


def test_drop_ins_count_in_the_byte_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, **{"9": ENFORCE, "10": OBSERVE})
    assert load(tmp_path).mode == "enforce"
    write(tmp_path, **{"B": ENFORCE, "a": OBSERVE})  # no locale sorts like this
    assert load(tmp_path).mode == "observe"
    write(tmp_path, **{"z": OBSERVE, "ä": ENFORCE})
    assert load(tmp_path).mode == "enforce"
    (tmp_path / os.fsdecode(b"config.d/\xff.toml")).write_text(OBSERVE)
    assert load(tmp_path).mode == "observe"


def test_a_runtimes_section_beats_the_defaults_whatever_the_file(tmp_path: Path) -> None:
    write(tmp_path, config='[runtime.gpulatch]\nmode = "observe"\n', late=ENFORCE)
    assert load(tmp_path).mode == "observe"
    assert load(tmp_path, "other").mode == "enforce"


def test_drop_ins_count_without_a_main_file(tmp_path: Path) -> None:
    assert load(write(tmp_path, site=OBSERVE)).mode == "observe"


def test_an_empty_folder_of_drop_ins_says_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path)) == Settings()
    assert load(write(tmp_path, config="", empty="")) == Settings()


def test_other_and_hidden_files_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("a.toml~", "a.toml.rpmsave", "README", ".a.toml", ".toml", "a.TOML", "#a.toml#"):
        (tmp_path / "config.d" / name).write_text("broken [")
    (tmp_path / "config.d/folder").mkdir()
    assert load(tmp_path) == Settings()


def test_an_error_in_a_drop_in_names_it_with_line_section_and_key(tmp_path: Path) -> None:
    write(tmp_path, config=OBSERVE, site='[runtime.x]\n\nmode = "off"\n')
    with pytest.raises(SettingsError) as caught:
        load(tmp_path)
    place = f'mode "off", {tmp_path}/config.d/site.toml line 3, [runtime.x]: is not a value of this setting'
    assert str(caught.value) == f"gpulatch: {place}; use one of: enforce, observe (GL-7001)"


def test_a_wrong_value_is_refused_also_where_a_later_file_replaces_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="line 2"):
        load(write(tmp_path, config="[defaults]\nmode = 1\n", site=OBSERVE))


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def hard_link(path: Path) -> None:
    (path.parent / "other").write_text(OBSERVE)
    path.hardlink_to(path.parent / "other")


def with_mode(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(OBSERVE)
        path.chmod(mode)

    return make


def foreign(path: Path) -> None:
    path.write_text(OBSERVE)
    os.chown(path, 1000, 0)


def huge(path: Path) -> None:
    path.write_text("# " + "x" * 20_000_000)


HOSTILE_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "link": (link_to("/etc/hostname"), "ELOOP"),
    "dangling link": (link_to("nowhere"), "ELOOP"),
    "FIFO": (os.mkfifo, "not a regular file"),
    "directory": (Path.mkdir, "not a regular file"),
    "device": (lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5)), "not a regular file"),
    "hard link": (hard_link, "has 2 hard links"),
    "writable by all": (with_mode(0o646), "others than root could change it"),
    "writable by the group": (with_mode(0o664), "others than root could change it"),
    "another owner": (foreign, "owned by uid 1000"),
    "too large": (huge, "larger than 16 MiB"),
}


@pytest.mark.parametrize("name", ["config.toml", "config.d/50-x.toml"])
@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_only_plain_files_of_root_are_read(tmp_path: Path, name: str, kind: str) -> None:
    make, why = HOSTILE_FILES[kind]
    make(write(tmp_path) / name)
    with pytest.raises(UntrustedPathError) as caught:
        load(tmp_path)
    assert f"{tmp_path}/{name}: " in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize("kind", ["link", "FIFO", "file", "writable by all", "another owner"])
def test_only_a_directory_of_root_holds_drop_ins(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, config=OBSERVE) / "config.d"
    if kind in ("link", "FIFO", "file"):
        folder.rename(tmp_path / "real")
        {"link": lambda: folder.symlink_to("real"), "FIFO": lambda: os.mkfifo(folder), "file": folder.touch}[kind]()
    elif kind == "another owner":
        os.chown(folder, 1000, 0)
    else:
        folder.chmod(0o757)
    with pytest.raises(UntrustedPathError, match=f"directory of drop-ins, {folder}: "):
        load(tmp_path)


def test_a_settings_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    write(tmp_path, config=OBSERVE).chmod(0o777)
    with pytest.raises(UntrustedPathError, match=f"settings directory, {tmp_path}: "):
        load(tmp_path)


def test_a_reading_names_every_problem_of_every_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        config='mode = 1\n[defaults]\nmode = 2\nmodus = 3\nlone_all = "none"\n[runtime.x]\nsources = 4\n[other]\n',
        a="[broken",
        b="runtime = 5\n",
    )
    (tmp_path / "config.d/c.toml").symlink_to("a.toml")
    found = settings_reading.read(str(tmp_path))
    culprits = [(problem.what, problem.where.removeprefix(f"{tmp_path}/")) for problem in found.problems]
    assert sorted(culprits) == [
        ('"runtime"', "config.d/b.toml line 1"),
        ('key "mode"', "config.toml line 1, top level"),
        ('key "modus"', "config.toml line 4, [defaults]"),
        ('key "other"', "config.toml line 8, top level"),
        ('mode "2"', "config.toml line 3, [defaults]"),
        ("settings", "config.d/a.toml"),
        ("settings file", "config.d/c.toml"),
        ('sources "4"', "config.toml line 7, [runtime.x]"),
    ]
    assert found.values == {"defaults": {"lone_all": "none"}, "runtime.x": {}}
    assert found.stamps is None


def test_a_file_that_goes_while_it_is_read_is_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, config=OBSERVE, a=ENFORCE)
    read_file = settings_reading.trust.read_file

    def read(dir_fd: int, name: str, what: str, where: str) -> bytes:
        (tmp_path / "config.d/a.toml").unlink(missing_ok=True)
        return read_file(dir_fd, name, what, where)

    monkeypatch.setattr(settings_reading.trust, "read_file", read)
    assert load(tmp_path).mode == "observe"


Texts = dict[str, dict[str, dict[str, Any]]]
RUNTIMES = ("gpulatch", "other", "a b", "x.y")


def random_texts(random_: random.Random) -> Texts:
    """Sections by file name; the name `config.toml` is the main file's."""

    lists = {**{key: list(SOURCES) for key in LISTS}, "swarm_resources": ["DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_A-B"]}

    def entries() -> dict[str, Any]:
        keys = random_.sample(NAMES, random_.randrange(len(NAMES)))
        return {
            key: random_.choice(CHOICES[key]) if key in CHOICES else random_.choices(lists[key], k=3) for key in keys
        }

    names = random_.sample(["config.toml", "a.toml", "b.toml", "B.toml", "10.toml", "9.toml", "é.toml"], 4)
    sections = ["defaults", *RUNTIMES]
    return {name: {key: entries() for key in random_.sample(sections, 3)} for name in names}


def to_toml(sections: dict[str, dict[str, Any]]) -> str:
    lines = []
    for section, entries in sections.items():
        lines.append("[defaults]" if section == "defaults" else f'[runtime."{section}"]')
        lines += [f"{key} = {value!r}" for key, value in entries.items()]
    return "\n".join(lines)


def expected(texts: Texts, runtime: str, key: str) -> Any:
    """What the last word on a key is, looked for from the end; None when nothing is said."""
    drop_ins = sorted((name for name in texts if name != "config.toml"), key=lambda name: name.encode())
    order = [name for name in ("config.toml", *drop_ins) if name in texts]
    for section in (runtime, "defaults"):
        for name in reversed(order):
            if key in texts[name].get(section, {}):
                value = texts[name][section][key]
                return tuple(sorted(set(value), key=value.index)) if isinstance(value, list) else value
    return None


@pytest.mark.parametrize("seed", range(40))
def test_random_files_are_put_together_as_the_rule_has_it(tmp_path: Path, seed: int) -> None:
    texts = random_texts(random.Random(seed))
    write(tmp_path)
    for name, sections in texts.items():
        path = tmp_path / name if name == "config.toml" else tmp_path / "config.d" / name
        path.write_text(to_toml(sections))
    for runtime in (*RUNTIMES, "unheard of"):
        found = load(tmp_path, runtime)
        for key in NAMES:
            wanted = expected(texts, runtime, key)
            assert getattr(found, key) == (getattr(Settings(), key) if wanted is None else wanted)


def test_every_broken_file_is_refused_by_name_and_never_otherwise(tmp_path: Path) -> None:
    """Whatever bytes a file holds: settings, or a refusal that names it."""
    random_ = random.Random(7)
    good = to_toml({"defaults": {"mode": "observe", "sources": ["nodes"]}})
    for _ in range(300):
        raw = bytearray(good.encode())
        for _ in range(random_.randrange(1, 4)):
            raw[random_.randrange(len(raw))] = random_.randrange(256)
        shutil.rmtree(tmp_path / "config.d", ignore_errors=True)
        (write(tmp_path) / "config.d/a.toml").write_bytes(raw)
        try:
            load(tmp_path)
        except GpulatchError as error:
            assert f"{tmp_path}/config.d/a.toml" in error.where
