"""Finds the best set of GPUs by exact search.

Pure and hot: it runs while the ledger is locked. The set with the smallest tuple `Score.key()` wins. The 12,870 sets of
8 out of 16 GPUs shrink to a few hundred because GPUs that can be exchanged without changing any link are tried in index
order only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from runtime_wrapper.inventory import PCIE_SCORE, Inventory

# One integer holds both sums of a set of links, NVLink MB/s above PCIe score: 2**20 is more than any sum of PCIe scores
# (a pair has at most 50), so comparing integers compares NVLink first and PCIe second.
_NVLINK_UNIT = 1 << 20


# 16 GPUs have no more subsets than this, so up to there the search is exact in any case. Beyond, a machine with little
# symmetry could keep the ledger locked for minutes: the search then ends with the best set found so far.
MAX_VISITED = 1 << 16


@dataclass(frozen=True, slots=True)
class Score:
    """What a set is judged by, in this order; `key()` is smaller for a better set."""

    nvlink_mb_per_s: int
    pcie: int
    numa_nodes: int
    cut_nvlink_mb_per_s: int
    cut_pcie: int
    indices: tuple[int, ...]

    def key(self) -> tuple[int, int, int, int, int, tuple[int, ...]]:
        """The tuple that the best set has smallest."""
        cut = self.cut_nvlink_mb_per_s, self.cut_pcie
        return -self.nvlink_mb_per_s, -self.pcie, self.numa_nodes, *cut, self.indices


def best_set(
    free: Sequence[int],
    required: Sequence[int],
    size: int,
    candidates: Sequence[int],
    inventory: Inventory,
    link: str | None,
) -> Score | None:
    """The best set of `size` GPUs out of `candidates` that holds `required`, or None when no set meets `link`.

    `free` are the GPUs that damage is counted against. Exact, equal to trying every set, for up to 16 GPUs, and for
    more until `MAX_VISITED` partial sets have been tried.
    """
    ids = sorted({*candidates, *required})
    weight, allowed = _weights(ids, inventory, link)
    around = {*free, *required}
    degree = {a: sum(_weight(inventory, a, b) for b in around if b != a) for a in ids}
    search = _Search(ids, size, required, weight, allowed, degree, inventory)
    best = search.run()
    return score(best, free, inventory) if best else None


class _Search:
    """Depth-first search over sets in index order, with two prunings that keep it exact.

    Exchangeable GPUs (same NUMA node, same links to all others) are taken lowest index first. A branch that cannot
    reach the best sum found so far even with the heaviest link for every missing pair is left.
    """

    def __init__(
        self,
        ids: Sequence[int],
        size: int,
        required: Sequence[int],
        weight: Mapping[int, Mapping[int, int]],
        allowed: Mapping[int, frozenset[int]],
        degree: Mapping[int, int],
        inventory: Inventory,
    ) -> None:
        self.open = [i for i in ids if i not in required]
        self.size, self.required = size, required
        self.weight, self.allowed, self.degree, self.inventory = weight, allowed, degree, inventory
        self.twin = _lower_twins(self.open, ids, weight, allowed, degree, inventory)
        self.heaviest = max((w for row in weight.values() for w in row.values()), default=0)
        self.visited = 0
        self.best: list[int] = []
        self.best_inside = -1
        self.best_rest: tuple[int, int] = (0, 0)

    def run(self) -> list[int]:
        """The best set, empty when there is none."""
        self._extend(0, list(self.required), sum(self.weight[a][b] for a, b in combinations(self.required, 2)))
        return self.best

    def _extend(self, start: int, chosen: list[int], inside: int) -> None:
        """Try every continuation of `chosen`, whose links sum to `inside`, with GPUs from position `start` on."""
        missing = self.size - len(chosen)
        if missing == 0:
            self._compare(chosen, inside)
            return
        self.visited += 1
        if self.visited > MAX_VISITED and self.best:
            return
        pairs = missing * len(chosen) + missing * (missing - 1) // 2
        if inside + pairs * self.heaviest < self.best_inside:
            return
        for position in range(start, len(self.open) - missing + 1):
            gpu = self.open[position]
            if self._fits(gpu, chosen):
                row = self.weight[gpu]
                self._extend(position + 1, [*chosen, gpu], inside + sum(row[other] for other in chosen))

    def _fits(self, gpu: int, chosen: list[int]) -> bool:
        twin = self.twin.get(gpu)
        return (twin is None or twin in chosen) and self.allowed[gpu].issuperset(chosen)

    def _compare(self, chosen: list[int], inside: int) -> None:
        if inside < self.best_inside:
            return
        numa = len({self.inventory.gpus[i].numa for i in chosen})
        rest = (numa, sum(self.degree[i] for i in chosen) - 2 * inside)
        if inside > self.best_inside or rest < self.best_rest:
            self.best, self.best_inside, self.best_rest = chosen, inside, rest


def _lower_twins(
    open_ids: Sequence[int],
    ids: Sequence[int],
    weight: Mapping[int, Mapping[int, int]],
    allowed: Mapping[int, frozenset[int]],
    degree: Mapping[int, int],
    inventory: Inventory,
) -> dict[int, int]:
    """For each GPU that may be chosen the next lower one that it can be exchanged with."""
    twins: dict[int, int] = {}
    for low, high in combinations(open_ids, 2):
        if (
            inventory.gpus[low].numa == inventory.gpus[high].numa
            and degree[low] == degree[high]
            and all(weight[low][i] == weight[high][i] for i in ids if i not in (low, high))
            and allowed[low] - {high} == allowed[high] - {low}
        ):
            twins[high] = low  # combinations() come in order: the last one found is the nearest below
    return twins


def _weights(
    ids: Sequence[int], inventory: Inventory, link: str | None
) -> tuple[dict[int, dict[int, int]], dict[int, frozenset[int]]]:
    weight: dict[int, dict[int, int]] = {a: {b: _weight(inventory, a, b) for b in ids if b != a} for a in ids}
    allowed = {a: frozenset(b for b in ids if b != a and inventory.link(a, b).meets(link)) for a in ids}
    return weight, allowed


def _weight(inventory: Inventory, a: int, b: int) -> int:
    link = inventory.link(a, b)
    return link.mb_per_s * _NVLINK_UNIT + PCIE_SCORE[link.pcie]


def score(indices: Sequence[int], free: Sequence[int], inventory: Inventory) -> Score:
    """The score of one set of GPUs among the `free` ones (the set included); the search agrees with it."""
    inside = inventory.pairs(indices)
    cut = [inventory.link(a, b) for a in indices for b in free if b not in indices]
    return Score(
        sum(link.mb_per_s for link in inside),
        sum(PCIE_SCORE[link.pcie] for link in inside),
        len({inventory.gpus[i].numa for i in indices}),
        sum(link.mb_per_s for link in cut),
        sum(PCIE_SCORE[link.pcie] for link in cut),
        tuple(sorted(indices)),
    )


def explain(best: Score, inventory: Inventory) -> list[str]:
    """The winning tuple in words."""
    if len(best.indices) == 1:
        head = [f"GPU {best.indices[0]}: a single GPU has no links of its own to weigh"]
    else:
        kinds = sorted({link.kind for link in inventory.pairs(best.indices)})
        gb_per_s = f"{best.nvlink_mb_per_s / 1000:g} GB/s"
        assumed = ", link speed assumed" if inventory.bandwidth_assumed and best.nvlink_mb_per_s else ""
        head = [
            f"GPUs {index_list(best.indices)}: most NVLink bandwidth between them, {gb_per_s}{assumed}",
            f"then nearest by PCIe: score {best.pcie} ({', '.join(kinds)})",
        ]
    return [
        *head,
        f"then fewest NUMA nodes: {best.numa_nodes}",
        f"then least cut off from the free rest: {best.cut_nvlink_mb_per_s / 1000:g} GB/s, PCIe score {best.cut_pcie}",
        "then lowest indices",
    ]


def index_list(indices: Sequence[int]) -> str:
    """GPU indices as messages and reasons show them."""
    return ",".join(map(str, indices))
