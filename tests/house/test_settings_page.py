"""docs/settings.md and the code know the same settings, values, defaults and sources."""

import re
import tomllib
from pathlib import Path

from runtime_wrapper.settings import Settings
from runtime_wrapper.settings_values import CHOICES, LISTS, NAMES, VARIABLE_LISTS
from runtime_wrapper.sources import OFF_BY_DEFAULT, SOURCES

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = (CHECKOUT / "docs/settings.md").read_text()
ROWS = {row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)}


def words(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_the_page_lists_every_setting_in_the_order_of_the_code() -> None:
    assert list(ROWS) == list(NAMES)


def test_it_lists_the_values_and_the_default_of_each() -> None:
    for key, choices in CHOICES.items():
        values, default, _ = ROWS[key]
        assert words(values) == list(choices), key
        assert words(default) == [choices[0]] == [getattr(Settings(), key)], key
    for key in LISTS:
        off = OFF_BY_DEFAULT if key == "sources" else ()
        assert ROWS[key][0] == "a list of sources"
        assert (ROWS[key][1] == "all", words(ROWS[key][1])) == (not off, list(off))
        assert getattr(Settings(), key) == tuple(name for name in SOURCES if name not in off)
    for key in VARIABLE_LISTS:
        assert ROWS[key][:2] == ("a list of variables", "none")
        assert getattr(Settings(), key) == ()


def test_it_gives_a_reason_for_each() -> None:
    assert all(len(reason) > 20 for _, _, reason in ROWS.values())
    for key, choices in CHOICES.items():
        assert len(choices) == 1 or set(words(ROWS[key][2])) & set(choices), key


def test_it_names_the_sources_in_their_order() -> None:
    sentence = re.search(r"^The sources are (.+?);", PAGE, re.MULTILINE | re.DOTALL)
    assert sentence
    assert words(sentence[1]) == list(SOURCES)


def test_its_example_comes_to_what_it_says() -> None:
    main, site = (tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    assert main["runtime"]["gpulatch"]["mode"] == "observe"
    both = main["runtime"]["gpulatch"] | site["runtime"]["gpulatch"]
    assert (both["mode"], both["lone_all"], site["defaults"]["lone_all"]) == ("enforce", "none", "all")
    assert list(both) == ["mode", "sources", "allow_exclusive_from", "lone_all"]
