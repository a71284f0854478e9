"""The language of requirements against an evaluator made in another way, and at its edges."""

import itertools
import random
import re

import pytest

from runtime_wrapper import requirement
from runtime_wrapper.requirement import Facts, NotAnExpressionError, Verdict

FACTS = Facts("12.4", "550.54.15", "9.0", frozenset({"tesla"}))
VALUES = {
    "cuda": ("12", "12.4", "12.4.0", "12.5", "13", "11.10", "12.3.9", "9", "012.4"),
    "driver": ("550", "550.54.15", "550.54.15.0", "550.54.2", "551", "549.99", "550.100"),
    "arch": ("9", "9.0", "8.9", "10.0", "9.0.1"),
    "brand": ("tesla", "Tesla", "geforce", "nvidia"),
}
OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


def reference(expression: str, facts: Facts) -> bool:
    """Every term replaced by Python's own word for it, and the whole given to Python; for well-formed input only."""

    def term(match: re.Match[str]) -> str:
        name, sign, value = match.groups()
        python = {"=": "=="}.get(sign, sign)
        if name == "brand":
            (brand,) = facts.brands or ()
            return repr(brand == value.lower() if sign == "=" else brand != value.lower())
        numbers = [[int(n) for n in text.split(".")] for text in (getattr(facts, name), value)]
        left, right = ([*n, *[0] * (6 - len(n))] for n in numbers)
        return repr(eval(f"{left} {python} {right}"))

    alternatives = [re.sub(r"([a-z]+)([<>=!]+)([^, ]+)", term, part) for part in expression.split(" ")]
    return bool(eval(" or ".join(f"({part.replace(',', ' and ')})" for part in alternatives)))


def test_random_expressions_agree_with_an_independent_evaluator() -> None:
    chance = random.Random(7)
    for _ in range(5000):
        alternatives = []
        for _ in range(chance.randint(1, 4)):
            terms = []
            for _ in range(chance.randint(1, 3)):
                name = chance.choice(requirement.PROPERTIES)
                sign = chance.choice(OPERATORS[:2] if name == "brand" else OPERATORS)
                terms.append(f"{name}{sign}{chance.choice(VALUES[name])}")
            alternatives.append(",".join(terms))
        expression = " ".join(alternatives)
        assert requirement.evaluate(expression, FACTS).satisfied is reference(expression, FACTS), expression


def test_each_comparison_and_its_opposite_exclude_each_other() -> None:
    opposites = (("=", "!="), ("<", ">="), (">", "<="))
    for name, (one, other) in itertools.product(("cuda", "driver", "arch"), opposites):
        for value in VALUES[name]:
            found = {requirement.evaluate(f"{name}{sign}{value}", FACTS).satisfied for sign in (one, other)}
            assert found == {True, False}


def test_random_text_is_a_verdict_or_no_expression_and_nothing_else() -> None:
    chance = random.Random(11)
    pieces = [
        "cuda",
        "driver",
        "brand",
        "arch",
        ">=",
        "<",
        "=",
        "!",
        "==",
        ",",
        " ",
        "12.4",
        ".",
        "x",
        "\t",
        "\0",
        "é",
        "",
    ]
    for _ in range(5000):
        text = "".join(chance.choices(pieces, k=chance.randint(0, 12)))
        try:
            assert isinstance(requirement.evaluate(text, FACTS), Verdict)
        except NotAnExpressionError as error:
            assert str(error) in text


@pytest.mark.parametrize("size", [10_000, 200_000])
def test_a_very_long_expression_is_read_in_one_pass(size: int) -> None:
    assert not requirement.evaluate("cuda>=13 " * size, FACTS).satisfied
    with pytest.raises(NotAnExpressionError):
        requirement.evaluate("cuda>=" + "9" * size, FACTS)


@pytest.mark.parametrize(
    ("expression", "satisfied", "unchecked"),
    [
        ("brand=tesla,driver>=450", True, ("brand",)),
        ("brand=tesla,driver<450", False, ()),
        ("arch>=9.0 cuda>=12", True, ("arch",)),
        ("cuda>=13 brand!=tesla,arch<5", True, ("brand", "arch")),
        ("cuda>=12", True, ()),
        ("cuda>=13", False, ()),
    ],
)
def test_what_is_not_known_is_taken_to_be_met_and_named(
    expression: str, satisfied: bool, unchecked: tuple[str, ...]
) -> None:
    facts = Facts(cuda="12.4", driver="550.54.15")
    assert requirement.evaluate(expression, facts) == Verdict(satisfied, unchecked)


def test_a_brand_that_goes_by_several_names_meets_what_any_of_them_meets() -> None:
    facts = Facts(brands=frozenset({"tesla", "nvidia"}))
    met = {text: requirement.evaluate(text, facts).satisfied for text in ("brand=Tesla", "brand!=tesla", "brand=grid")}
    assert met == {"brand=Tesla": True, "brand!=tesla": True, "brand=grid": False}


def test_an_alternative_without_terms_ends_the_evaluation_as_in_libnvidia_container() -> None:
    assert requirement.evaluate(", cuda>=13", FACTS).satisfied
    assert not requirement.evaluate("cuda>=13 , cuda>=12", FACTS).satisfied


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_requirements_can_be_switched_off(text: str) -> None:
    environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=99", "CUDA_VERSION": "99.0", "NVIDIA_DISABLE_REQUIRE": text}
    assert requirement.disabled(environment)
    assert requirement.needs(environment) == []


@pytest.mark.parametrize("text", ["", "0", "false", "yes", "tRUE", " true"])
def test_other_words_do_not_switch_them_off(text: str) -> None:
    environment = {"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": text}
    assert [need.text for need in requirement.needs(environment)] == ["cuda>=99"]


def test_what_jetson_boards_need_is_for_others() -> None:
    assert requirement.needs({"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all", "NVIDIA_REQUIRE_JETPACK_X": "y"}) == []


def test_an_empty_requirement_leaves_the_old_variable_standing() -> None:
    needs = requirement.needs({"NVIDIA_REQUIRE_CUDA": "", "CUDA_VERSION": "9.2.148"})
    assert [(need.text, need.legacy) for need in needs] == [("", False), ("cuda>=9.2", True)]
