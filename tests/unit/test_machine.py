"""Machine files: every real machine, the rules for what a file lacks, and every way to be wrong."""

import hashlib
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper.errors import MachineFileError
from runtime_wrapper.inventory import PCIE_SCORE, Gpu, Inventory, Link
from runtime_wrapper.probe import machine

DATA = Path(__file__).parent.parent / "data"
MACHINES = json.loads((DATA / "machines.json").read_text())
DEMO = Path(machine.__file__).parent.parent / "operate/machines/dgx_a100.json"


def parse(file: object) -> Inventory:
    return machine.parse(json.dumps(file).encode(), "/m/box.json")


def pair(a_to_b: str | None, b_to_a: str | None, **more: Any) -> Link:
    """The link of two GPUs whose two cells are given."""
    return parse({"model": "A100", "links": [["X", a_to_b], [b_to_a, "X"]], **more}).link(0, 1)


@pytest.mark.parametrize("file", MACHINES, ids=lambda file: str(file["name"]))
def test_every_real_machine_is_read_symmetric_and_with_distinct_names(file: dict[str, Any]) -> None:
    found = parse(file)

    assert len(found.gpus) == file["gpus"]
    for i, j in combinations(range(len(found.gpus)), 2):
        cells = (file["links"][i][j], file["links"][j][i])
        assert found.link(i, j) == found.link(j, i)
        assert found.link(i, j).nvlinks == min(int(c[2:]) if c and c.startswith("NV") else 0 for c in cells)
        assert found.link(i, j).pcie in PCIE_SCORE
    for names in zip(*[(gpu.uuid, gpu.pci, gpu.minor) for gpu in found.gpus], strict=True):
        assert len(set(names)) == len(names)
    assert [nic.name for nic in found.nics] == list(file["nics"].get("gpu_to_nic", {}))
    assert Inventory.from_json(json.loads(json.dumps(found.to_json())), "copy") == found


def test_the_demo_machine_is_the_real_dgx_a100() -> None:
    real = parse(next(file for file in MACHINES if file["name"] == "dgx_a100_x8_mlx12"))

    demo = machine.read(str(DEMO))

    assert (demo.links, demo.nics, [gpu.numa for gpu in demo.gpus]) == (real.links, real.nics, list("33117755"))


def test_what_a_file_lacks_follows_the_rule() -> None:
    found = parse({"name": "box", "model": "2x Tesla T4", "links": [["X", "PHB"], ["PHB", "X"]]})

    digest = hashlib.sha256(b"box/1").hexdigest()
    uuid = f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
    assert found.gpus[1] == Gpu(1, uuid, "0000:07:00.0", 0, "Tesla T4", None, None, False)
    assert [gpu.minor for gpu in found.gpus] == [1, 0]
    assert (found.index_by, found.driver_version, found.bandwidth_assumed) == ("machine", None, False)


def test_a_file_without_a_name_is_called_by_its_file_name() -> None:
    assert parse({"links": [["X"]]}).gpus == parse({"links": [["X"]], "name": "box"}).gpus


def test_the_minor_of_a_lone_gpu_is_not_its_index() -> None:
    assert parse({"links": [["X"]]}).gpus[0].minor == 1


def test_64_gpus_fit_and_keep_their_order_on_the_bus() -> None:
    gpus = parse({"links": [["X" if i == j else "SYS" for j in range(64)] for i in range(64)]}).gpus

    assert [gpu.pci for gpu in gpus] == sorted({gpu.pci for gpu in gpus})
    assert gpus[63].pci == "0000:ff:00.0"


@pytest.mark.parametrize(
    ("numa", "pcie"),
    [
        (["0", "0"], "NODE"),
        (["0-3", "0-3"], "NODE"),
        (["0", "1"], "SYS"),
        ([None, None], "SYS"),
        (["", ""], "SYS"),
        (["N/A", "N/A"], "SYS"),
        (["-1", "-1"], "SYS"),
    ],
)
def test_the_class_behind_a_bare_nvlink_is_node_only_within_one_known_numa_node(numa: list[str], pcie: str) -> None:
    assert pair("NV12", "NV12", numa=numa) == Link(pcie, 12, 300000)


@pytest.mark.parametrize("unknown", [None, "", "N/A", "-1"])
def test_every_form_of_an_unknown_numa_node_is_none(unknown: str | None) -> None:
    assert parse({"links": [["X"]], "numa": [unknown]}).gpus[0].numa is None


@pytest.mark.parametrize("text", ["0", "0-3", "0,8,252-255"])
def test_a_numa_affinity_is_kept_as_it_is_printed(text: str) -> None:
    assert parse({"links": [["X"]], "numa": [text]}).gpus[0].numa == text


@pytest.mark.parametrize(
    ("a_to_b", "b_to_a", "link"),
    [
        ("NV2+PIX", "NV2+PIX", Link("PIX", 2, 50000)),
        ("SOC", "SOC", Link("SYS")),
        ("PXB", "PXB", Link("PXB")),
        (None, None, Link("SYS")),
        (None, "NV4", Link("SYS")),
        ("NV12", "NV4", Link("SYS", 4, 100000)),
        ("NV12", "PIX", Link("PIX")),
        ("PIX", "PHB", Link("PHB")),
        ("NV4+PIX", "NV4+SYS", Link("SYS", 4, 100000)),
    ],
)
def test_of_two_directions_the_worse_one_counts(a_to_b: str | None, b_to_a: str | None, link: Link) -> None:
    assert pair(a_to_b, b_to_a) == pair(b_to_a, a_to_b) == link


def test_links_that_someone_inferred_are_not_read() -> None:
    inferred = [["X", "NV12"], ["NV12", "X"]]

    assert pair(None, None, links_inferred=inferred) == Link("SYS")


@pytest.mark.parametrize(
    ("model", "mb_per_s", "assumed"),
    [
        ("2x Tesla P100-SXM2-16GB", 20000, False),
        ("Tesla V100-SXM2-32GB", 25781, False),
        ("Quadro RTX 8000", 25781, False),
        ("TITAN RTX", 25781, False),
        ("NVIDIA GeForce RTX 2080 Ti", 25781, False),
        ("NVIDIA A100-SXM4-40GB", 25000, False),
        ("NVIDIA A30", 25000, False),
        ("NVIDIA RTX A6000", 14063, False),
        ("NVIDIA A40", 14063, False),
        ("NVIDIA GeForce RTX 3090", 14063, False),
        ("NVIDIA H100 80GB HBM3", 26562, False),
        ("NVIDIA H20", 26562, False),
        ("NVIDIA B200", 50000, False),
        ("NVIDIA GB200", 50000, False),
        ("NVIDIA A4000", 25000, True),
        ("2 GPUs (P100 or V100)", 25000, True),
    ],
)
def test_the_bandwidth_of_a_link_comes_from_the_model_or_is_marked_as_assumed(
    model: str, mb_per_s: int, assumed: bool
) -> None:
    found = parse({"model": model, "links": [["X", "NV1"], ["NV1", "X"]]})

    assert (found.link(0, 1).mb_per_s, found.bandwidth_assumed) == (mb_per_s, assumed)


def test_gpu_facts_override_the_rule_for_their_gpu_only() -> None:
    uuid = "GPU-edfee158-11c1-52b8-0517-92f30e7fac88"
    facts = {"uuid": uuid, "pci": "00000000:AF:00.0", "minor": 7, "model": "A10G", "numa": "1", "memory_mib": 23028}
    links = {"model": "A100", "links": [["X", "SYS"], ["SYS", "X"]]}

    found = parse({**links, "gpu_facts": [None, {**facts, "mig": True}]})

    assert found.gpus[0] == parse(links).gpus[0]
    assert found.gpus[1] == Gpu(1, uuid, "0000:af:00.0", 7, "A10G", "1", 23028, True)


def test_a_gpu_whose_uuid_is_not_known_is_called_by_its_address() -> None:
    gpu = parse({"links": [["X"]], "gpu_facts": [{"uuid": None}]}).gpus[0]

    assert gpu.key == gpu.pci == "0000:03:00.0"


def test_a_nic_keeps_its_classes_under_their_present_names() -> None:
    found = parse({"links": [["X"] + ["SYS"] * 2] * 1 + [["SYS", "X", "SYS"], ["SYS", "SYS", "X"]],
                   "nics": {"gpu_to_nic": {"mlx5_0": ["PIX", None, "SOC"]}}})  # fmt: skip

    assert [(nic.name, nic.to_gpus) for nic in found.nics] == [("mlx5_0", ("PIX", None, "SYS"))]


TWO: dict[str, Any] = {"links": [["X", "SYS"], ["SYS", "X"]]}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ([], "one JSON object"),
        ({}, '"links"'),
        ({"links": "X"}, "a list"),
        ({"links": []}, "0 rows"),
        ({"links": [["X", "SYS"]]}, "not square: row 0 is 2 cells"),
        ({"links": [["X", "SYS"], "X"]}, "not square: row 1"),
        ({"links": [["X", "NVX"], ["SYS", "X"]]}, 'row 0 column 1 is "NVX"'),
        ({"links": [["X", "SYS"], ["NV0", "X"]]}, 'row 1 column 0 is "NV0"'),
        ({"links": [["X", "X"], ["SYS", "X"]]}, 'row 0 column 1 is "X"'),
        ({"links": [["X", "NV2PIX"], ["SYS", "X"]]}, 'row 0 column 1 is "NV2PIX"'),
        ({"links": [["X", 3], ["SYS", "X"]]}, 'row 0 column 1 is "3"'),
        ({"links": [["SYS", "SYS"], ["SYS", "X"]]}, "row 0 column 0"),
        ({"links": [["X"] * 65] * 65}, "65 rows"),
        ({**TWO, "gpus": 3}, '"gpus" is 3 but "links" has 2 rows'),
        ({**TWO, "gpus": "2"}, "a number"),
        ({**TWO, "gpus": True}, "a number"),
        ({**TWO, "name": 5}, "a text"),
        ({**TWO, "model": "a\u0007b"}, '"model" is not a line of text'),
        ({**TWO, "model": "\ud800"}, '"model" is not a line of text'),
        ({**TWO, "numa": ["0"]}, '"numa" has 1 entries'),
        ({**TWO, "numa": [0, 0]}, '"numa" of GPU 0 is "0"'),
        ({**TWO, "nics": []}, "an object"),
        ({**TWO, "nics": {"gpu_to_nic": {"n": ["PIX"]}}}, '"n" has 1 entries'),
        ({**TWO, "nics": {"gpu_to_nic": {"n": ["PIX", "NEAR"]}}}, '"n" is "NEAR" for GPU 1'),
        ({**TWO, "gpu_facts": [None]}, '"gpu_facts" has 1 entries'),
        ({**TWO, "gpu_facts": [None, 5]}, '"gpu_facts" of GPU 1 is "5"'),
        ({**TWO, "gpu_facts": [{"color": 1}, None]}, '"color"'),
        ({**TWO, "gpu_facts": [{"uuid": "0"}, None]}, 'uuid is "0"'),
        ({**TWO, "gpu_facts": [{"pci": "01:00.0"}, None]}, 'pci is "01:00.0"'),
        ({**TWO, "gpu_facts": [{"minor": 255}, None]}, 'minor is "255"'),
        ({**TWO, "gpu_facts": [{"minor": True}, None]}, 'minor is "True"'),
        ({**TWO, "gpu_facts": [{"model": ""}, None]}, "model is"),
        ({**TWO, "gpu_facts": [{"numa": 0}, None]}, "numa is"),
        ({**TWO, "gpu_facts": [{"memory_mib": -1}, None]}, "memory_mib is"),
        ({**TWO, "gpu_facts": [{"mig": 1}, None]}, "mig is"),
        ({**TWO, "gpu_facts": [{"minor": 0}, None]}, "GPUs 0 and 1 have the same minor 0"),
        ({**TWO, "gpu_facts": [{"pci": "0000:07:00.0"}, None]}, "same pci 0000:07:00.0"),
        ({**TWO, "gpu_facts": [{"uuid": "GPU-" + "-".join("0" * n for n in (8, 4, 4, 4, 12))}] * 2}, "same uuid"),
    ],
)
def test_a_wrong_machine_file_is_refused_with_file_fault_and_expectation(file: object, said: str) -> None:
    with pytest.raises(MachineFileError) as refusal:
        parse(file)

    assert said in str(refusal.value)
    assert "/m/box.json" in str(refusal.value)
    assert "expected" in str(refusal.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b'{"gpus": ' + b"1" * 5000 + b"}"])
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(MachineFileError, match="not JSON"):
        machine.parse(data, "box.json")


def test_a_file_over_16_mib_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    path.write_bytes(json.dumps(TWO).encode() + b" " * (16 << 20))

    with pytest.raises(MachineFileError, match="16 MiB"):
        machine.read(str(path))


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineFileError, match="ENOENT"):
        machine.read(str(tmp_path / "none.json"))
    with pytest.raises(MachineFileError, match="regular file"):
        machine.read(str(tmp_path))
