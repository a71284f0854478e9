"""Many at once: no GPU twice, no claim lost, nobody hangs."""

import subprocess
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import ROOT, RUNTIME, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

CREATES, ROUNDS = 50, 5


def test_50_creates_at_once_for_8_gpus(host: Host, tmp_path: Path) -> None:
    for round_ in range(ROUNDS):
        bundles = [Bundle(tmp_path, f"b{round_}-{i}").asking_for("any:1") for i in range(CREATES)]
        processes = []
        for i, bundle in enumerate(bundles):
            command = [RUNTIME, "--root", ROOT, "create", "--bundle", str(bundle.path), f"c{round_}-{i}"]
            with open(bundle.path / "err", "w") as err:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err))
        codes = [process.wait(timeout=120) for process in processes]
        winners = [i for i, code in enumerate(codes) if code == 0]
        assert len(winners) == 8
        held = host.held()
        assert sorted(held) == sorted(f"c{round_}-{i}" for i in winners)
        assert sorted(index for indices in held.values() for index in indices) == list(range(8))
        for i, bundle in enumerate(bundles):
            text = (bundle.path / "err").read_text()
            if i in winners:
                assert text == ""
            else:
                assert codes[i] == 1
                assert text.count("\n") == 1
                assert "0 of 8 are free, held: GPU 0 by c" in text
        for i in winners:
            assert host.runtime("delete", "--force", f"c{round_}-{i}").returncode == 0
        assert host.held() == {}


def test_named_creates_at_once_for_one_exclusive_gpu(host: Host, tmp_path: Path) -> None:
    processes = []
    for i in range(10):
        bundle = Bundle(tmp_path, f"b{i}").asking_for("3+policy=exclusive")
        command = [RUNTIME, "--root", ROOT, "create", "--bundle", str(bundle.path), f"c{i}"]
        with open(bundle.path / "err", "w") as err:
            processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err))
    assert sorted(process.wait(timeout=120) for process in processes) == [0] + [1] * 9
    assert list(host.held().values()) == [[3]]
