"""The case tables of NVIDIA's requirements: expressions, releases of old images, what whole containers require.

Where the two evaluators of NVIDIA differ, libnvidia-container's column counts. What differs from it is on
docs/compatibility.md.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import requirement
from runtime_wrapper.requirement import Facts, NotAnExpressionError

CHECKOUT = Path(__file__).parent.parent.parent
TABLE: dict[str, Any] = json.loads((CHECKOUT / "tests/data/requirements.json").read_text())
IMAGES: list[dict[str, str]] = json.loads((CHECKOUT / "tests/data/image_requirements.json").read_text())
HOST = Facts(TABLE["host"]["cuda"], TABLE["host"]["driver"], TABLE["host"]["arch"], frozenset({TABLE["host"]["brand"]}))


def outcome(expression: str, facts: Facts = HOST) -> str:
    try:
        return "ok" if requirement.evaluate(expression, facts).satisfied else "unsatisfied"
    except NotAnExpressionError:
        return "invalid"


@pytest.mark.parametrize("case", TABLE["expressions"], ids=lambda case: case["id"])
def test_an_expression_means_what_it_means_to_nvidias_evaluator(case: dict[str, str]) -> None:
    assert outcome(case["expr"]) == case["libnvidia"]


@pytest.mark.parametrize("case", TABLE["releases"], ids=lambda case: case["id"])
def test_the_release_of_an_old_image_is_read_as_the_table_says(case: dict[str, str]) -> None:
    found = requirement.release(case["in"])
    assert ("error" if found is None else f"{found[0]}.{found[1]}") == case["expect"]


@pytest.mark.parametrize("case", TABLE["containers"], ids=lambda case: case["id"])
def test_a_container_requires_what_the_table_says(case: dict[str, Any]) -> None:
    """A container that is none of NVIDIA's requires nothing there; here it is not even asked, without a request."""
    found = [need.text for need in requirement.needs(case["env"])]
    if case["gpu_container"]:
        assert found == case["requirements"]


def facts(driver: str, cuda: str, brand: str) -> Facts:
    return Facts(cuda, driver, "8.0", frozenset({brand}))


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image["from"])
def test_what_real_images_say_is_met_by_the_newest_driver_and_not_by_an_old_one(image: dict[str, str]) -> None:
    assert outcome(image["value"], facts("610.43.02", "13.3", "geforce")) == "ok"
    assert outcome(image["value"], facts("367.48", "8.0", "geforce")) == "unsatisfied"


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image["from"])
def test_what_real_images_say_is_met_on_each_branch_that_they_name_for_tesla(image: dict[str, str]) -> None:
    for branch in re.findall(r"brand=tesla,driver>=(\d+)", image["value"]):
        assert outcome(image["value"], facts(f"{branch}.99", "1.0", "tesla")) == "ok"
        assert outcome(image["value"], facts("300.1", "1.0", "tesla")) == "unsatisfied"
