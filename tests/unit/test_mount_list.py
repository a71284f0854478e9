"""GPUs asked for by mounts of /dev/null, which count only where the settings say so."""

from typing import Any

import pytest

from runtime_wrapper import mount_list, policy, sources
from runtime_wrapper.errors import RequestError
from runtime_wrapper.request import Request
from runtime_wrapper.settings import Settings

FOLDER = "/var/run/nvidia-container-devices"
ON = Settings(sources=tuple(sources.SOURCES))


def mounting(*targets: str, source: Any = "/dev/null") -> dict[str, Any]:
    return {"mounts": [{"destination": target, "source": source, "type": "bind"} for target in targets]}


def find(data: dict[str, Any], settings: Settings = ON) -> Request | None:
    return policy.choose(sources.wishes(data, "c1"), settings, privileged=False).request()


def test_each_mount_is_one_gpu() -> None:
    found = find(mounting(f"{FOLDER}/3", f"{FOLDER}/GPU-5c89852c", f"{FOLDER}/cdi/nvidia.com/gpu/0"))
    assert found
    assert (found.source, found.dialect) == (f"mounts {FOLDER}", "volume_mounts")
    assert found.named == ("3", "GPU-5c89852c", "0")


def test_they_are_off_by_default_and_an_event_says_so() -> None:
    data = mounting(f"{FOLDER}/3")
    assert find(data, Settings()) is None
    (heard,) = policy.choose(sources.wishes(data, "c1"), Settings(), privileged=False).heard
    assert heard.verdict == "left out: the setting sources does not name volume_mounts"


@pytest.mark.parametrize(
    "target",
    [FOLDER, f"{FOLDER}/", f"{FOLDER}-evil/0", "/run/nvidia-container-devices/0", f"/x{FOLDER}/0", f"{FOLDER}x/0"],
)
def test_a_path_that_only_looks_alike_asks_for_nothing(target: str) -> None:
    assert find(mounting(target)) is None


@pytest.mark.parametrize("source", ["/dev/zero", "", None, 7, "dev/null", "/dev/null0"])
def test_another_source_asks_for_nothing(source: Any) -> None:
    assert find(mounting(f"{FOLDER}/0", source=source)) is None


@pytest.mark.parametrize(
    "target", [f"{FOLDER}/../../0", f"{FOLDER}/1/../0", "/var/../var/run/nvidia-container-devices/0", f"{FOLDER}/.."]
)
def test_a_path_that_goes_up_is_refused(target: str) -> None:
    with pytest.raises(RequestError, match="is not a GPU selector"):
        find(mounting(target))


@pytest.mark.parametrize("mounts", [None, 7, {}, [None, 7, "x", {}, {"destination": 3}]])
def test_mounts_of_odd_types_ask_for_nothing(mounts: Any) -> None:
    assert find({"mounts": mounts}) is None


def test_what_asks_for_a_gpu_can_be_taken_out_and_the_rest_stays() -> None:
    data = mounting(f"{FOLDER}/0", "/data", f"{FOLDER}/imex/0", f"{FOLDER}/all")
    assert [mount["destination"] for mount in mount_list.without(data)] == ["/data", f"{FOLDER}/imex/0"]  # type: ignore[index]


def test_ten_thousand_mounts_are_refused_quickly() -> None:
    with pytest.raises(RequestError, match="longer than 4096"):
        find(mounting(*(f"{FOLDER}/{index}" for index in range(10_000))))
