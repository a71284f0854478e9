import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import spec
from runtime_wrapper.errors import ChangedSpecError, SpecError, UntrustedPathError

pytestmark = pytest.mark.needs("root")

ASKING: dict[str, Any] = {"process": {"env": ["GPULATCH_GPUS=0"]}, "future": {"x": 1.5, "big": 2**70}}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(ASKING))
    path.chmod(0o600)
    return path


def read(path: Path) -> spec.Spec:
    found = spec.read(str(path))
    assert found is not None
    return found


def test_a_plain_file_is_read_and_trusted(config: Path) -> None:
    found = read(config)
    assert found.data == ASKING
    found.require_trust()


def test_an_absent_file_is_for_the_runtime_to_report(tmp_path: Path) -> None:
    assert spec.read(str(tmp_path / "config.json")) is None
    assert spec.read(str(tmp_path / "nowhere/config.json")) is None


def test_broken_json_that_does_not_speak_of_gpus_is_for_the_runtime_to_report(config: Path) -> None:
    config.write_text('{"process": {"env": ["A=1"')
    assert spec.read(str(config)) is None


@pytest.mark.parametrize(
    "text",
    ['{"process": {"env": ["GPULATCH_GPUS=0"', '["NVIDIA_VISIBLE_DEVICES=0"]', "[" * 100_000 + '"gpulatch.io/gpus"'],
)
def test_broken_json_that_speaks_of_gpus_is_refused(config: Path, text: str) -> None:
    config.write_text(text)
    with pytest.raises(SpecError, match=str(config)):
        spec.read(str(config))


def test_a_spec_in_another_encoding_is_refused_when_it_speaks_of_gpus(config: Path) -> None:
    config.write_bytes(b'{"process": {"env": ["GPULATCH_GPUS=0", "A=\xff"]}}')
    with pytest.raises(SpecError, match="is not valid JSON"):
        spec.read(str(config))


@pytest.mark.parametrize("kind", ["link", "hard link", "owner", "mode", "directory mode"])
def test_what_a_tenant_could_change_is_read_but_not_trusted(config: Path, kind: str) -> None:
    if kind == "link":
        config.rename(config.with_name("real.json"))
        config.symlink_to("real.json")
    elif kind == "hard link":
        os.link(config, config.with_name("other.json"))
    elif kind == "owner":
        os.chown(config, 1000, 1000)
    elif kind == "mode":
        config.chmod(0o666)
    else:
        config.parent.chmod(0o777)
    found = read(config)
    assert found.data == ASKING
    with pytest.raises(UntrustedPathError):
        found.require_trust()


def test_a_fifo_is_refused_without_blocking(config: Path) -> None:
    config.unlink()
    os.mkfifo(config)
    with pytest.raises(UntrustedPathError, match="not a regular file"):
        spec.read(str(config))


def test_a_huge_file_is_refused(config: Path) -> None:
    os.truncate(config, 17 << 20)
    with pytest.raises(UntrustedPathError, match="larger than 16 MiB"):
        spec.read(str(config))


def test_writing_keeps_the_original_beside_and_the_mode(config: Path) -> None:
    found = read(config)
    spec.write(found, {**found.data, "edited": True}, "12.34")
    written = json.loads(config.read_text())
    assert written["edited"]
    assert written["future"] == ASKING["future"]
    assert written["annotations"]["gpulatch.io/claim"] == "12.34"
    assert config.with_name("config.gpulatch.json").read_bytes() == found.raw
    assert config.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(config.parent)) == ["config.gpulatch.json", "config.json"]


def test_a_bundle_that_comes_twice_starts_from_the_original(config: Path) -> None:
    first = read(config)
    for _ in range(3):
        again = spec.original(read(config))
        assert again.raw == first.raw
        spec.write(again, {**again.data, "edited": True}, None)


def test_a_spec_written_by_the_engine_since_is_its_own_original(config: Path) -> None:
    found = read(config)
    spec.write(found, {**found.data, "edited": True}, None)
    config.write_text(json.dumps({**ASKING, "new": 1}))
    assert spec.original(read(config)).data["new"] == 1


def test_a_change_to_what_gpulatch_wrote_is_refused_not_lost(config: Path) -> None:
    found = read(config)
    spec.write(found, dict(found.data), None)
    written = json.loads(config.read_text())
    written["process"]["cwd"] = "/tmp"
    config.write_text(json.dumps(written))
    with pytest.raises(ChangedSpecError, match="was changed after gpulatch wrote it"):
        spec.original(read(config))


@pytest.mark.parametrize("change", ["gone", "other"])
def test_a_marked_spec_without_its_original_is_refused(config: Path, change: str) -> None:
    found = read(config)
    spec.write(found, dict(found.data), None)
    kept = config.with_name("config.gpulatch.json")
    if change == "gone":
        kept.unlink()
    else:
        kept.write_text("{}")
    with pytest.raises(ChangedSpecError, match="config.gpulatch.json is not its original"):
        spec.original(read(config))


def test_a_mark_that_a_tenant_made_up_is_refused(config: Path) -> None:
    config.write_text(json.dumps({**ASKING, "annotations": {"gpulatch.io/original": "0" * 64}}))
    with pytest.raises(ChangedSpecError):
        spec.original(read(config))


def test_null_annotations_are_no_obstacle(config: Path) -> None:
    config.write_text(json.dumps({**ASKING, "annotations": None}))
    found = read(config)
    spec.write(spec.original(found), dict(found.data), "1.2")
    assert spec.original(read(config)).raw == found.raw


def test_a_failed_write_changes_nothing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(config)

    def no_space(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime_wrapper.atomic._write_all", no_space)
    with pytest.raises(SpecError, match="ENOSPC"):
        spec.write(found, dict(found.data), None)
    assert config.read_bytes() == found.raw
    assert os.listdir(config.parent) == ["config.json"]


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        ({"io.kubernetes.cri.container-name": "c", "io.kubernetes.cri.sandbox-name": "p"}, "p/c"),
        ({"io.kubernetes.cri.container-name": "c"}, "c"),
        ({"io.kubernetes.cri.sandbox-name": "p"}, None),
        ({}, None),
    ],
)
def test_containers_are_named_as_their_engine_names_them(annotations: dict[str, str], name: str | None) -> None:
    assert spec.container_name({"annotations": annotations}) == name
