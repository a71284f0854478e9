import pytest

from runtime_wrapper.errors import RequestError
from runtime_wrapper.inventory import Link
from runtime_wrapper.request import Request, parse


def must(text: str) -> Request:
    found = parse(text, "test")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "named", "count", "every", "policy"),
    [
        ("0", ("0",), 0, False, "shared"),
        ("1,0", ("1", "0"), 0, False, "shared"),
        (" 0 ,, 1 ,0", ("0", "1"), 0, False, "shared"),
        ("007", ("7",), 0, False, "shared"),
        ("any", (), 1, False, "exclusive"),
        ("any:3", (), 3, False, "exclusive"),
        ("any:2,any", (), 3, False, "exclusive"),
        ("any:2+policy=shared", (), 2, False, "shared"),
        ("0+policy=strict", ("0",), 0, False, "exclusive"),
        ("0+policy=exclusive,1", ("0", "1"), 0, False, "exclusive"),
        ("3,any:1", ("3",), 1, False, "exclusive"),
        ("all", (), 0, True, "shared"),
        ("ALL", (), 0, True, "shared"),
        ("all,0", (), 0, True, "shared"),
        ("0,any:2,all", (), 0, True, "shared"),
        ("all+policy=monitor", (), 0, True, "monitor"),
        ("none", (), 0, False, "shared"),
        ("none,0", (), 0, False, "shared"),
        ("GPU-5C89852c", ("GPU-5c89852c",), 0, False, "shared"),
        (
            "gpu-5c89852c-d268-c3f3-1b07-005d5ae1dc3f",
            ("GPU-5c89852cd268c3f31b07005d5ae1dc3f",),
            0,
            False,
            "shared",
        ),
        ("nvidia3,/dev/nvidia3,/dev/nvidia10", ("/dev/nvidia3", "/dev/nvidia10"), 0, False, "shared"),
        ("3B:00.0", ("0000:3b:00.0",), 0, False, "shared"),
        ("00000000:3b:00.0,0000:3b:00.0", ("0000:3b:00.0",), 0, False, "shared"),
        ("GPU-{5C89852c-d268-c3f3-1b07-005d5ae1dc3f}", ("GPU-5c89852cd268c3f31b07005d5ae1dc3f",), 0, False, "shared"),
        ("nvidia.com/gpu=1,0,runtime.nvidia.com/gpu=0", ("1", "0"), 0, False, "shared"),
        ("nvidia.com/gpu=GPU-5c89852c", ("GPU-5c89852c",), 0, False, "shared"),
        ("nvidia.com/gpu=all", (), 0, True, "shared"),
        ("runtime.nvidia.com/gpu=none", (), 0, False, "shared"),
        ("gpulatch.io/gpu=any-2,gpulatch.io/gpu=any", (), 3, False, "exclusive"),
        ("gpulatch.io/gpu=any-2+policy=shared", (), 2, False, "shared"),
    ],
)
def test_the_grammar_reads(text: str, named: tuple[str, ...], count: int, every: bool, policy: str) -> None:
    found = must(text)
    assert (found.named, found.count, found.every, found.policy) == (named, count, every, policy)


def test_options_may_stand_on_any_item_once_or_with_the_same_value() -> None:
    found = must("any:2+link=nvlink, any:1 + numa=1 +link=NVLINK")
    assert (found.count, found.link, found.numa) == (3, "nvlink", 1)


def test_the_first_of_all_and_none_decides() -> None:
    assert must("all,none").every
    assert must("none,all").none


@pytest.mark.parametrize(
    ("text", "memory_mib", "unenforced"),
    [
        ("0+memory=8g", 8192, ("memory=8192 MiB",)),
        ("0+memory=512MiB", 512, ("memory=512 MiB",)),
        ("any:2+memory=1tb+compute=Off", 1 << 20, ("memory=1048576 MiB", "compute=off")),
        ("0+wait=2m,1+wait=120s", None, ("wait=120 s",)),
        ("0+near=mlx5_0+profile=llm-train", None, ("near=mlx5_0", "profile=llm-train")),
        ("0+zone=pci:0000:3B:00.0", None, ("zone=pci:0000:3b:00.0",)),
        ("0+zone=numa:1+numa=1+model=*A100*", None, ()),
    ],
)
def test_options_that_change_nothing_yet_are_kept_and_said(
    text: str, memory_mib: int | None, unenforced: tuple[str, ...]
) -> None:
    found = must(text)
    assert (found.memory_mib, found.unenforced) == (memory_mib, unenforced)
    assert found.notes == [f"option {option}: kept with the claim, not enforced yet" for option in unenforced]


def test_a_zone_that_is_a_numa_node_is_enforced_as_one() -> None:
    assert must("0+zone=numa:1").numa == 1
    assert must("0+model=*A100*").model == "*a100*"


@pytest.mark.parametrize(
    "text", ["void", "no-such-gpu,void", "0:1,void", "0,void", "void,all", "VOID", "", " , ,", " "]
)
def test_void_and_empty_ask_for_nothing(text: str) -> None:
    assert parse(text, "test") is None


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("no-gpu-has-128MiB-to-run", "no-gpu-has-128MiB-to-run"),
        ("-1", "-1"),
        ("+1", '"1"'),
        ("0x1", "0x1"),
        ("GPU-", "GPU-"),
        ("GPU-1234567", "GPU-1234567"),
        ("GPU-zzzzzzzz", "GPU-zzzzzzzz"),
        ("GPU-" + "0" * 33, "GPU-000"),
        ("any:0", "any:0"),
        ("any:", "any:"),
        ("any:-1", "any:-1"),
        ("any:9999999999999", "any:9999999999999"),
        ("1" * 4000, "1111"),
        ("0:1", "MIG"),
        ("MIG-b1028956-cfa2-0990-bf4a-5da9abb51763", "MIG"),
        ("mig:1g.10gb", "MIG"),
        ("0+policy=none", "policy=none"),
        ("0+policy", "policy"),
        ("0+memory=8", "memory=8"),
        ("0+memory=0g", "memory=0g"),
        ("0+memory=8k", "memory=8k"),
        ("0+compute=maybe", "compute=maybe"),
        ("0+zone=numa:x", "zone=numa:x"),
        ("0+zone=pci:3b", "zone=pci:3b"),
        ("0+zone=rack:1", "zone=rack:1"),
        ("0+near=", "near="),
        ("0+model=", "model="),
        ("0+model=" + "?" * 65, "model=???"),
        ("0+profile=a b", "profile=a b"),
        ("0+wait=30", "wait=30"),
        ("0+numa=1,1+zone=numa:2", "numa=1"),
        ("0+colour=red", "colour=red"),
        ("MIG-GPU-b1028956-cfa2-0990-bf4a-5da9abb51763/3", "is not a GPU selector"),
        ("a:0", "is not a GPU selector"),
        ("mig:1g.10gb:2", "MIG"),
        ("mig:1g.10gb+me", "1g.10gb+me"),
        ("nvidia.com/mig=1:0", "MIG"),
        ("nvidia.com/mig=all", "MIG"),
        ("nvidia.com/gpu=0:1", "MIG"),
        ("vendor.com/class=0", "let the engine give it"),
        ("nvidia.com/gds=all", "let the engine give it"),
        ("nvidia.com/gpu", "is not a GPU selector"),
        ("0+link=warp", "link=warp"),
        ("0+numa=x", "numa=x"),
        ("0+policy=shared,1+policy=exclusive", "policy=exclusive"),
        ("0+", '""'),
        ("0;1", "0;1"),
        ("٣", "٣"),
    ],
)
def test_anything_else_is_refused_and_named(text: str, culprit: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(text, "env X")
    message = str(caught.value)
    assert culprit in message
    assert "use one of: " in message or "say " in message
    assert "\n" not in message
    assert len(message) < 700


@pytest.mark.parametrize(
    ("pcie", "nvlinks", "least", "meets"),
    [
        ("SYS", 0, None, True),
        ("SYS", 0, "any", True),
        ("SYS", 1, "nvlink", True),
        ("PIX", 0, "nvlink", False),
        ("PIX", 0, "pix", True),
        ("PXB", 0, "pix", False),
        ("SYS", 2, "pix", True),
        ("PHB", 0, "node", True),
        ("SYS", 0, "node", False),
    ],
)
def test_link_classes_are_ordered(pcie: str, nvlinks: int, least: str | None, meets: bool) -> None:
    assert Link(pcie, nvlinks).meets(least) is meets


def test_a_text_that_would_swell_the_ledger_is_refused() -> None:
    assert parse("0" + "," * 4095, "env X") is not None
    with pytest.raises(RequestError, match="longer than 4096 characters"):
        parse("0" + "," * 4096, "env X")
