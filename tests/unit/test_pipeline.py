import fcntl
import os
from pathlib import Path

import pytest
from drivers.samples import nvlink_host

from runtime_wrapper import lock, pipeline, snapshot, spec, trust
from runtime_wrapper.argv import Invocation
from runtime_wrapper.events import Story
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.request import parse
from runtime_wrapper.settings import Settings

pytestmark = pytest.mark.needs("root")


def test_the_machine_is_never_looked_at_under_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that hangs must not keep every other container of the host from starting."""
    state = tmp_path / "state"
    monkeypatch.setattr(pipeline, "Ledger", lambda: Ledger(str(state)))
    looked = []

    def look() -> Inventory:
        descriptor = os.open(state / lock.NAME, os.O_CREAT | os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        looked.append(True)
        return nvlink_host()

    monkeypatch.setattr(snapshot, "load", look)
    wanted = parse("any:2", "env X")
    assert wanted
    invocation = Invocation("create", "c1", "/b", "/b/config.json", "/r", None, "text")
    original = spec.Spec("/b/config.json", b"{}", {})
    story = Story("c1", "/r", "/b", "name", "runc", engine="none")
    start = pipeline.Start("/usr/sbin/runc", invocation, original, original, story)
    claim, offer, inventory = pipeline._book(start, wanted, Settings(), observed=False)
    assert looked == [True]
    assert inventory == nvlink_host()
    assert [gpu.index for gpu in offer.gpus] == [0, 1]
    assert Ledger(str(state)).read().claims == [claim]
    assert set(story.phases_ms) == {"python", "inventory", "look", "lock", "choose"}
    assert trust.STATE_DIR == "/run/gpulatch"
