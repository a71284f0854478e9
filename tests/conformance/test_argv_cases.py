"""The case table of argument parsing, whose columns come from a peer that searches argv for the word `create`.

Where the peer is wrong (`deviate`) or runc itself refuses the line, the line is passed on unchanged.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper.argv import parse

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "argv_cases.json").read_text())
CWD = "/cwd"

# `create` in the table, but not a line that runc takes: no container id, or the last option has no value.
REFUSED_BY_RUNC = {"E013", "E032"}


def is_ours(case: dict[str, Any]) -> bool:
    return case["expect"]["create"] and "deviate" not in case and case["id"] not in REFUSED_BY_RUNC


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_is_read_as_the_table_says(case: dict[str, Any]) -> None:
    invocation = parse(case["argv"], "runc", CWD, {}, 0)
    if not is_ours(case):
        assert invocation is None
        return
    assert invocation is not None
    assert (invocation.subcommand, invocation.bundle) == ("create", case["expect"]["bundle"] or CWD)


def test_the_table_has_creates_deviations_and_other_lines() -> None:
    assert sum(is_ours(case) for case in CASES) == 2
    assert sum("deviate" in case for case in CASES) == 8
    assert {case["id"] for case in CASES} >= REFUSED_BY_RUNC


PASSED_ON = [case for case in CASES if case["expect"]["create"] and not is_ours(case)]


@pytest.mark.needs("runc")
@pytest.mark.parametrize("case", PASSED_ON, ids=lambda case: case["id"])
def test_runc_itself_takes_none_of_the_lines_that_we_pass_on_for_a_create(case: dict[str, Any], tmp_path: Path) -> None:
    runc = shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin")
    line = [str(runc), "--root", str(tmp_path), *case["argv"]]
    answer = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    said = answer.stdout + answer.stderr
    if case.get("deviate", "").startswith("the word create is") and "--pid-file" not in line:
        assert "Incorrect Usage" not in said
        assert "does not exist" in said
    else:
        assert "Incorrect Usage" in said
