import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from runtime_wrapper import settings, settings_values
from runtime_wrapper.errors import SettingsError, UntrustedPathError
from runtime_wrapper.settings_values import CHOICES, LISTS, NAMES, VARIABLE_LISTS
from runtime_wrapper.sources import OFF_BY_DEFAULT, SOURCES

pytestmark = pytest.mark.needs("root")


def load(folder: Path, text: str | None = None, name: str = "gpulatch-runtime") -> settings.Settings:
    if text is not None:
        (folder / "config.toml").write_text(text)
    return settings.load(name, str(folder), "/nonexistent")


def test_without_a_file_or_directory_the_defaults_hold(tmp_path: Path) -> None:
    assert load(tmp_path).mode == "enforce"
    assert load(tmp_path / "nowhere").mode == "enforce"
    assert load(tmp_path, "").mode == "enforce"


def test_the_mode_is_per_runtime_name(tmp_path: Path) -> None:
    text = '[runtime.gpulatch-runtime]\nmode = "observe"\n[runtime.other]\n'
    assert load(tmp_path, text).mode == "observe"
    assert load(tmp_path, name="other").mode == "enforce"
    assert load(tmp_path, name="third").mode == "enforce"


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("[runtime\nx = 1", "line 1"),
        ('[runtime.gpulatch-runtime]\nmode = "off-ish"', '"off-ish"'),
        ("[runtime.gpulatch-runtime]\nmode = 3", '"3"'),
        ("[defaults]\nlone_all = true", "lone_all"),
        ("[defaults]\nnuma_pin = 'cpus'", "use one of: off"),
        ("[defaults]\nsources = 'annotation'", "is not a list of sources"),
        ("[defaults]\nsources = ['annotation', 'pigeon']", "use some of: annotation, docker"),
        ("[runtime.other]\nmode = 'x'", "[runtime.other]"),
        ("defaults = 1", '"defaults"'),
        ("[runtime.gpulatch-runtime]\nmodus = 1", '"modus"'),
        ("[runtimes.x]", '"runtimes"'),
        ("runtime = 1", '"runtime"'),
        ("[runtime]\nx = 1", '"runtime.x"'),
        ("[[runtime]]\nmode = 'observe'", '"runtime"'),
        ("[[defaults]]\nmode = 'observe'", '"defaults"'),
        ("[defaults.mode]\nx = 1", "mode"),
        ("mode = 'observe'", "is a setting outside a section"),
        ("[defaults]\nmode = 'enforce'\nmode = 'observe'", "line 3"),
        ("[defaults]\n[defaults]", "line 2"),
        ("[defaults]\nmode = 1" + "0" * 5000, "not valid TOML"),
        ("[defaults]\nmode = 0x1" + "0" * 5000, "of type int"),
        ("[defaults]\nmode = " + "[" * 3000, "not valid TOML"),
        ("[defaults]\nmode = 'obs\u001b[31m'", "not valid TOML"),
    ],
)
def test_a_broken_file_is_refused_with_file_and_culprit(tmp_path: Path, text: str, culprit: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert culprit in str(caught.value)
    assert f"{tmp_path}/config.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            '# comment\n\n[runtime.other]\nmode = "enforce"\n[defaults]\n  lone_all = 3',
            "config.toml line 6, [defaults]",
        ),
        ('[runtime."other"] # x\n"mode" = 3', "config.toml line 2, [runtime.other]"),
        ('[runtime.a.b]\nmode = "observe"', "config.toml, [runtime.a]"),
        ('runtime.other = {mode = "x"}', "config.toml, [runtime.other]"),
        ("# \u2028 \u0085 x\r\n[defaults]\r\nmode = 3", "config.toml line 3, [defaults]"),
        ("[defaults]\n[[other]]", "config.toml, top level"),
        ("[defaults]\n[other]", "config.toml line 2, top level"),
        ("# x\nmode = 3\n", "config.toml line 2, top level"),
        ("[runtime]\n\nx = 1", "config.toml line 3:"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_section(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert place in str(caught.value)


def test_a_file_that_is_not_text_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbf# a\n# b\xff\n")
    with pytest.raises(SettingsError, match=r"config.toml line 2: not valid TOML \(byte 0xff is not UTF-8\)"):
        load(tmp_path)


@pytest.mark.parametrize("text", [b"\xef\xbb\xbf[defaults]\nmode = 'observe'", b"[defaults]\r\nmode = 'observe'\r\n"])
def test_a_byte_order_mark_and_line_ends_of_windows_do_not_matter(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(text)
    assert load(tmp_path).mode == "observe"


def test_a_file_that_others_could_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    os.chown(tmp_path / "config.toml", 1000, 1000)
    with pytest.raises(UntrustedPathError):
        load(tmp_path)


def test_defaults_hold_for_every_name_and_a_section_overrides_them(tmp_path: Path) -> None:
    text = """
        [defaults]
        lone_all = "none"
        count_when_busy = "share"
        sources = ["docker", "nodes", "docker"]
        [runtime.gpulatch-runtime]
        lone_all = "all"
    """
    found = load(tmp_path, text)
    assert (found.lone_all, found.count_when_busy, found.sources) == ("all", "share", ("docker", "nodes"))
    assert load(tmp_path, name="other").lone_all == "none"


def test_the_schema_and_the_code_know_the_same_settings() -> None:
    schema = json.loads((Path(__file__).parent.parent.parent / "schemas/settings.json").read_text())
    section = schema["$defs"]["section"]["properties"]
    assert list(section) == list(NAMES) == [field.name for field in fields(settings.Settings) if field.compare]
    assert set(NAMES) == {*CHOICES, *LISTS, *VARIABLE_LISTS}
    for key, choices in CHOICES.items():
        assert section[key]["enum"] == list(choices)
        assert section[key]["default"] == choices[0] == getattr(settings.Settings(), key)
    for key in LISTS:
        assert section[key]["items"]["enum"] == list(SOURCES)
        off = OFF_BY_DEFAULT if key == "sources" else ()
        assert getattr(settings.Settings(), key) == tuple(name for name in SOURCES if name not in off)


def test_swarm_resources_are_variables_that_swarm_makes() -> None:
    wanted = ["DOCKER_RESOURCE_NVIDIA-GPU", "DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_GPU"]
    assert settings_values.accepted("swarm_resources", wanted) == (wanted[0], wanted[1])
    for bad in (["PATH"], ["DOCKER_RESOURCE_"], ["DOCKER_RESOURCE_A=1"], [7], "DOCKER_RESOURCE_GPU"):
        assert settings_values.accepted("swarm_resources", bad) is None
