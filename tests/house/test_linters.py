"""The linters, and the size of things."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_linter(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SCRIPTS = (
    "build",
    "install",
    "prepare",
    "quickstart",
    "uninstall",
    "../tests/run",
    "../tests/benchmark/run",
    "../.ci/run",
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_shell_scripts_parse_and_can_be_executed(script: str) -> None:
    path = CHECKOUT / "packaging" / script
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_texts_name_no_absolute_path_of_a_developer() -> None:
    folders = ("docs", "hooks", "packaging", "runtime_wrapper", "schemas", ".ci")
    paths = [CHECKOUT / "README.md", CHECKOUT / "pyproject.toml"]
    paths += [path for folder in folders for path in (CHECKOUT / folder).rglob("*") if path.suffix != ".pyc"]
    texts = {path: path.read_text() for path in paths if path.is_file()}
    assert len(texts) > 60
    assert [path for path, text in texts.items() if re.search(r"/home/[a-z]|/root/|/Users/", text)] == []
