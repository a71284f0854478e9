"""Whether a host meets what an image needs: messages, notes, what is not known; and reports of people in the field."""

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import requirements
from runtime_wrapper.errors import RequirementError
from runtime_wrapper.inventory import Gpu
from runtime_wrapper.requirement import Facts, Need

A100, H100, RTX_3090, UNKNOWN = (
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA GPU",
)
HAVING_470 = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=geforce,driver>=535,driver<536"


def gpu(model: str, index: int = 0) -> Gpu:
    return Gpu(index, f"GPU-{index}", f"0000:0{index}:00.0", index, model, None)


class Image:
    """A bundle's folder with a root file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rootfs").mkdir()

    def having(self, *paths: str) -> "Image":
        for path in paths:
            (self.folder / "rootfs" / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "rootfs" / path).touch()
        return self

    def on(self, driver: str | None, *models: str, **env: str) -> list[str]:
        data: dict[str, Any] = {"process": {"env": [f"{key}={value}" for key, value in env.items()]}}
        data["root"] = {"path": "rootfs"}
        return requirements.check(data, str(self.folder), [gpu(model, i) for i, model in enumerate(models)], driver)

    def refused(self, driver: str | None, *models: str, **env: str) -> str:
        with pytest.raises(RequirementError) as caught:
            self.on(driver, *models, **env)
        return str(caught.value)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def compat(version: str) -> str:
    return f"usr/local/cuda/compat/libcuda.so.{version}"


def test_a_refusal_says_what_is_needed_what_is_there_and_two_ways_out(image: Image) -> None:
    assert image.refused("550.54.15", A100, NVIDIA_REQUIRE_CUDA="cuda>=13.0") == (
        'gpulatch: requirement "cuda>=13.0", env NVIDIA_REQUIRE_CUDA: not met, this host has driver 550.54.15, which '
        "runs CUDA up to 12.4, GPU brand nvidia or tesla, arch 8.0; install driver 580.65.06 or newer, use an image "
        "for CUDA 12.4 or older, or set NVIDIA_DISABLE_REQUIRE=1 to start it all the same (GL-2004)"
    )


def test_a_long_expression_is_cut_in_the_message(image: Image) -> None:
    message = image.refused("470.82.01", RTX_3090, NVIDIA_REQUIRE_CUDA="cuda>=13.0" + " brand=tesla,driver>=535" * 60)
    assert len(message) < 500
    assert "580.65.06" in message


def test_a_tenant_cannot_make_a_message_long(image: Image) -> None:
    env = {"NVIDIA_REQUIRE_" + "X" * 100_000: "rubbish" * 100_000}
    assert len(image.refused("550.54.15", A100, **env)) < 600
    env = {"CUDA_VERSION": "12.4.0-" + "x" * 100_000, "NV_CUDNN_VERSION": "9" * 100_000}
    assert all(len(note) < 300 for note in image.on("550.54.15", A100, **env))


def test_every_gpu_must_meet_a_requirement(image: Image) -> None:
    assert image.on("550.54.15", A100, NVIDIA_REQUIRE_GPU="brand=tesla")
    message = image.refused("550.54.15", A100, RTX_3090, NVIDIA_REQUIRE_GPU="brand=tesla")
    assert "GPU brand geforce or geforcertx" in message
    assert "ask for a GPU that meets it" in message


def test_every_variable_must_be_met(image: Image) -> None:
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=12", "NVIDIA_REQUIRE_DRIVER": "driver>=560"}
    assert "env NVIDIA_REQUIRE_DRIVER" in image.refused("550.54.15", A100, **env)
    assert len(image.on("560.35.03", A100, **env)) == 2


@pytest.mark.parametrize("expression", ["req0=true", "cuda==12.4", "cuda >=12.4", "foo=bar cuda>=12"])
def test_what_is_no_expression_is_refused_as_by_libnvidia_container(image: Image, expression: str) -> None:
    message = image.refused("550.54.15", A100, NVIDIA_REQUIRE_X=expression)
    assert "is no condition on cuda, driver, arch, brand" in message


def test_what_is_switched_off_is_noted(image: Image) -> None:
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=99 rubbish", "CUDA_VERSION": "99.1", "NVIDIA_DISABLE_REQUIRE": "1"}
    assert image.on("550.54.15", A100, **env) == [
        "what the image requires was not checked: NVIDIA_DISABLE_REQUIRE is set"
    ]


@pytest.mark.parametrize("driver", [None, "999.1", "540.4.0"])
def test_an_unknown_driver_refuses_nothing_and_is_noted(image: Image, driver: str | None) -> None:
    (note,) = image.on(driver, UNKNOWN, NVIDIA_REQUIRE_CUDA="cuda>=13.0")
    assert "could not be checked, not known of this host: cuda" in note


def test_an_unknown_model_refuses_nothing_and_is_noted(image: Image) -> None:
    (note,) = image.on("470.82.01", UNKNOWN, NVIDIA_REQUIRE_CUDA="cuda>=12.4 brand=tesla,driver>=470,driver<471")
    assert "could not be checked, not known of this host: brand" in note


def test_without_a_gpu_the_driver_still_counts(image: Image) -> None:
    assert image.on("550.54.15", NVIDIA_REQUIRE_CUDA="cuda>=9.0")
    assert image.refused("375.26", NVIDIA_REQUIRE_CUDA="cuda>=9.0")


@pytest.mark.parametrize("driver", [None, "999.1", "540.4.0", "36.4.0"])
def test_a_branch_in_no_table_refuses_no_cuda(image: Image, driver: str | None) -> None:
    """Tegra's drivers have numbers of their own."""
    assert "could not be checked" in image.on(driver, UNKNOWN, CUDA_VERSION="13.0")[0]


# What the image brings


@pytest.mark.parametrize(
    ("cuda", "driver", "note"),
    [
        ("12.4.1", "550.54.15", "runs on driver 550.54.15"),
        ("9.0", "610.43.02", "runs on driver 610.43.02"),
        ("12.9.1", "550.54.15", "runs on driver 550.54.15, by minor-version compatibility"),
        ("12.9.1", "525.60.13", "runs on driver 525.60.13, by minor-version compatibility"),
        ("11.8.0", "450.80.02", "runs on driver 450.80.02, by minor-version compatibility"),
        ("14.0", "550.54.15", "could not be checked, the driver that it needs is not known"),
    ],
)
def test_an_image_of_the_drivers_major_runs(image: Image, cuda: str, driver: str, note: str) -> None:
    assert image.on(driver, RTX_3090, CUDA_VERSION=cuda) == [
        f'CUDA {cuda[:4].rstrip(".")} of the image, env CUDA_VERSION="{cuda}": {note}'
    ]


@pytest.mark.parametrize(
    ("cuda", "driver", "least"),
    [
        ("13.0.1", "550.54.15", "580.65.06"),
        ("12.0.0", "520.61.05", "525.60.13"),
        ("11.1.1", "450.51.06", "450.80.02"),
        ("11.0.3", "440.33.01", "450.36.06"),
        ("10.2", "418.39", "440.33"),
        ("9.0.176", "375.26", "384.81"),
    ],
)
def test_an_image_of_a_newer_major_is_refused(image: Image, cuda: str, driver: str, least: str) -> None:
    message = image.refused(driver, A100, CUDA_VERSION=cuda)
    assert f"needs driver {least} or newer, this host has {driver}" in message
    assert f"install driver {least} or newer, use an image for CUDA" in message
    assert "NVIDIA_DISABLE_REQUIRE=1" in message


@pytest.mark.parametrize("text", ["", "cu121", "latest", "12.x", "9..0"])
def test_a_variable_that_is_no_version_refuses_nothing(image: Image, text: str) -> None:
    assert image.on("375.26", A100, CUDA_VERSION=text) == []


def test_the_packages_variables_count_where_there_is_no_other(image: Image) -> None:
    assert "NV_CUDA_CUDART_VERSION" in image.refused("470.82.01", A100, NV_CUDA_CUDART_VERSION="12.4.127-1")
    assert image.on("470.82.01", A100, CUDA_VERSION="11.4.3", NV_CUDA_CUDART_VERSION="12.4.127-1")


def test_libraries_count_where_no_variable_names_a_version(image: Image) -> None:
    image.having("usr/local/cuda/lib64/libcudart.so.13", "usr/local/cuda/lib64/libcudart.so.13.0.88")
    message = image.refused("550.54.15", A100, NVIDIA_REQUIRE_CUDA="cuda>=12.0")
    assert "CUDA 13.0 of the image, libcudart.so.13: needs driver 580.65.06" in message
    assert len(image.on("550.54.15", A100, NVIDIA_REQUIRE_CUDA="cuda>=12.0", CUDA_VERSION="12.4")) == 2


def test_of_several_libraries_the_one_that_needs_least_counts(image: Image) -> None:
    image.having("usr/lib64/libcudart.so.13", "usr/lib64/libcudart.so.11.0", "usr/lib64/libcudnn.so.9")
    notes = image.on("470.82.01", A100, CUDA_VERSION="unknown")
    assert [note.partition(",")[0] for note in notes] == ["CUDA 11.0 of the image", "cuDNN 9 of the image"]


def test_cudnn_has_a_lowest_driver_of_its_own(image: Image) -> None:
    message = image.refused("440.33.01", A100, CUDA_VERSION="10.2", NV_CUDNN_VERSION="9.1.0.70-1")
    assert 'cuDNN 9 of the image, env NV_CUDNN_VERSION="9.1.0.70-1": needs driver 450.80.02' in message
    assert "not known" in image.on("440.33.01", A100, CUDA_VERSION="10.2", CUDNN_VERSION="7.6.5")[1]


def test_a_root_outside_the_bundle_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "merged/usr/lib").mkdir(parents=True)
    (tmp_path / "merged/usr/lib/libcudart.so.13").touch()
    data = {"process": {"env": ["NVIDIA_REQUIRE_CUDA="]}, "root": {"path": str(tmp_path / "merged")}}
    with pytest.raises(RequirementError):
        requirements.check(data, "/nowhere", [gpu(A100)], "550.54.15")


# Reports from the field


def test_a_data_centre_gpu_with_an_older_driver_runs_by_the_images_compat_libraries(image: Image) -> None:
    image.having(compat("550.54.15"))
    notes = image.on("470.82.01", A100, NVIDIA_REQUIRE_CUDA=HAVING_470, CUDA_VERSION="12.4.1")
    assert "needs driver 525.60.13, or compat libraries as this image has them" in notes[1]
    assert notes[2] == "its compat libraries 550.54.15 can be used: newer than the driver, on data-centre GPUs"


def test_error_804_compat_libraries_are_not_counted_on_geforce(image: Image) -> None:
    image.having(compat("550.54.15"))
    message = image.refused("520.61.05", RTX_3090, CUDA_VERSION="12.4.1")
    assert "its compat libraries 550.54.15 must not be used: this kind of GPU takes none" in message
    assert "must not be used" in image.on("525.60.13", RTX_3090, CUDA_VERSION="12.4.1")[1]


def test_error_803_compat_libraries_are_not_counted_under_a_newer_driver(image: Image) -> None:
    image.having(compat("550.54.15"))
    assert image.on("595.58.03", H100, CUDA_VERSION="12.4.1")[1] == (
        "its compat libraries 550.54.15 must not be used: not newer than the driver's branch"
    )


def test_compat_libraries_that_are_too_old_for_the_images_cuda_do_not_help(image: Image) -> None:
    image.having(compat("535.104.05"))
    message = image.refused("470.82.01", A100, CUDA_VERSION="13.0.0")
    assert "its compat libraries 535.104.05 are too old" in message


def test_one_geforce_among_data_centre_gpus_takes_no_compat_libraries(image: Image) -> None:
    image.having(compat("550.54.15"))
    assert "must not be used" in image.refused("470.82.01", A100, RTX_3090, CUDA_VERSION="12.4.1")


def test_compat_libraries_that_may_work_refuse_nothing(image: Image) -> None:
    image.having(compat("550.54.15"))
    notes = image.on("470.82.01", "NVIDIA RTX A6000", CUDA_VERSION="12.4.1")
    assert "may work: whether they work here is not known" in notes[1]


@pytest.mark.parametrize("driver", ["590.44.01", "595.58.03", "610.43.02"])
def test_an_image_that_names_branches_up_to_575_starts_on_every_newer_driver(image: Image, driver: str) -> None:
    branches = " ".join(f"brand=tesla,driver>={branch},driver<{branch + 1}" for branch in (535, 550, 565, 570, 575))
    assert image.on(driver, H100, NVIDIA_REQUIRE_CUDA=f"cuda>=13.0 {branches}", CUDA_VERSION="13.0.0")


def test_a_brand_that_the_driver_renamed_is_still_the_brand_that_images_name(image: Image) -> None:
    """Drivers from 470 on call an A100 NVIDIA; images ask for tesla."""
    (note,) = image.on("535.104.05", A100, NVIDIA_REQUIRE_BRAND="brand=tesla")
    assert "met by" in note


@pytest.mark.parametrize("text", ["cuda>=" + "0000." * 14 + "x", "cuda>=" + "00." * 40 + "00x", "cuda<1 " * 1000])
def test_no_expression_takes_long(text: str) -> None:
    start = time.monotonic()
    with contextlib.suppress(RequirementError):
        requirements.judge(Need("NVIDIA_REQUIRE_CUDA", text), [Facts("12.4", "550.54.15", "8.0", frozenset({"tesla"}))])
    assert time.monotonic() - start < 2.0


def test_an_endless_expression_is_refused() -> None:
    with pytest.raises(RequirementError, match="is longer than"):
        requirements.judge(Need("NVIDIA_REQUIRE_CUDA", "cuda<1 " * 100_000), [Facts("12.4", "550.54.15", "8.0", None)])
