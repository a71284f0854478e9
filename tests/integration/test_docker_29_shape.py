"""What Docker from 29.2 on hands to the runtime for `--gpus 2`, in recorded shape: it has injected GPUs 0 and 1 itself.

Debian 12 has Docker 20.10, so the spec and Docker's record are made here as moby's daemon/devices_nvidia_linux.go and
nvidia's CDI spec make them; runc, the kernel's device filter and the rest are real.
"""

import json
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import ROOT, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

ID = "c0ffee" + "0" * 58
CONTROL = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}


class Docker29Bundle(Bundle):
    """A container with count 2 in Docker's record, and in its spec what Docker made of that."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "docker29")
        record = folder / "containers" / ID
        record.mkdir(parents=True)
        request = {"Driver": "", "Count": 2, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
        (record / "hostconfig.json").write_text(json.dumps({"DeviceRequests": [request]}))
        (record / "config.v2.json").write_text(json.dumps({"ID": ID, "Name": "/web"}))
        for name in ("hosts", "hostname", "resolv.conf"):
            (record / name).write_text("")
            self.mounting(f"/etc/{name}", str(record / name), "rbind", "rprivate")
        self.library = folder / "libcuda.so.550.54.15"
        self.library.write_text("driver file")
        self.mounting("/tmp/libcuda.so.550.54.15", str(self.library), "ro", "nosuid", "nodev", "rbind", "rprivate")
        self.env("NVIDIA_VISIBLE_DEVICES=void")
        self.inject(("nvidia1", 195, 1), ("nvidia2", 195, 2), ("nvidiactl", 195, 255), ("nvidia-uvm", 511, 0))

    def inject(self, *nodes: tuple[str, int, int]) -> None:
        """As a CDI spec for GPUs 0 and 1 does it: nodes, rules, and a hook that refreshes the loader's cache."""
        numbers = [{"type": "c", "major": major, "minor": minor} for _, major, minor in nodes]
        paths = [f"/dev/{name}" for name, _, _ in nodes]
        self.spec["linux"]["devices"] = [{"path": p, **n} for p, n in zip(paths, numbers, strict=True)]
        rules = [{"allow": True, **number, "access": "rwm"} for number in numbers]
        self.spec["linux"]["resources"]["devices"].extend(rules)
        hook = {"path": "/bin/true", "args": ["nvidia-cdi-hook", "update-ldcache"], "env": ["NVIDIA_CTK_DEBUG=false"]}
        self.spec["hooks"] = {"createContainer": [hook]}
        self.save()


def test_the_injected_nodes_are_replaced_by_free_gpus_and_the_rest_is_kept(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "first").asking_for("any:2").path, "first").returncode == 0
    bundle = Docker29Bundle(tmp_path).with_host_dev()
    done = host.start(bundle.path, ID)
    assert done.returncode == 0, done.stderr
    assert host.held() == {"first": [0, 1], ID: [2, 3]}
    claim = next(claim for claim in host.claims() if claim["id"] == ID)
    assert (claim["name"], claim["source"], claim["request"]) == ("web", "docker DeviceRequests", "any:2")
    answers = host.open_inside(ID, [f"/host-dev/nvidia{minor}" for minor in range(8)])
    assert {path for path, answer in answers.items() if answer == "ENXIO"} == {"/host-dev/nvidia3", "/host-dev/nvidia4"}
    listed = host.run(["runc", "--root", ROOT, "exec", ID, "ls", "/dev"]).stdout.split()
    assert {name for name in listed if name.startswith("nvidia")} == {"nvidia3", "nvidia4", *CONTROL}
    read = host.run(["runc", "--root", ROOT, "exec", ID, "cat", "/tmp/libcuda.so.550.54.15"])
    assert read.stdout == "driver file"
    written = bundle.on_disk()
    assert written["hooks"] == bundle.spec["hooks"]
    assert written["mounts"] == bundle.spec["mounts"]


def test_without_a_record_the_injected_gpus_themselves_are_booked(host: Host, tmp_path: Path) -> None:
    bundle = Docker29Bundle(tmp_path)
    (tmp_path / "containers" / ID / "hostconfig.json").unlink()
    assert host.start(bundle.path, ID).returncode == 0
    (claim,) = host.claims()
    assert [device["index"] for device in claim["devices"]] == [0, 1]
    assert (claim["policy"], claim["source"]) == ("shared", "device rules of the spec")


def test_an_injected_gpu_that_another_holds_exclusively_is_refused_by_name(host: Host, tmp_path: Path) -> None:
    assert host.start(Bundle(tmp_path, "first").asking_for("1+policy=exclusive").path, "first").returncode == 0
    bundle = Docker29Bundle(tmp_path)
    (tmp_path / "containers" / ID / "hostconfig.json").unlink()
    done = host.start(bundle.path, ID)
    assert done.returncode == 1
    assert "GPU 1, device rules of the spec" in done.stderr
    assert "held by container first (exclusive)" in done.stderr


class RecordedBundle(Bundle):
    """A container whose GPUs stand in Docker's record alone: the spec is as dockerd makes it before CDI."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, "recorded")
        self.record = folder / "containers" / ID / "hostconfig.json"
        self.record.parent.mkdir(parents=True)
        request = {"Driver": "", "Count": count, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}
        self.record.write_text(json.dumps({"DeviceRequests": [request]}))
        hosts = self.record.with_name("hosts")
        hosts.write_text("")
        self.mounting("/etc/hosts", str(hosts), "rbind")
        self.save()


class ZeroBundle(RecordedBundle):
    """`--gpus 0` on an image that says `all`, and NVIDIA's hook on dockerd's PATH: dockerd adds it all the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0)
        self.env("NVIDIA_VISIBLE_DEVICES=all")
        hook = folder / "nvidia-container-runtime-hook"
        hook.write_text(f"#!/bin/sh\ncat > {folder}/hook-state\n")
        hook.chmod(0o755)
        self.spec["hooks"] = {"prestart": [{"path": str(hook), "args": [hook.name, "prestart"], "env": ["A=1"]}]}
        self.save()


def test_no_gpu_asked_for_leaves_nvidias_hook_nothing_to_act_on(host: Host, tmp_path: Path) -> None:
    done = host.start(ZeroBundle(tmp_path).path, ID)
    assert done.returncode == 0, done.stderr
    assert "NVIDIA_VISIBLE_DEVICES=void" in host.environment(ID)
    assert "NVIDIA_VISIBLE_DEVICES=all" not in host.environment(ID)
    assert host.held() == {}


def test_observe_leaves_nvidias_hook_alone_where_no_gpu_is_asked_for(host: Host, tmp_path: Path) -> None:
    Path("/etc/gpulatch/config.toml").write_text('[runtime.gpulatch-runtime]\nmode = "observe"\n')
    bundle = ZeroBundle(tmp_path)
    before = bundle.config.read_bytes()
    done = host.start(bundle.path, ID)
    assert done.returncode == 0, done.stderr
    assert bundle.config.read_bytes() == before
    assert "NVIDIA_VISIBLE_DEVICES=all" in host.environment(ID)


def test_a_bundle_that_no_longer_asks_gets_its_original_back(host: Host, tmp_path: Path) -> None:
    """Else what gpulatch once wrote would open GPUs that are not booked any more."""
    bundle = RecordedBundle(tmp_path, 2)
    original = bundle.config.read_bytes()
    assert host.start(bundle.path, ID).returncode == 0
    assert host.held() == {ID: [0, 1]}
    host.runtime("delete", "--force", ID)
    bundle.record.write_text(json.dumps({"DeviceRequests": None}))
    done = host.start(bundle.path, ID)
    assert done.returncode == 0, done.stderr
    assert host.held() == {}
    assert bundle.config.read_bytes() == original
