import json
import os
from collections.abc import Callable
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


def test_invalid_utf8_is_read_as_go_reads_it(config: Path) -> None:
    config.write_bytes(b'{"process": {"env": ["GPULATCH_GPUS=0", "A=\xff", "NVIDIA\\u005fVISIBLE_DEVICES=1"]}}')
    assert spec.environment(read(config).data) == {"GPULATCH_GPUS": "0", "A": "\ufffd", "NVIDIA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    ("odd", "key"),
    [
        ({"Process": {"env": []}}, "Process"),
        ({"process": {"env": ["GPULATCH_GPUS=0"], "Env": ["GPULATCH_GPUS=1"]}}, "Env"),
        ({"linux": {"Resources": {"devices": []}}}, "Resources"),
        ({"linux": {"resources": {"device\u017f": []}}}, "device\u017f"),
        ({"linux": {"resources": {"devices": [{"Allow": True}]}}}, "Allow"),
        ({"linux": {"devices": [{"path": "/dev/x"}, {"MAJOR": 195}]}}, "MAJOR"),
        ({"mounts": [{"Destination": "/dev/nvidia0"}]}, "Destination"),
        ({"hooks": {"Prestart": []}}, "Prestart"),
        ({"Annotations": {"gpulatch.io/gpus": "0"}}, "Annotations"),
    ],
)
def test_a_key_that_only_runc_would_read_is_refused(config: Path, odd: dict[str, Any], key: str) -> None:
    config.write_text(json.dumps({"x": "GPULATCH_", **odd}, ensure_ascii=False))
    with pytest.raises(SpecError, match=f'has the key "{key}"'):
        spec.read(str(config))


def test_the_same_keys_do_not_matter_where_no_gpu_is_spoken_of(config: Path) -> None:
    config.write_text(json.dumps({"Process": {}, "mounts": [{"Destination": "/x"}]}))
    read(config)


def test_keys_of_others_may_be_spelled_as_they_like(config: Path) -> None:
    config.write_text(json.dumps({**ASKING, "annotations": {"Process": "x", "PATH": "y"}, "vm": {"Linux": {}}}))
    read(config)


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


def test_a_huge_file_is_refused_if_it_speaks_of_gpus(config: Path) -> None:
    os.truncate(config, 17 << 20)
    with pytest.raises(UntrustedPathError, match="larger than 16 MiB"):
        spec.read(str(config))
    config.write_bytes(b"{" + b" " * (17 << 20) + b"}")
    assert spec.read(str(config)) is None
    config.write_bytes(b"{" + b" " * ((18 << 20) - 4) + b"NVIDIA_VISIBLE_DEVICES")  # across a boundary
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


@pytest.mark.parametrize("mark", ["gpulatch.io/original", "gpulatch.io/edited", "gpulatch.io/claim"])
def test_a_mark_that_a_tenant_made_up_means_nothing(config: Path, mark: str) -> None:
    config.write_text(json.dumps({**ASKING, "annotations": {mark: "0" * 64}}))
    found = read(config)
    assert spec.original(found) is found


def test_an_original_can_be_put_back(config: Path) -> None:
    found = read(config)
    spec.write(found, {**found.data, "edited": True}, None)
    spec.put_back(spec.original(read(config)))
    assert config.read_bytes() == found.raw


@pytest.mark.parametrize("failing", [0, 1])
def test_a_read_that_fails_for_want_of_something_is_no_absent_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    def no_descriptors(*args: object) -> bytes:
        raise OSError(24, "Too many open files") if failing else UntrustedPathError("w", "x", "y", "z")

    monkeypatch.setattr(spec.trust, "read_file", no_descriptors)
    monkeypatch.setattr(spec.trust, "read_anyhow", no_descriptors)
    with pytest.raises((OSError, UntrustedPathError)):
        spec.read(str(config))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on there is no room for `config.json` any more, but for its smaller original."""
    replace = spec.atomic.replace

    def no_room(directory: int, name: str, *more: Any) -> None:
        if name == "config.json":
            raise OSError(28, "No space left on device")
        replace(directory, name, *more)

    return lambda: monkeypatch.setattr(spec.atomic, "replace", no_room)


def test_a_failed_second_write_takes_the_kept_original_away_again(config: Path, full_disk: Callable[[], None]) -> None:
    found = read(config)
    full_disk()
    with pytest.raises(SpecError, match="ENOSPC"):
        spec.write(found, dict(found.data), None)
    assert os.listdir(config.parent) == ["config.json"]


def test_a_failed_write_over_what_gpulatch_wrote_never_loses_the_original(
    config: Path, full_disk: Callable[[], None]
) -> None:
    first = read(config)
    spec.write(first, {**first.data, "edited": True}, None)
    again = spec.original(read(config))
    full_disk()
    with pytest.raises(SpecError, match="ENOSPC"):
        spec.write(again, dict(again.data), None)
    assert spec.original(read(config)).raw == first.raw


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


def test_the_original_is_kept_before_the_edited_spec_is_written(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two writes then leaves the engine's own spec in place."""
    found, order = read(config), []
    monkeypatch.setattr(spec.atomic, "replace", lambda directory, name, *more: order.append(name))
    spec.write(found, dict(found.data), None)
    assert order == ["config.gpulatch.json", "config.json"]


def test_an_odd_key_stands_against_a_gpu_container_also_where_its_spec_speaks_of_no_gpu(tmp_path: Path) -> None:
    """A request need not be in the spec: Docker's record, or a variable of Swarm's that only the settings know."""
    path = tmp_path / "config.json"
    path.write_text('{"linux": {}, "Linux": {"devices": []}}')
    found = spec.read(str(path))
    assert found
    with pytest.raises(SpecError, match='has the key "Linux"'):
        found.require_trust()


def test_a_tenants_own_record_never_stays_in_what_gpulatch_writes(config: Path) -> None:
    found = read(config)
    forged = {**found.data, "annotations": {"gpulatch.io/claim": "1.1", "gpulatch.io/record": "{}", "mine": "x"}}
    spec.write(found, forged, None)
    written = json.loads(config.read_bytes())["annotations"]
    assert set(written) == {"mine", "gpulatch.io/original", "gpulatch.io/edited"}


def test_a_spec_nested_deeper_than_any_key_that_counts_is_no_obstacle(config: Path) -> None:
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    config.write_text(json.dumps({**ASKING, "mounts": deep}))
    read(config).require_trust()


@pytest.mark.parametrize("text", ['"major":195', '"cdi.k8s.io/x"', "nvidia-container-devices", "DOCKER_RESOURCE_GPU"])
def test_a_spec_too_long_to_be_read_that_may_open_gpus_is_refused(config: Path, text: str) -> None:
    config.write_text("x" * (17 << 20) + text)
    with pytest.raises(UntrustedPathError, match="larger than"):
        spec.read(str(config))
