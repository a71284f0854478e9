import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import docker

pytestmark = pytest.mark.needs("root")

OWN, OTHER = "a" * 64, "b" * 64
GPU = {"Driver": "", "Count": 0, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}


class Engine:
    """Docker's folder of containers, with one container of ours."""

    def __init__(self, top: Path) -> None:
        self.folder = top / "containers"
        for container in (OWN, OTHER):
            (self.folder / container).mkdir(parents=True)

    def record(self, *requests: Any, container: str = OWN) -> None:
        (self.folder / container / "hostconfig.json").write_text(json.dumps({"DeviceRequests": list(requests) or None}))

    def spec(self, owner: str = OWN, names: tuple[str, ...] = ("resolv.conf", "hostname", "hosts")) -> dict[str, Any]:
        mounts = [{"destination": f"/etc/{name}", "source": f"{self.folder}/{owner}/{name}"} for name in names]
        return {"mounts": [{"destination": "/proc", "source": "proc"}, *mounts]}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([{**GPU, "Count": 2}], "any:2"),
        ([{**GPU, "Count": -1}], "all"),
        ([{**GPU, "Count": -2}], "all"),
        ([{**GPU, "Count": 1, "Capabilities": [["utility"]]}], "any:1"),
        ([{**GPU, "Count": 1, "Capabilities": [["compute", "video"]]}], "any:1"),
        ([{**GPU, "Count": 1, "Capabilities": [["tpu"], ["gpu"]]}], "any:1"),
        ([{**GPU, "Count": 1, "Capabilities": [[]]}], None),
        ([{**GPU, "Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=1", "intel.com/net=0"]}], "1"),
        ([{**GPU, "DeviceIDs": ["1"]}], "1"),
        ([{**GPU, "DeviceIDs": ["0", "3"]}], "0,3"),
        ([{**GPU, "DeviceIDs": ["GPU-5c89852c+policy=exclusive"]}], "GPU-5c89852c+policy=exclusive"),
        ([{**GPU, "Driver": "nvidia", "Count": 1, "Options": None}], "any:1"),
        ([{**GPU, "Count": 1}, {**GPU, "Count": 1}], "any:2"),
        ([{**GPU, "Count": 1}, {**GPU, "DeviceIDs": ["3"]}], "3,any:1"),
        ([GPU], "void"),
        ([{**GPU, "Driver": "cdi", "Capabilities": None, "DeviceIDs": ["nvidia.com/gpu=0"]}], "0"),
        ([{**GPU, "Driver": "cdi", "DeviceIDs": ["vendor.com/nic=0"]}], None),
        ([{**GPU, "Driver": "cdi", "DeviceIDs": ["gpulatch.io/gpu=any-2", "/dev/fuse"]}], "any:2"),
        ([{**GPU, "Driver": "nvidia.runtime-hook", "Count": 1}], "any:1"),
        ([{**GPU, "DeviceIDs": ["nvidia.com/gpu=1", "vendor.com/nic=0"]}], "nvidia.com/gpu=1"),
        ([{**GPU, "DeviceIDs": ["vendor.com/nic=0"]}], None),
        ([{**GPU, "Driver": "amd", "Count": 1}], None),
        ([{**GPU, "Capabilities": [["tpu"]], "Count": 1}], None),
        ([], None),
        ([7, None, {"Count": "2", "Capabilities": [["gpu"]]}], "void"),
    ],
)
def test_the_recorded_request_is_read(engine: Engine, requests: list[Any], text: str | None) -> None:
    engine.record(*requests)
    assert docker.device_requests(engine.spec(), OWN) == text


def test_with_the_network_of_another_container_our_own_record_counts(engine: Engine) -> None:
    engine.record({**GPU, "Count": 2})
    engine.record({**GPU, "Count": 7}, container=OTHER)
    assert docker.device_requests(engine.spec(OTHER), OWN) == "any:2"


def test_one_of_the_three_mounts_is_enough(engine: Engine) -> None:
    engine.record({**GPU, "Count": 2})
    for name in ("resolv.conf", "hostname", "hosts"):
        assert docker.device_requests(engine.spec(names=(name,)), OWN) == "any:2"
    hidden = engine.spec(names=("hosts",))
    hidden["mounts"].insert(0, {"destination": "/etc/hostname", "source": "/srv/hostname"})
    assert docker.device_requests(hidden, OWN) == "any:2"


@pytest.mark.parametrize("what", ["file owner", "folder owner", "folder mode", "link", "broken", "no object"])
def test_what_root_does_not_own_or_is_no_record_is_not_believed(engine: Engine, what: str) -> None:
    engine.record({**GPU, "Count": 2})
    folder = engine.folder / OWN
    record = folder / "hostconfig.json"
    if what == "file owner":
        os.chown(record, 1000, 1000)
    elif what == "folder owner":
        os.chown(folder, 1000, 1000)
    elif what == "folder mode":
        folder.chmod(0o777)
    elif what == "link":
        record.rename(folder / "real")
        record.symlink_to("real")
    else:
        record.write_text("{" if what == "broken" else "[]")
    assert docker.device_requests(engine.spec(), OWN) is None


@pytest.mark.parametrize("container", ["c1", "A" * 64, "a" * 63, "../" + "a" * 61])
def test_an_id_that_docker_did_not_make_is_not_looked_up(engine: Engine, container: str) -> None:
    engine.record({**GPU, "Count": 2})
    assert docker.device_requests(engine.spec(), container) is None


@pytest.mark.parametrize(
    "mounts", [None, 7, [None, 3], [{"destination": "/etc/hosts"}], [{"destination": "/etc/hosts", "source": "hosts"}]]
)
def test_mounts_of_other_engines_lead_nowhere(mounts: Any) -> None:
    assert docker.device_requests({"mounts": mounts}, OWN) is None


def test_the_root_file_system_tells_the_folder_and_no_mount_overrides_it(engine: Engine, tmp_path: Path) -> None:
    engine.record({**GPU, "Count": 2})
    forged = Engine(tmp_path / "forged")
    forged.record({**GPU, "Count": 7})
    data = forged.spec()
    data["root"] = {"path": f"{tmp_path}/overlay2/{'c' * 64}/merged"}
    assert docker.device_requests(data, OWN) == "any:2"
    data["mounts"] = []
    assert docker.device_requests(data, OWN) == "any:2"
    (engine.folder / OWN / "hostconfig.json").unlink()
    assert docker.device_requests({**forged.spec(), "root": data["root"]}, OWN) is None


def test_the_name_is_what_docker_ps_shows(engine: Engine) -> None:
    assert docker.container_name(engine.spec(), OWN) is None
    (engine.folder / OWN / "config.v2.json").write_text(json.dumps({"Name": "/web"}))
    assert docker.container_name(engine.spec(), OWN) == "web"
