import time
from dataclasses import replace

import pytest
from drivers.samples import inventory, nvlink_host

from runtime_wrapper.errors import (
    GpulatchError,
    HeldDeviceError,
    MigDeviceError,
    NotEnoughGpusError,
    UnknownDeviceError,
)
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.placement import Holder, Offer, Rules, choose
from runtime_wrapper.request import parse

HOST = nvlink_host()
EXCLUSIVE = Holder("trainer", "exclusive")
SHARED = Holder("notebook", "shared")
MONITOR = Holder("dcgm", "monitor")


def offer(text: str, holders: dict[int, list[Holder]] | None = None, host: Inventory = HOST) -> Offer:
    wanted = parse(text, "env GPULATCH_GPUS")
    assert wanted is not None
    return choose(wanted, host, holders or {})


def ruled(text: str, holders: dict[int, list[Holder]], rules: Rules) -> tuple[list[int], str]:
    wanted = parse(text, "env GPULATCH_GPUS")
    assert wanted is not None
    found = choose(wanted, HOST, holders, rules)
    return [gpu.index for gpu in found.gpus], found.policy


def again(text: str, preferred: list[int], holders: dict[int, list[Holder]] | None = None) -> list[int]:
    wanted = parse(text, "env GPULATCH_GPUS")
    assert wanted is not None
    return [gpu.index for gpu in choose(wanted, HOST, holders or {}, preferred=preferred).gpus]


def indices(text: str, holders: dict[int, list[Holder]] | None = None, host: Inventory = HOST) -> list[int]:
    return [gpu.index for gpu in offer(text, holders, host).gpus]


def test_named_gpus_come_in_the_order_asked_for() -> None:
    assert indices("5,1,5") == [5, 1]


def test_a_gpu_is_found_by_uuid_prefix_and_pci_address() -> None:
    gpu = HOST.gpus[6]
    assert gpu.uuid
    assert indices(gpu.uuid) == [6]
    assert indices(gpu.uuid.lower().replace("-", "").replace("gpu", "gpu-")[:14]) == [6]
    assert indices(gpu.pci) == [6]


def test_an_ambiguous_prefix_is_refused_with_the_gpus_it_fits() -> None:
    twins = tuple(replace(gpu, uuid=f"GPU-12345678-0000-0000-0000-00000000000{gpu.index}") for gpu in HOST.gpus)
    with pytest.raises(UnknownDeviceError, match="fits GPUs 0,1,2,3,4,5,6,7"):
        offer("GPU-12345678", host=replace(HOST, gpus=twins))


@pytest.mark.parametrize("name", ["8", "99", "GPU-00000000", "0000:ff:00.0"])
def test_an_unknown_gpu_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match="this host has GPUs 0-7"):
        offer(name)


def test_a_count_takes_free_gpus_only() -> None:
    held = {0: [EXCLUSIVE], 1: [SHARED], 2: [MONITOR]}
    assert indices("any:5", held) == [2, 3, 4, 5, 6]
    with pytest.raises(NotEnoughGpusError, match="6 of 8 are free, held: GPU 0 by trainer, GPU 1 by notebook;"):
        offer("any:7", held)


def test_a_count_above_what_the_host_has_says_so() -> None:
    with pytest.raises(NotEnoughGpusError, match="this host has 8 whole GPUs"):
        offer("any:9")


def test_a_named_gpu_joins_the_set_that_free_ones_complete() -> None:
    assert indices("4,any:1") == [4, 5]
    assert indices("5,4,any:1", {0: [SHARED]}) == [5, 4, 1]  # 1 has no free neighbour to lose


@pytest.mark.parametrize(
    ("text", "holder", "refused"),
    [
        ("0", EXCLUSIVE, True),
        ("0", SHARED, False),
        ("0", MONITOR, False),
        ("0+policy=exclusive", SHARED, True),
        ("0+policy=exclusive", MONITOR, False),
        ("0+policy=monitor", EXCLUSIVE, False),
    ],
)
def test_policies_exclude_each_other(text: str, holder: Holder, refused: bool) -> None:
    if refused:
        with pytest.raises(HeldDeviceError, match=f"GPU 0, .*held by container {holder.container}"):
            offer(text, {0: [holder]})
    else:
        assert indices(text, {0: [holder]}) == [0]


def test_all_means_the_rest_when_some_are_held_exclusively() -> None:
    assert indices("all", {1: [EXCLUSIVE], 2: [SHARED]}) == [0, 2, 3, 4, 5, 6, 7]
    assert indices("all+policy=exclusive", {1: [EXCLUSIVE], 2: [SHARED]}) == [0, 3, 4, 5, 6, 7]
    assert indices("all+policy=monitor", {1: [EXCLUSIVE]}) == list(range(8))


def test_all_is_refused_when_nothing_is_left() -> None:
    with pytest.raises(HeldDeviceError, match="trainer"):
        offer("all", {i: [EXCLUSIVE] for i in range(8)})


def test_a_gpu_split_by_mig_is_never_had_whole() -> None:
    host = replace(HOST, gpus=tuple(replace(gpu, mig=gpu.index == 0) for gpu in HOST.gpus))
    assert indices("any", host=host) == [1]
    assert 0 not in indices("all", host=host)
    with pytest.raises(MigDeviceError, match="split into MIG instances"):
        offer("0", host=host)


def test_numa_keeps_to_gpus_near_that_node() -> None:
    assert indices("any:2+numa=2") == [4, 5]
    with pytest.raises(NotEnoughGpusError, match="this host has 2 whole GPUs near NUMA node 2; ask for at most 2"):
        offer("any:3+numa=2")
    with pytest.raises(NotEnoughGpusError, match="GPU 0, .*is near NUMA node 0, not 2"):
        offer("0+numa=2")


def test_an_unknown_numa_node_never_meets_numa() -> None:
    with pytest.raises(NotEnoughGpusError):
        offer("any:1+numa=0", host=nvlink_host(numa=[None] * 8))


def test_numa_lists_hold_each_of_their_nodes() -> None:
    host = nvlink_host(2, numa=["0,3-9", "1"])
    assert indices("any:1+numa=4", host=host) == [0]


def test_a_refusal_under_numa_names_the_holders_near_that_node_only() -> None:
    held = {0: [EXCLUSIVE], 4: [SHARED], 5: [MONITOR]}
    with pytest.raises(NotEnoughGpusError, match="1 of 2 near NUMA node 2 are free, held: GPU 4 by notebook;"):
        offer("any:2+numa=2", held)
    with pytest.raises(NotEnoughGpusError, match="no whole GPU near NUMA node 9, NUMA nodes with GPUs: 0,1,2,3;"):
        offer("any:1+numa=9", held)
    with pytest.raises(NotEnoughGpusError, match="this host has 1 whole GPU near NUMA node 2 beside those named"):
        offer("4,any:2+numa=2+policy=shared", {})


def test_a_monitor_is_never_refused_for_holders() -> None:
    assert indices("any:2+policy=monitor", {i: [EXCLUSIVE] for i in range(8)}) == [0, 1]


def test_link_is_asked_of_every_pair() -> None:
    links = [["X", "PIX", "SYS"], ["PIX", "X", "SYS"], ["SYS", "SYS", "X"]]
    host = inventory({"links": links})
    assert indices("any:2+link=pxb", host=host) == [0, 1]
    with pytest.raises(NotEnoughGpusError, match="no 3 of the free GPUs 0,1,2 have link=pxb"):
        offer("any:3+link=pxb", host=host)
    with pytest.raises(NotEnoughGpusError, match="GPUs 0 and 2.*their link is SYS"):
        offer("0,2+link=phb", host=host)


def test_the_reasons_are_the_winning_tuple_in_words() -> None:
    reasons = offer("any:2").reasons
    assert reasons[0] == "GPUs 0,1: most NVLink bandwidth between them, 300 GB/s"
    assert reasons[1] == "then nearest by PCIe: score 20 (NV12)"
    assert reasons[2] == "then fewest NUMA nodes: 1"
    assert reasons[3].startswith("then least cut off from the free rest: 3600 GB/s")


def test_an_assumed_link_speed_is_said() -> None:
    host = nvlink_host(model="unheard of")
    assert "link speed assumed" in offer("any:2", host=host).reasons[0]


def test_refusals_are_gpulatch_errors_of_one_line() -> None:
    nasty = {0: [Holder("evil\ncontainer \x1b[31m permission denied", "exclusive")]}
    with pytest.raises(GpulatchError) as caught:
        offer("0", nasty)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "permission denied" not in str(caught.value)


def test_a_large_machine_with_little_symmetry_does_not_hold_everyone_up() -> None:
    count = 32
    links = [["X" if i == j else "NV4" if i // 2 == j // 2 else "SYS" for j in range(count)] for i in range(count)]
    host = inventory({"links": links, "numa": [str(i % 7) for i in range(count)]})
    start = time.monotonic()
    assert len(indices("any:17", host=host)) == 17
    assert time.monotonic() - start < 5


def test_a_restart_gets_its_old_set_if_that_is_free_and_fits() -> None:
    assert indices("any:2") == [0, 1]
    assert again("any:2", [3, 6]) == [3, 6]
    assert again("any:2", [6, 3]) == [3, 6]
    assert again("any:2", [3, 6], {6: [SHARED]}) == [0, 1]  # no longer free
    assert again("any:3", [3, 6]) == [0, 1, 2]  # asks for another number now
    assert again("any:2", [3, 3]) == [0, 1]
    assert again("any:2+numa=1", [5, 6]) == [2, 3]  # no longer fits
    assert again("5,any:1", [3, 6]) == [5, 4]
    assert again("6,any:1", [3, 6]) == [6, 3]


def test_a_restart_keeps_to_the_links_asked_for() -> None:
    host = inventory({"links": [["X", "PIX", "SYS"], ["PIX", "X", "SYS"], ["SYS", "SYS", "X"]]})
    wanted = parse("any:2+link=pix", "env X")
    assert wanted is not None
    assert [gpu.index for gpu in choose(wanted, host, {}, preferred=[0, 2]).gpus] == [0, 1]


def test_the_reason_of_a_restart_says_so() -> None:
    wanted = parse("any:2", "env X")
    assert wanted is not None
    assert choose(wanted, HOST, {}, preferred=[3, 6]).reasons == (
        "GPUs 3,6: what this container had before its restart",
    )


def test_a_count_can_be_filled_up_with_shared_gpus_when_the_settings_have_it() -> None:
    held = {i: [EXCLUSIVE] for i in range(4)} | {4: [SHARED], 5: [SHARED], 6: [SHARED]}
    share = Rules(share_when_busy=True)
    assert ruled("any:1", held, share) == ([7], "exclusive")
    assert ruled("any:2", held, share) == ([6, 7], "shared")
    assert ruled("any:4", held, share) == ([4, 5, 6, 7], "shared")
    with pytest.raises(NotEnoughGpusError):
        ruled("any:5", held, share)
    with pytest.raises(NotEnoughGpusError):
        ruled("any:2+policy=exclusive", held, share)
    with pytest.raises(NotEnoughGpusError):
        ruled("any:2", held, Rules())


def test_all_is_refused_when_some_are_held_and_the_settings_have_it() -> None:
    held = {3: [EXCLUSIVE]}
    assert ruled("all", held, Rules())[0] == [0, 1, 2, 4, 5, 6, 7]
    with pytest.raises(HeldDeviceError, match="GPU 3"):
        ruled("all", held, Rules(all_is_rest=False))
    assert ruled("all", {3: [SHARED]}, Rules(all_is_rest=False))[0] == list(range(8))


def test_a_gpu_is_found_by_its_node() -> None:
    assert indices("/dev/nvidia3") == [2]  # the minor is not the index
    with pytest.raises(UnknownDeviceError):
        offer("nvidia77")


def test_who_only_monitors_is_not_named_as_the_one_in_the_way() -> None:
    with pytest.raises(NotEnoughGpusError, match=r"held: GPU 1 by trainer"):
        indices("any:8", {1: [MONITOR, EXCLUSIVE], 2: [MONITOR]})


MIXED = replace(
    HOST, gpus=tuple(replace(gpu, model="NVIDIA L40S" if gpu.index % 2 else "NVIDIA H100 PCIe") for gpu in HOST.gpus)
)


@pytest.mark.parametrize("glob", ["*L40*", "l40s", "NVIDIA L40?", "nvidia l40[sS]"])
def test_a_model_limits_what_is_taken(glob: str) -> None:
    assert set(indices(f"any:4+model={glob}", host=MIXED)) == {1, 3, 5, 7}
    assert indices(f"all+model={glob}", host=MIXED) == [1, 3, 5, 7]
    assert indices(f"any:1+numa=1+model={glob}", host=MIXED) == [3]


def test_a_model_that_is_not_there_or_not_that_gpus_is_refused() -> None:
    with pytest.raises(
        NotEnoughGpusError, match='no whole GPU of model "b200", models: NVIDIA H100 PCIe, NVIDIA L40S;'
    ):
        offer("any:1+model=b200", host=MIXED)
    with pytest.raises(NotEnoughGpusError, match="this host has 4 whole GPUs of model"):
        offer("any:5+model=l40s", host=MIXED)
    with pytest.raises(NotEnoughGpusError, match='GPU 0, .*: is of model "NVIDIA H100 PCIe", not model=l40s'):
        offer("0+model=L40S", host=MIXED)


def test_a_hostile_glob_takes_no_time() -> None:
    started = time.monotonic()
    with pytest.raises(NotEnoughGpusError):
        offer("any:1+model=" + "*a" * 31 + "b", host=MIXED)
    assert time.monotonic() - started < 1
