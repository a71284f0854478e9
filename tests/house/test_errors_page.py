"""docs/errors.md and the error classes say the same."""

import re
from pathlib import Path

from runtime_wrapper import errors
from runtime_wrapper.errors import GpulatchError

CHECKOUT = Path(__file__).parent.parent.parent
PAGE = CHECKOUT / "docs/errors.md"
ROW = re.compile(r"^\| (GL-\d{4}) \| `(\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)


def classes() -> dict[str, type[GpulatchError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GpulatchError)]
    return {kind.code: kind for kind in found if kind is not GpulatchError}


def test_each_class_has_a_code_of_its_own() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GpulatchError)]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_the_page_lists_every_code_with_its_class() -> None:
    rows = {code: name for code, name, _, _ in ROW.findall(PAGE.read_text())}
    assert rows == {code: kind.__name__ for code, kind in classes().items()}


def test_the_page_says_for_each_code_what_the_class_says() -> None:
    found = {code: (meaning, plain(remedy)) for code, _, meaning, remedy in ROW.findall(PAGE.read_text())}
    assert found == {code: (" ".join(str(kind.__doc__).split()), kind.remedy) for code, kind in classes().items()}


def plain(text: str) -> str:
    """A link as the command line shows it, which is read elsewhere than in docs/."""
    return re.sub(r"\[[^\]]+\]\(([^)]+)\)", r"docs/\1", text)


def test_a_class_is_found_by_its_code_in_any_case() -> None:
    for code, kind in classes().items():
        assert errors.by_code(code) is errors.by_code(code.lower()) is kind
        assert len(kind.remedy) > 15, code
    assert errors.by_code("GL-0000") is None


def test_every_class_is_raised_somewhere() -> None:
    paths = [*(CHECKOUT / "runtime_wrapper").rglob("*.py"), *(CHECKOUT / "hooks").rglob("*.py")]
    source = "\n".join(path.read_text() for path in paths if path.name != "errors.py")
    for kind in classes().values():
        assert f"{kind.__name__}(" in source, f"{kind.__name__} is never raised"
