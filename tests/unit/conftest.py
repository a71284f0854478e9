"""Unit tests look at no container of this host and write nothing into its log."""

from pathlib import Path

import pytest

from runtime_wrapper import events, recovery


@pytest.fixture(autouse=True)
def own_log_and_no_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "DIRECTORY", str(tmp_path / "log"))
    monkeypatch.setattr(recovery, "ROOTS", ())
