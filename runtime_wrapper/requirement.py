"""The language of `NVIDIA_REQUIRE_*`: what an image needs of the driver and the GPUs, and whether that is there.

Pure; imported only for a container that says such a variable. A blank is "or", a comma is "and", several variables are
all needed. Odd input is read as NVIDIA's own evaluator reads it (libnvidia-container src/cli/dsl.c): from left to right
up to the first alternative that holds, so that what comes later is not even checked for its form. Which variables count
is as in nvidia-container-toolkit, internal/config/image/cuda_image.go.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "NVIDIA_REQUIRE_"
LEGACY_VARIABLE = "CUDA_VERSION"
DISABLE_VARIABLE = "NVIDIA_DISABLE_REQUIRE"

_JETPACK = f"{PREFIX}JETPACK"  # what Jetson boards need; not for this evaluator
_CUDA = f"{PREFIX}CUDA"
_TRUE = ("1", "t", "T", "TRUE", "true", "True")  # what Go's strconv.ParseBool takes for true

_TERM = re.compile(r"([^<>=!]+)([<>=!]+)(.+)", re.DOTALL)
_VERSION = re.compile(r"[0-9][0-9.]*")
_MAX_DIGITS = 19  # of one number, zeros before it left aside
_NUMBER = r"(0|[1-9][0-9]{0,9})"
_RELEASE = re.compile(rf"v?{_NUMBER}(?:\.{_NUMBER}(?:\.{_NUMBER}(?:[-+][0-9A-Za-z.+-]+)?)?)?")
_MAX_NUMBER = (1 << 32) - 1

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "!": operator.ne,  # dsl.c compares as many characters as were written, so this passes there
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PROPERTIES = ("cuda", "driver", "arch", "brand")


class NotAnExpressionError(Exception):
    """A term cannot be read; its argument is the term."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is there: versions as text, the names that the brand of a GPU can go by in small letters; None unknown."""

    cuda: str | None = None
    driver: str | None = None
    arch: str | None = None
    brands: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an expression holds, and the properties that were taken to hold because they are not known."""

    satisfied: bool
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """One expression of a container and the variable that says it; `legacy`: derived from `CUDA_VERSION`."""

    variable: str
    text: str
    legacy: bool = False


def disabled(environment: Mapping[str, str]) -> bool:
    """Whether the container wants nothing to be checked."""
    return environment.get(DISABLE_VARIABLE) in _TRUE


def needs(environment: Mapping[str, str]) -> list[Need]:
    """Everything that the variables of a container need, none of it when that is switched off.

    An old image says only `CUDA_VERSION`, which stands for `cuda>=MAJOR.MINOR`, and for nothing if it is no version.
    """
    if disabled(environment):
        return []
    found = [
        Need(name, text)
        for name, text in environment.items()
        if name.startswith(PREFIX) and not name.startswith(_JETPACK)
    ]
    version = release(environment.get(LEGACY_VARIABLE, ""))
    if version and not environment.get(_CUDA):
        found.append(Need(LEGACY_VARIABLE, f"cuda>={version[0]}.{version[1]}", legacy=True))
    return found


def release(text: str) -> tuple[int, int] | None:
    """Major and minor of a release such as `12.4.1`, `v9` or `12.4.127-1`; None when the text is none."""
    match = _RELEASE.fullmatch(text)
    numbers = [int(number or 0) for number in match.groups()] if match else []
    return (numbers[0], numbers[1]) if numbers and max(numbers[:2]) <= _MAX_NUMBER else None


def evaluate(expression: str, facts: Facts) -> Verdict:
    """Whether the facts meet an expression; what is not known is taken to be met. Raises NotAnExpressionError."""
    satisfied, unknown = True, [name for name in PROPERTIES if _known(facts, name) is None]
    unchecked: list[str] = []
    for alternative in expression.split(" "):
        if not alternative:
            continue
        unchecked = []
        for term in filter(None, alternative.split(",")):
            name, satisfied = _holds(term, facts)
            if not satisfied:
                break
            unchecked += [name] if name in unknown and name not in unchecked else []
        else:
            break
    return Verdict(satisfied, tuple(unchecked) if satisfied else ())


def version(text: str) -> tuple[int, ...] | None:
    """A version as numbers that compare, missing parts being 0: `550.54.15`; None for any other text."""
    parts = [part.lstrip("0") or "0" for part in text.split(".") if part]
    if not _VERSION.fullmatch(text) or any(len(part) > _MAX_DIGITS for part in parts):
        return None
    numbers = [int(part) for part in parts]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _holds(term: str, facts: Facts) -> tuple[str, bool]:
    """The property that a term is about, and whether it holds."""
    match = _TERM.fullmatch(term)
    name = match[1].lower() if match else ""
    if not match or name not in PROPERTIES or match[2] not in _OPERATORS:
        raise NotAnExpressionError(term)
    compare, value = _OPERATORS[match[2]], match[3]
    if name == "brand":
        if compare not in (operator.eq, operator.ne):
            raise NotAnExpressionError(term)
        names = facts.brands  # one that goes by several names meets what any of them meets
        return name, names is None or any(compare(one, value.lower()) for one in names)
    wanted, found = version(value), version(_known(facts, name) or "")
    if wanted is None:
        raise NotAnExpressionError(term)
    return name, found is None or compare(found, wanted)


def _known(facts: Facts, name: str) -> Any:
    return facts.brands if name == "brand" else getattr(facts, name)
