"""Driver files from CDI specs: what of them is compiled and taken, and when the compiled ones no longer hold."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from drivers.samples import nvlink_host

from runtime_wrapper import cdi_cache, cdi_registry, settings_folder, trust
from runtime_wrapper.errors import CdiError, StaleCdiError, UntrustedPathError
from runtime_wrapper.operate import cdi, cdi_file

pytestmark = pytest.mark.needs("root")

HOST = nvlink_host(3)  # minors 1, 2 and 0
FIRST, SECOND, _ = HOST.gpus
HOOK = {
    "hookName": "createContainer",
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "update-ldcache"],
}
LIBRARY = "/usr/lib/libcuda.so.999"


def device(name: str, *nodes: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes], **more}}


def nvidia_spec(**more: Any) -> dict[str, Any]:
    """As NVIDIA's tool writes it, with an index that follows another order than ours, and a MIG instance."""
    devices = [
        device("0", "/dev/nvidia2", "/dev/dri/card2"),
        device("1", "/dev/nvidia1", env=["BY=index"]),
        device(str(FIRST.uuid), "/dev/nvidia1", env=["BY=uuid"]),
        device("0:0", "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3"),
        device("all", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia0"),
    ]
    edits = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "mounts": [{"hostPath": LIBRARY, "containerPath": LIBRARY, "options": ["ro", "bind"]}],
        "hooks": [HOOK],
    }
    return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": edits, **more}


class Machine:
    """The CDI directory and the state directory of a host."""

    def __init__(self, folder: Path) -> None:
        self.etc, self.run = folder / "cdi", folder / "state"
        self.etc.mkdir()
        self.file = self.etc / "nvidia.yaml"

    def write(self, data: dict[str, Any]) -> None:
        self.file.write_text(cdi_file.dumps(data, "yaml"))

    def compile(self) -> Result:
        return CliRunner().invoke(cdi.cdi, ["compile"])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host whose file systems number moments finely."""
    found = Machine(tmp_path)
    monkeypatch.setattr(cdi_registry, "DIRECTORIES", (str(found.etc), str(tmp_path / "none")))
    monkeypatch.setattr(trust, "STATE_DIR", str(found.run))
    monkeypatch.setattr(settings_folder, "GRANULE_NS", 20_000_000)
    found.write(nvidia_spec())
    return found


def test_variables_mounts_and_hooks_are_taken_and_no_nodes(machine: Machine) -> None:
    result = machine.compile()
    assert (result.exit_code, result.stdout) == (0, f"{machine.run}/cdi.json: nvidia.com/gpu, 5 devices\n")
    given: dict[str, Any] = {"process": {"env": ["A=1"]}}
    edited = cdi_cache.with_driver_files(given, [FIRST, SECOND])
    assert edited["process"]["env"] == ["A=1", "NVIDIA_VISIBLE_DEVICES=void", "BY=uuid"]
    assert [mount["destination"] for mount in edited["mounts"]] == [LIBRARY]
    assert [hook["path"] for hook in edited["hooks"]["createContainer"]] == [HOOK["path"]]
    assert "linux" not in edited
    assert given == {"process": {"env": ["A=1"]}}


def test_what_the_engine_has_injected_already_comes_once(machine: Machine) -> None:
    machine.compile()
    once = cdi_cache.with_driver_files({}, [FIRST])
    assert cdi_cache.with_driver_files(once, [FIRST]) == once


def test_a_gpu_without_a_device_of_its_own_is_refused(machine: Machine) -> None:
    machine.compile()
    with pytest.raises(CdiError, match="CDI device of GPU 2, /dev/nvidia0"):
        cdi_cache.with_driver_files({}, HOST.gpus)


def test_without_compiled_ones_it_is_refused(machine: Machine) -> None:
    with pytest.raises(StaleCdiError, match=r"there are none; run: gpulatch cdi compile \(GL-7003\)"):
        cdi_cache.with_driver_files({}, [FIRST])


def test_a_file_that_has_changed_is_named(machine: Machine) -> None:
    machine.compile()
    time.sleep(0.01)
    machine.write(nvidia_spec(containerEdits={}))
    with pytest.raises(StaleCdiError, match=r"/nvidia.yaml has changed since"):
        cdi_cache.with_driver_files({}, [FIRST])
    machine.compile()
    assert "mounts" not in cdi_cache.with_driver_files({}, [FIRST])


def test_a_file_that_came_or_went_is_named(machine: Machine) -> None:
    other = machine.etc / "other.json"
    machine.compile()
    other.write_text("{}")
    with pytest.raises(StaleCdiError, match=r"/other.json has changed since"):
        cdi_cache.with_driver_files({}, [FIRST])
    machine.compile()
    other.unlink()
    with pytest.raises(StaleCdiError, match=r"/other.json has changed since"):
        cdi_cache.with_driver_files({}, [FIRST])


@pytest.mark.parametrize("content", ["", "{}", "[]", "[" * 100_000, '{"schema": "gpulatch-cdi/0"}'])
def test_compiled_ones_that_cannot_be_read_are_stale(machine: Machine, content: str) -> None:
    machine.compile()
    (machine.run / "cdi.json").write_text(content)
    with pytest.raises(StaleCdiError, match="cannot be used"):
        cdi_cache.with_driver_files({}, [FIRST])


def test_a_directory_that_others_can_change_is_refused(machine: Machine) -> None:
    machine.compile()
    machine.etc.chmod(0o777)
    with pytest.raises(UntrustedPathError):
        cdi_cache.with_driver_files({}, [FIRST])
    assert isinstance(machine.compile().exception, UntrustedPathError)


def test_compile_tells_of_a_bad_file_and_keeps_the_good(machine: Machine) -> None:
    (machine.etc / "bad.yaml").write_text("a: [")
    result = machine.compile()
    assert (result.exit_code, len(result.stderr.splitlines())) == (0, 1)
    assert "bad.yaml" in result.stderr
    cdi_cache.with_driver_files({}, [FIRST])


def test_compile_without_a_device_of_nvidias_is_refused_and_keeps_what_there_was(machine: Machine) -> None:
    machine.compile()
    before = (machine.run / "cdi.json").read_bytes()
    machine.write(nvidia_spec(kind="vendor.com/gpu"))
    assert isinstance(machine.compile().exception, CdiError)
    assert (machine.run / "cdi.json").read_bytes() == before


def test_compile_gives_up_on_a_time_in_the_future(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_file, "MAX_WAIT_S", 0.2)
    os.utime(machine.file, (time.time() + 1000,) * 2)
    error = machine.compile().exception
    assert isinstance(error, CdiError)
    assert "in the future" in str(error)


def test_what_is_kept_is_roots_alone(machine: Machine) -> None:
    machine.compile()
    found = machine.run / "cdi.json"
    assert (found.stat().st_mode & 0o777, machine.run.stat().st_mode & 0o777) == (0o600, 0o700)
    assert json.loads(found.read_text())["schema"] == "gpulatch-cdi/1"
