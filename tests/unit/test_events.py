"""The event log on a real file system: capped, and harmless whatever is wrong with it."""

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import events
from runtime_wrapper.errors import NotEnoughGpusError
from runtime_wrapper.events import Story

pytestmark = pytest.mark.needs("root")


def story(name: str = "c1", **more: Any) -> Story:
    return Story(name, "/run/runc", "/b", "gpulatch", "runc", engine="none", **more)


def log() -> Path:
    return Path(events.DIRECTORY, events.FILE)


def written() -> list[dict[str, Any]]:
    return [json.loads(line) for line in log().read_text().splitlines()]


def test_an_event_is_one_line_that_tells_the_start() -> None:
    told = story(name="c1", kind=events.GRANTED)
    told.heard("gpulatch_gpus", "env GPULATCH_GPUS", "any:1", "counts")
    with told.phase("choose"):
        pass
    events.append([told.to_json()])
    (event,) = written()
    assert event["container"]["id"] == "c1"
    assert event["said"][0]["text"] == "any:1"
    assert set(event["phases_ms"]) == {"python", "choose", "all"}
    assert event["phases_ms"]["all"] >= event["phases_ms"]["choose"]


def test_a_phase_that_an_error_cuts_short_is_measured_too() -> None:
    told = story()
    with pytest.raises(ValueError, match="boom"), told.phase("edit"):
        raise ValueError("boom")
    assert "edit" in told.to_json()["phases_ms"]


def test_a_tenants_text_is_cut_and_lists_are_bounded() -> None:
    told = story(request="x" * 5000, edits=[f"edit {i}" for i in range(1000)])
    told.heard("gpulatch_gpus", "env", "y" * 5000, "counts")
    event = told.to_json()
    assert len(event["request"]) == len(event["said"][0]["text"]) == events.MAX_TEXT
    assert len(event["edits"]) == events.MAX_LINES


def test_text_that_is_no_unicode_is_no_obstacle() -> None:
    events.append([story(name="\udcff\n").to_json()])
    assert len(written()) == 1


def test_the_full_log_is_put_aside_and_the_one_before_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 4000)
    for i in range(60):
        events.append([story(name=f"c{i}").to_json()])
    assert log().stat().st_size <= 4000
    older = log().with_name(events.OLDER)
    assert older.stat().st_size <= 4000
    names = [json.loads(line)["container"]["id"] for path in (older, log()) for line in path.read_text().splitlines()]
    assert names == [f"c{i}" for i in range(60 - len(names), 60)]  # the youngest, none twice, none lost between
    assert sorted(os.listdir(events.DIRECTORY)) == [events.OLDER, events.FILE]


def test_an_event_larger_than_the_cap_does_not_turn_the_log_over_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 10)
    for _ in range(3):
        events.append([story().to_json()])
    assert len(written()) == 1


def _write_many(number: int) -> None:
    for i in range(50):
        events.append([story(name=f"{number}-{i}").to_json()])


def test_many_writers_at_once_lose_no_event_while_the_log_turns_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_BYTES", 100_000)  # less than half of what is written, so that it turns over once
    writers = [multiprocessing.get_context("fork").Process(target=_write_many, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    paths = [path for path in (log().with_name(events.OLDER), log()) if path.exists()]
    lines = [json.loads(line)["container"]["id"] for path in paths for line in path.read_text().splitlines()]
    assert len(paths) == 2
    assert len(set(lines)) == len(lines)
    young = [line for line in lines if line.endswith("-49")]
    assert len(young) == 8


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _foreign(path: Path) -> None:
    path.write_text("theirs")
    os.chown(path, 1000, 1000)


def _second_name(path: Path) -> None:
    path.with_name("other").write_text("shared")
    os.link(path.with_name("other"), path)


@pytest.mark.parametrize(
    "spoil",
    [
        _fifo,
        _foreign,
        _second_name,
        Path.mkdir,
        lambda path: path.symlink_to("/etc/target"),
        lambda path: path.parent.chmod(0o777),
        lambda path: (path.parent.rmdir(), path.parent.write_text("a file")),
        lambda path: (path.parent.rmdir(), path.parent.symlink_to("/nowhere")),
    ],
    ids=["fifo", "foreign", "hard link", "folder", "symlink", "open folder", "file", "dangling folder"],
)
def test_a_log_that_cannot_be_used_is_left_alone_and_nothing_fails(spoil: Callable[[Path], object]) -> None:
    log().parent.mkdir(mode=0o755)
    spoil(log())
    before = os.lstat(log()) if log().exists() or log().is_symlink() else None
    events.append([story().to_json()])
    after = os.lstat(log()) if log().exists() or log().is_symlink() else None
    assert (before and before.st_size) == (after and after.st_size)
    assert not Path("/etc/target").exists()


@pytest.mark.parametrize("call", ["open", "write", "mkdir"])
def test_a_failing_system_call_is_not_the_containers_problem(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def failing(*args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, failing)
    events.append([story().to_json()])
    monkeypatch.undo()
    assert not log().exists() or log().read_text() == ""


def test_a_refusal_is_told_with_its_code() -> None:
    told = story(error=NotEnoughGpusError("1 free GPU", "env X", "none is free", "stop one"))
    event = told.to_json()
    assert event["error"] == {
        "code": "GL-4001",
        "message": "gpulatch: 1 free GPU, env X: none is free; stop one (GL-4001)",
    }
