import json
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import request
from runtime_wrapper.errors import RequestError
from runtime_wrapper.inventory import Link
from runtime_wrapper.request import Request, find, parse

NVIDIA_CASES = json.loads((Path(__file__).parent.parent / "data/nvidia_requests.json").read_text())


def spec(env: list[str] | None = None, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    return {"process": {"env": env or []}, "annotations": annotations or {}}


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
        ("3B:00.0", ("0000:3b:00.0",), 0, False, "shared"),
        ("00000000:3b:00.0,0000:3b:00.0", ("0000:3b:00.0",), 0, False, "shared"),
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


@pytest.mark.parametrize("text", ["void", "0,void", "void,all", "VOID", "", " , ,", " "])
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
        ("any:9999999999", "any:9999999999"),
        ("1" * 4000, "1111"),
        ("0:1", "MIG"),
        ("MIG-b1028956-cfa2-0990-bf4a-5da9abb51763", "MIG"),
        ("mig:1g.10gb", "MIG"),
        ("0+policy=none", "policy=none"),
        ("0+policy", "policy"),
        ("0+memory=8g", "memory=8g"),
        ("0+link=warp", "link=warp"),
        ("0+numa=x", "numa=x"),
        ("0+policy=shared,1+policy=exclusive", "policy=exclusive"),
        ("0+", '""'),
        ("0;1", "0;1"),
        ("٣", "٣"),
        ("nvidia.com/gpu=0", "nvidia.com/gpu=0"),
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


def test_the_annotation_comes_before_our_variable_and_that_before_nvidias() -> None:
    env = ["NVIDIA_VISIBLE_DEVICES=all", "GPULATCH_GPUS=any:2"]
    assert find(spec(env, {"gpulatch.io/gpus": "3"})).source == "annotation gpulatch.io/gpus"
    assert find(spec(env)).source == "env GPULATCH_GPUS"
    assert find(spec(env[:1])).source == "env NVIDIA_VISIBLE_DEVICES"


def test_an_empty_source_falls_through_and_void_ends_the_search() -> None:
    assert find(spec(["GPULATCH_GPUS=", "NVIDIA_VISIBLE_DEVICES=1"])).named == ("1",)
    assert find(spec(["GPULATCH_GPUS=void", "NVIDIA_VISIBLE_DEVICES=all"])) is None


@pytest.mark.parametrize("manager", ["libpod", "cri-o"])
def test_annotations_that_may_come_from_the_image_are_not_honoured(manager: str) -> None:
    annotations = {"gpulatch.io/gpus": "any:8", "io.container.manager": manager}
    assert find(spec([], annotations)) is None
    assert find(spec(["GPULATCH_GPUS=0"], annotations)).named == ("0",)


def test_annotations_are_not_honoured_when_told_so() -> None:
    assert find(spec([], {"gpulatch.io/gpus": "0"}), annotations=False) is None


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"process": None},
        {"process": []},
        {"process": {"env": {}}},
        {"process": {"env": "NVIDIA_VISIBLE_DEVICES=0"}},
        {"process": {"env": [1, None, "NVIDIA_VISIBLE_DEVICES"]}},
        {"annotations": []},
        {"annotations": {"gpulatch.io/gpus": 3}},
        {"process": {"env": ["nvidia_visible_devices=0"]}},
    ],
)
def test_a_spec_of_odd_types_asks_for_nothing(data: dict[str, Any]) -> None:
    assert find(data) is None


def expected(case: dict[str, Any]) -> list[str] | None:
    """What NVIDIA's runtime takes, in its words; its duplicate bug is not copied."""
    deviations = {"A006": ["all"], "A015": ["0"], "A016": ["0", "1"]}
    devices: list[str] | None = deviations.get(case["id"], case["expect"]["devices"])
    return devices


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in NVIDIA_CASES
        if case["in"].keys() <= {"env", "bounding"}
        and all(entry.partition("=")[0] == request.NVIDIA_VARIABLE for entry in case["in"].get("env", []))
        and not any(mark in str(case["in"]) for mark in ("nvidia.com", "MIG-"))
    ],
    ids=lambda case: case["id"],
)
def test_the_variable_means_what_it_means_to_nvidias_runtime(case: dict[str, Any]) -> None:
    found = find(spec(case["in"].get("env")))
    wanted = expected(case)
    if wanted is None:
        assert found is None
    elif wanted == [""]:
        assert found is not None
        assert found.none
    elif wanted == ["all"]:
        assert found is not None
        assert found.every
    else:
        assert found is not None
        assert list(found.named) == wanted


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


@pytest.mark.parametrize(
    ("env", "annotations", "acts"),
    [
        ([], {}, False),
        (["NVIDIA_VISIBLE_DEVICES=void"], {}, False),
        (["NVIDIA_VISIBLE_DEVICES="], {}, False),
        (["NVIDIA_VISIBLE_DEVICES=all"], {}, True),
        (["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=0"], {}, True),
        (["CUDA_VERSION=9.0"], {}, True),
        (["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES=void"], {}, False),
        ([], {"cdi.k8s.io/x": "nvidia.com/gpu=all"}, True),
    ],
)
def test_what_nvidias_runtime_would_act_on_is_known(env: list[str], annotations: dict[str, str], acts: bool) -> None:
    assert request.nvidia_would_act(spec(env, annotations)) is acts
