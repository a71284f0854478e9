import re

import pytest

from runtime_wrapper import cuda_driver
from runtime_wrapper.requirement import version

TESLA, GEFORCE, PROFESSIONAL = frozenset({"tesla", "nvidia"}), frozenset({"geforce"}), frozenset({"nvidiartx"})


def test_versions_are_compared_as_numbers() -> None:
    """570.26 is older than 570.124.06, although "26" is more than "124" as text."""
    assert cuda_driver.is_older("570.26", "570.124.06")
    assert cuda_driver.is_older("450.80.02", "450.119.03")
    assert not cuda_driver.is_older("455.32", "455.23.05")


def test_newer_releases_need_newer_drivers_and_drivers_run_them() -> None:
    releases = sorted(cuda_driver._LEAST_NATIVE)
    drivers = [cuda_driver._LEAST_NATIVE[release] for release in releases]
    assert drivers == sorted(drivers, key=lambda text: version(text) or ())
    assert [cuda_driver.newest(driver) for driver in drivers] == releases
    assert sorted(cuda_driver._NEWEST.values()) == list(cuda_driver._NEWEST.values())


@pytest.mark.parametrize(
    ("release", "least"),
    [
        ((9, 2), "396.26"),
        ((10, 2), "440.33"),
        ((11, 0), "450.36.06"),
        ((11, 1), "450.80.02"),
        ((11, 8), "450.80.02"),
        ((12, 0), "525.60.13"),
        ((12, 9), "525.60.13"),
        ((12, 7), "525.60.13"),
        ((13, 2), "580.65.06"),
        ((10, 9), None),
        ((14, 0), None),
    ],
)
def test_the_lowest_driver_counts_minor_version_compatibility(release: tuple[int, int], least: str | None) -> None:
    assert cuda_driver.least(release) == least


@pytest.mark.parametrize("driver", [None, "", "35.4.1", "540.4.0", "999.1", "x"])
def test_a_branch_in_no_table_is_unknown(driver: str | None) -> None:
    assert cuda_driver.newest(driver) is None


@pytest.mark.parametrize(
    ("compat", "driver", "brands", "works"),
    [
        ("550.54.15", "535.104.05", TESLA, True),
        ("550.54.15", "525.60.13", GEFORCE, False),
        ("550.54.15", "595.58.03", TESLA, False),
        ("550.54.15", "550.54.14", TESLA, False),
        ("550.54.15", "545.23.06", TESLA, False),
        ("580.65.06", "470.82.01", TESLA, False),
        ("590.44.01", "550.54.15", TESLA, None),
        ("550.54.15", "535.104.05", PROFESSIONAL, None),
        ("550.54.15", "535.104.05", None, None),
    ],
)
def test_compat_libraries_are_decided_by_branches_and_the_kind_of_gpu(
    compat: str, driver: str, brands: frozenset[str] | None, works: bool | None
) -> None:
    assert cuda_driver.compat(compat, driver, brands).works is works


def test_tables_are_written_as_versions() -> None:
    for text in (*cuda_driver._LEAST_NATIVE.values(), *cuda_driver._LEAST_OF_MAJOR.values()):
        assert re.fullmatch(r"\d{3}\.\d{2,3}(\.\d{2})?", text)
