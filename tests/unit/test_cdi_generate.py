"""`gpulatch cdi generate`: the devices that it writes, and how it puts the file in its place."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from drivers.samples import nvlink_host

from runtime_wrapper import cdi_spec, request, sources, variables
from runtime_wrapper.cdi import parse
from runtime_wrapper.devices import Numbers
from runtime_wrapper.errors import CdiError, GpulatchError, NoDriverError, NotRootError
from runtime_wrapper.inventory import Gpu, Inventory, Link
from runtime_wrapper.operate import cdi, cdi_content, cdi_file, probing

HOST = nvlink_host(4)
NONE = Inventory((), ())


def split_host() -> Inventory:
    """Two GPUs, the first of them split into MIG instances, the second without a UUID yet."""
    gpus = (
        Gpu(0, "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763", "0000:3b:00.0", 1, "A100", None, mig=True),
        Gpu(1, None, "0000:5e:00.0", 0, "A100", None),
    )
    return Inventory(gpus, ((None, Link("SYS")), (Link("SYS"), None)))


def variable_of(device: dict[str, Any]) -> tuple[str, str]:
    assert list(device) == ["name", "containerEdits"]
    assert list(device["containerEdits"]) == ["env"]
    (entry,) = device["containerEdits"]["env"]
    name, _, value = entry.partition("=")
    return name, value


def test_each_device_asks_for_what_its_name_says_by_a_variable_of_its_own() -> None:
    spec = cdi_content.asking(HOST)
    assert (spec["kind"], spec["cdiVersion"]) == ("gpulatch.io/gpu", "0.5.0")
    assert "containerEdits" not in spec
    found = {device["name"]: variable_of(device) for device in spec["devices"]}
    uuids = [str(gpu.uuid) for gpu in HOST.gpus]
    assert list(found) == ["any", "any-1", "any-2", "any-3", "any-4", "all", "0", "1", "2", "3", *uuids]
    assert len({name for name, _ in found.values()}) == len(found)
    assert found["any-2"] == ("GPULATCH_REQ_ANY_2", "any:2")
    assert all(parse(f"gpulatch.io/gpu={name}") for name in found)
    for name, value in found.values():
        wish = next(iter(variables.own({name: value})))[1]
        assert request.parse(wish, "row") is not None


def test_two_devices_add_up() -> None:
    by_name = {device["name"]: device["containerEdits"]["env"] for device in cdi_content.asking(HOST)["devices"]}
    (wish,) = sources.wishes({"process": {"env": [*by_name["any"], *by_name["any-2"]]}}, "c1")
    found = request.parse(wish.text, wish.place)
    assert found is not None
    assert found.count == 3


def test_a_plain_spec_gives_nodes_by_index_and_uuid_and_the_control_nodes_once() -> None:
    spec = cdi_content.plain(HOST, Numbers.assumed())
    assert (spec["kind"], spec["cdiVersion"]) == ("nvidia.com/gpu", "0.5.0")
    nodes = {d["name"]: [n["path"] for n in d["containerEdits"]["deviceNodes"]] for d in spec["devices"]}
    for gpu in HOST.gpus:
        assert nodes[str(gpu.index)] == nodes[str(gpu.uuid)] == [f"/dev/nvidia{gpu.minor}"]
    assert nodes["all"] == [f"/dev/nvidia{gpu.minor}" for gpu in HOST.gpus]
    control = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]
    assert [node["path"] for node in spec["containerEdits"]["deviceNodes"]] == control
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    every = [*spec["containerEdits"]["deviceNodes"], *spec["devices"][0]["containerEdits"]["deviceNodes"]]
    assert all(set(node) == {"path", "permissions"} and node["permissions"] == "rw" for node in every)


@pytest.mark.parametrize("spec", [cdi_content.asking(HOST), cdi_content.plain(HOST, Numbers.assumed())])
def test_what_is_written_would_be_read(spec: dict[str, Any]) -> None:
    found = cdi_spec.check(spec, "row")
    assert len(found.devices) == len(spec["devices"])
    with pytest.raises(CdiError):
        cdi_spec.check({**spec, "cdiVersion": "0.4.0"}, "row")


def test_a_gpu_that_is_split_is_in_neither() -> None:
    names = [device["name"] for device in cdi_content.asking(split_host())["devices"]]
    assert names == ["any", "any-1", "all", "1"]
    assert [d["name"] for d in cdi_content.plain(split_host(), Numbers.assumed())["devices"]] == ["1", "all"]


@pytest.mark.parametrize("form", cdi_file.FORMATS)
def test_both_formats_say_the_same(form: str) -> None:
    spec = cdi_content.asking(HOST)
    assert yaml.safe_load(cdi_file.dumps(spec, form)) == spec  # JSON is YAML too


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cdi.cdi, ["generate", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file is to go, in a folder that is not there yet; the host has four GPUs."""
    monkeypatch.setattr(probing, "refresh", lambda: HOST)
    monkeypatch.setattr(cdi, "DIRECTORY", str(tmp_path / "cdi"))
    return tmp_path / "cdi/gpulatch.io-gpu.json"


needs_root = pytest.mark.needs("root")


@needs_root
def test_the_file_is_made_with_its_folder_for_everybody_to_read(place: Path) -> None:
    result = call()
    assert (result.exit_code, result.stdout) == (0, f"{place}: gpulatch.io/gpu, 14 devices\n")
    assert json.loads(place.read_text()) == cdi_content.asking(HOST)
    assert (place.stat().st_mode & 0o7777, place.parent.stat().st_mode & 0o7777) == (0o644, 0o755)
    assert list(place.parent.iterdir()) == [place]


@needs_root
def test_an_unchanged_file_is_not_written_again(place: Path) -> None:
    call()
    before = place.stat()
    assert call().stdout.endswith(", as before\n")
    assert place.stat() == before
    place.chmod(0o600)
    call()
    assert place.stat().st_mode & 0o777 == 0o644


@needs_root
@pytest.mark.parametrize("inventory", [NONE, Inventory(split_host().gpus[:1], ((None,),))], ids=["none", "all split"])
def test_without_a_gpu_the_file_stays(place: Path, monkeypatch: pytest.MonkeyPatch, inventory: Inventory) -> None:
    call()
    good = place.read_text()
    monkeypatch.setattr(probing, "refresh", lambda: inventory)
    assert isinstance(call().exception, CdiError)
    assert isinstance(call("--nvidia", "--output", str(place)).exception, CdiError)
    assert place.read_text() == good


@needs_root
def test_without_the_driver_the_file_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh() -> Inventory:
        raise NoDriverError("NVIDIA driver", "/proc", "is not loaded", "run: modprobe nvidia")

    call()
    good = place.read_text()
    monkeypatch.setattr(probing, "refresh", refresh)
    assert isinstance(call().exception, NoDriverError)
    assert place.read_text() == good


@needs_root
def test_a_link_in_the_place_of_the_file_or_its_folder_is_refused(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    place.parent.mkdir()
    place.symlink_to(target)
    assert isinstance(call().exception, GpulatchError)
    assert (target.read_text(), place.is_symlink()) == ("mine", True)
    linked = tmp_path / "linked"
    linked.symlink_to(place.parent)
    assert isinstance(call("--output", str(linked / "a.json")).exception, GpulatchError)
    assert not (place.parent / "a.json").exists()


@needs_root
def test_a_folder_that_others_can_change_is_refused(place: Path) -> None:
    place.parent.mkdir()
    place.parent.chmod(0o777)
    assert isinstance(call().exception, GpulatchError)
    assert not place.exists()


@needs_root
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(place: Path, tmp_path: Path) -> None:
    error = call("--output", str(tmp_path / "no/such/a.json")).exception
    assert isinstance(error, CdiError)
    assert "ENOENT" in str(error)


@needs_root
def test_the_ending_says_the_format(place: Path) -> None:
    result = call("--output", str(place.with_suffix(".yaml")))
    assert result.exit_code == 0
    assert place.with_suffix(".yaml").read_text().startswith("cdiVersion: 0.5.0\n")
    assert call("--format", "yaml").stdout.startswith(str(place.with_suffix(".yaml")))


def test_only_root_writes_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "look", lambda: HOST)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert isinstance(call().exception, NotRootError)
    assert not place.parent.exists()


@pytest.mark.parametrize("arguments", [["a.yml"], ["a"], ["a.json", "--format", "yaml"]])
def test_a_name_that_no_engine_reads_is_bad_usage(place: Path, arguments: list[str]) -> None:
    result = call("--output", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


@pytest.mark.parametrize(("form", "first"), [("json", "{"), ("yaml", "cdiVersion: 0.5.0")])
def test_a_dash_prints_it(place: Path, monkeypatch: pytest.MonkeyPatch, form: str, first: str) -> None:
    monkeypatch.setattr(probing, "look", lambda: HOST)
    result = call("--output", "-", "--format", form)
    assert result.stdout.splitlines()[0] == first
    assert not place.parent.exists()
