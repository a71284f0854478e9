"""What the real commands print and keep fits the schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from drivers.bundle import Bundle
from drivers.host import CHECKOUT, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")


def validate(value: Any, name: str) -> None:
    schema = json.loads((CHECKOUT / "schemas" / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(value)


def test_every_object_fits_its_schema(host: Host, bundle: Bundle) -> None:
    assert host.start(bundle.asking_for("any:2").path, "c1").returncode == 0
    (claim,) = host.claims()
    validate(claim, "claim")
    validate(json.loads(Path("/run/gpulatch/ledger.json").read_text()), "ledger")
    validate(json.loads(host.gpulatch("probe", "--json").stdout), "inventory")
    for text in ("any:2", "any:99", "void", "none", "7", "rubbish"):
        bundle.asking_for(text)
        validate(json.loads(host.gpulatch("resolve", "--json", "--config", str(bundle.config)).stdout), "resolve")
