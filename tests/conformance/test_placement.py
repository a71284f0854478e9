"""Placement against two independent sources: every set tried by brute force, and what go-gpuallocator would take."""

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from drivers.samples import inventory

from runtime_wrapper.inventory import Gpu, Inventory, Link
from runtime_wrapper.search import best_set

TESTS = Path(__file__).parent.parent
MACHINES = json.loads((TESTS / "data/machines.json").read_text())
ALLOCATOR = json.loads((TESTS / "data/gpuallocator.json").read_text())
PCIE = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
MASKS = 200


class BruteForce:
    """Tries every set. Sums of all subsets are tabulated once per machine; the cut is what a split of the free GPUs
    loses, sum(free) - sum(set) - sum(rest): another way to the number than the search takes."""

    def __init__(self, machine: Inventory) -> None:
        self.machine = machine
        self.sums: dict[int, tuple[int, int]] = {0: (0, 0)}

    def sum(self, mask: int) -> tuple[int, int]:
        if mask not in self.sums:
            low = (mask & -mask).bit_length() - 1
            rest = mask & (mask - 1)
            nvlink, pcie = self.sum(rest)
            links = [self.machine.link(low, j) for j in range(low + 1, mask.bit_length()) if mask >> j & 1]
            self.sums[mask] = (
                nvlink + sum(link.mb_per_s for link in links),
                pcie + sum(PCIE[link.pcie] for link in links),
            )
        return self.sums[mask]

    def best(self, free: list[int], size: int) -> tuple[int, ...]:
        return min(self.key(set_, free) for set_ in combinations(free, size))[-1]

    def key(self, set_: tuple[int, ...], free: list[int]) -> tuple[Any, ...]:
        chosen, everything = sum(1 << i for i in set_), sum(1 << i for i in free)
        inside, rest, total = self.sum(chosen), self.sum(everything & ~chosen), self.sum(everything)
        numa = len({self.machine.gpus[i].numa for i in set_})
        cut = (total[0] - inside[0] - rest[0], total[1] - inside[1] - rest[1])
        return (-inside[0], -inside[1], numa, cut, set_)


def masks(count: int, size: int, rng: random.Random) -> list[list[int]]:
    """Sets of free GPUs that hold at least `size`."""
    return [sorted(rng.sample(range(count), rng.randint(size, count))) for _ in range(MASKS)]


@pytest.mark.parametrize("data", MACHINES, ids=lambda data: data["name"])
def test_placement_equals_brute_force(data: dict[str, Any]) -> None:
    machine = inventory(data)
    count = len(machine.gpus)
    brute, rng = BruteForce(machine), random.Random(data["name"])
    for size in range(1, count + 1):
        for free in masks(count, size, rng):
            found = best_set(free, (), size, free, machine, None)
            assert found is not None
            assert found.indices == brute.best(free, size), f"{size} of {free}"


def test_placement_equals_brute_force_on_random_machines() -> None:
    rng = random.Random(7)
    for _ in range(60):
        machine = random_machine(rng, rng.randint(2, 9))
        brute, count = BruteForce(machine), len(machine.gpus)
        for size in range(1, count + 1):
            free = sorted(rng.sample(range(count), rng.randint(size, count)))
            found = best_set(free, (), size, free, machine, None)
            assert found is not None
            assert found.indices == brute.best(free, size)


def test_required_gpus_are_kept_and_the_rest_is_best() -> None:
    rng = random.Random(11)
    for _ in range(200):
        machine = random_machine(rng, 7)
        brute = BruteForce(machine)
        everything = list(range(7))
        required = sorted(rng.sample(everything, rng.randint(1, 3)))
        free = sorted(set(rng.sample(everything, 5)) | set(required))
        size = rng.randint(len(required), len(free))
        found = best_set(free, required, size, [i for i in free if i not in required], machine, None)
        assert found is not None
        holding = [set_ for set_ in combinations(free, size) if set(required) <= set(set_)]
        assert found.indices == min(holding, key=lambda set_: brute.key(set_, free))


def test_a_link_constraint_leaves_the_best_of_the_sets_that_meet_it() -> None:
    rng = random.Random(13)
    for _ in range(200):
        machine = random_machine(rng, 7)
        brute, free = BruteForce(machine), list(range(7))
        found = best_set(free, (), 3, free, machine, "pxb")
        meeting = [
            set_
            for set_ in combinations(free, 3)
            if all(link.nvlinks or PCIE[link.pcie] >= PCIE["PXB"] for link in machine.pairs(set_))
        ]
        expected = min(meeting, key=lambda set_: brute.key(set_, free)) if meeting else None
        assert (found.indices if found else None) == expected


def random_machine(rng: random.Random, count: int) -> Inventory:
    """Few distinct links and NUMA nodes, so that ties are common."""
    links: list[list[Link | None]] = [[None] * count for _ in range(count)]
    kinds = [Link(rng.choice(list(PCIE)), n, n * 25000) for n in (0, 0, rng.randint(1, 4))]
    for i, j in combinations(range(count), 2):
        links[i][j] = links[j][i] = rng.choice(kinds)
    gpus = tuple(Gpu(i, None, f"0000:{i:02x}:00.0", i, "sample", rng.choice(["0", "1", None])) for i in range(count))
    return Inventory(gpus, tuple(map(tuple, links)))


def allocator_machine(topology: str) -> Inventory:
    """go-gpuallocator's machine from its pair scores: 100 for each NVLink, the PCIe class in tens below."""
    scores = ALLOCATOR["pair_scores"][topology]
    classes = {score: name for name, score in PCIE.items()}
    links = tuple(
        tuple(
            None if i == j else Link(classes.get(score % 100, "SYS"), score // 100, score // 100 * 25000)
            for j, score in enumerate(row)
        )
        for i, row in enumerate(scores)
    )
    numa = [str(i * 2 // len(scores)) for i in range(len(scores))]
    gpus = tuple(Gpu(i, None, f"0000:{i:02x}:00.0", i, "sample", numa[i]) for i in range(len(scores)))
    return Inventory(gpus, links)


def allocator_score(topology: str, set_: Any) -> int:
    scores = ALLOCATOR["pair_scores"][topology]
    return sum(scores[a][b] for a, b in combinations(set_, 2))


def ours(topology: str, free: list[int], size: int) -> list[int]:
    found = best_set(free, (), size, free, allocator_machine(topology), None)
    return list(found.indices) if found else []


@pytest.mark.parametrize("case", ALLOCATOR["I"], ids=lambda case: case["id"])
def test_never_below_the_best_set_of_go_gpuallocator(case: dict[str, Any]) -> None:
    chosen = ours(case["topology"], case["available"], case["size"])
    assert len(chosen) == case["size"]
    assert allocator_score(case["topology"], chosen) >= case["max_set_score"]


def best_effort_steps() -> list[tuple[str, str, list[int], int, list[int]]]:
    """(row, topology, free GPUs, size, their choice): each step from the row's own free set."""
    steps = []
    for case in ALLOCATOR["J"]:
        if case["policy"] != "besteffort" or case.get("required"):
            continue
        free = case.get("available") or list(range(len(ALLOCATOR["pair_scores"][case["topology"]])))
        for step in case.get("sequence") or [case]:
            steps.append((case["id"], case["topology"], list(free), step["size"], step["expect"]))
            free = [i for i in free if i not in step["expect"]]
    return steps


@pytest.mark.parametrize(("row", "topology", "free", "size", "theirs"), best_effort_steps())
def test_best_effort_rows_of_go_gpuallocator(
    row: str, topology: str, free: list[int], size: int, theirs: list[int]
) -> None:
    chosen = ours(topology, free, size) if size <= len(free) else []
    assert len(chosen) == len(theirs), row
    assert allocator_score(topology, chosen) >= allocator_score(topology, theirs), row


def test_the_report_beside_go_gpuallocator_is_true() -> None:
    report = (TESTS.parent / "docs/placement.md").read_text()
    for row, topology, free, size, theirs in best_effort_steps():
        chosen = ours(topology, free, size) if size <= len(free) else []
        assert f"| {row} | {topology} | {free} | {size} | {theirs} | {chosen} |" in report
