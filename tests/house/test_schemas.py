"""Every JSON object that gpulatch writes: its schema takes good samples, refuses bad ones, fits the documents."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from drivers.samples import nvlink_host

CHECKOUT = Path(__file__).parent.parent.parent
NAMES = sorted(path.stem for path in (CHECKOUT / "schemas").glob("*.json"))
BLOCK = re.compile(r"<!-- schema: (\w+) -->\n```(json|toml)\n(.*?)```", re.DOTALL)


def schema(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((CHECKOUT / "schemas" / f"{name}.json").read_text())
    return data


def validate(value: Any, name: str) -> None:
    jsonschema.Draft202012Validator(schema(name), format_checker=jsonschema.FormatChecker()).validate(value)


def documented() -> list[tuple[str, Any]]:
    """The samples in docs/, each marked with the schema it follows."""
    found = []
    for page in sorted((CHECKOUT / "docs").glob("*.md")):
        for name, kind, text in BLOCK.findall(page.read_text()):
            found.append((name, json.loads(text) if kind == "json" else tomllib.loads(text)))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_itself_is_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize(("name", "sample"), documented(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_documents_samples_are_good(name: str, sample: Any) -> None:
    validate(sample, name)


@pytest.mark.parametrize("name", NAMES)
def test_each_object_has_a_sample_in_the_documents(name: str) -> None:
    assert name in [found for found, _ in documented()]


def spoiled(sample: Any) -> list[Any]:
    """The sample with each key left out, turned into another type, and an unknown key added; nested objects too."""
    bad: list[Any] = []
    if isinstance(sample, dict):
        bad.append({**sample, "no such key": 1})
        for key, value in sample.items():
            bad.append({**sample, key: {"not": "this"}})
            bad.append({other: sample[other] for other in sample if other != key})
            bad += [{**sample, key: inner} for inner in spoiled(value)]
    elif isinstance(sample, list) and sample:
        bad += [[inner, *sample[1:]] for inner in spoiled(sample[0])]
    return bad


@pytest.mark.parametrize("name", ["claim", "config", "inventory", "ledger", "resolve", "runtime"])
def test_what_gpulatch_writes_is_described_to_the_last_key(name: str) -> None:
    for found, sample in documented():
        if found == name:
            for bad in spoiled(sample):
                with pytest.raises(jsonschema.ValidationError):
                    validate(bad, name)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("settings", {"runtime": {"x": {"mode": "off-ish"}}}),
        ("settings", {"runtime": {"x": {"modus": "observe"}}}),
        ("settings", {"runtimes": {}}),
        ("machine", {"name": "x"}),
        ("machine", {"links": [["X", "NV99x"]]}),
        ("machine", {"links": "x"}),
        ("claim", {}),
        ("resolve", {"error": None}),
    ],
)
def test_bad_samples_are_refused(name: str, bad: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(bad, name)


def test_an_inventory_as_written_fits_its_schema() -> None:
    validate(json.loads(json.dumps(nvlink_host().to_json())), "inventory")


def test_every_machine_file_fits_its_schema(machines: dict[str, dict[str, Any]]) -> None:
    for machine in machines.values():
        validate(machine, "machine")
    validate(json.loads((CHECKOUT / "runtime_wrapper/operate/machines/dgx_a100.json").read_text()), "machine")
