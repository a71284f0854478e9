"""What the driver says under /proc, in every form seen on real hosts."""

import os
from pathlib import Path

import pytest
from drivers.driver_tree import DriverTree

from runtime_wrapper.errors import NoDriverError, UntrustedPathError
from runtime_wrapper.probe import procfs
from runtime_wrapper.probe.procfs import Information, Majors, NodeRules

A10G = (
    "Model: \t\t NVIDIA A10G\nIRQ:   \t\t 42\nGPU UUID: \t GPU-82523fd8-3897-f599-d088-ccd04ae45ec1\n"
    "Video BIOS: \t 94.04.42.00.01\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n"
    "Bus Location: \t 0000:00:1e.0\nDevice Minor: \t 3\nGPU Excluded: \t No\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    return DriverTree(tmp_path)


def information(tree: DriverTree, text: str, pci: str = "0000:00:1e.0") -> tuple[Information, ...]:
    tree.write(f"proc/driver/nvidia/gpus/{pci}/information", text)
    return procfs.gpus(tree.proc)


def test_the_information_of_a_gpu_is_read_through_tabs_and_blanks(tree: DriverTree) -> None:
    uuid = "GPU-82523fd8-3897-f599-d088-ccd04ae45ec1"

    assert information(tree, A10G) == (Information("0000:00:1e.0", 3, "NVIDIA A10G", uuid),)


@pytest.mark.parametrize(
    "line", ["", "GPU UUID: \t GPU-????????-????-????-????-????????????\n", "GPU UUID: \t N/A\n", "GPU UUID:\n"]
)
def test_a_gpu_that_was_never_opened_has_no_uuid(tree: DriverTree, line: str) -> None:
    lines = [line if row.startswith("GPU UUID") else row for row in A10G.splitlines(keepends=True)]

    assert information(tree, "".join(lines))[0].uuid is None


def test_a_gpu_with_a_firmware_line_and_no_blank_before_the_tab_is_read(tree: DriverTree) -> None:
    text = A10G.replace("GPU Excluded: \t No", "GPU Firmware: \t 590.48.01\nGPU Excluded:\t No")

    assert information(tree, text)[0].minor == 3


@pytest.mark.parametrize("excluded", ["GPU Excluded:\t Yes", "GPU Excluded: \t Yes"])
def test_an_excluded_gpu_is_left_out(tree: DriverTree, excluded: str) -> None:
    tree.gpu("0000:06:00.0", 0)

    found = information(tree, A10G.replace("GPU Excluded: \t No", excluded))

    assert [gpu.pci for gpu in found] == ["0000:06:00.0"]


def test_a_gpu_that_the_driver_cannot_describe_does_not_stop_the_others(tree: DriverTree) -> None:
    tree.gpu("0000:01:00.0", 5)
    assert [gpu.minor for gpu in information(tree, "Model: \t\t NVIDIA A10G\n")] == [5]


def test_gpus_ascend_by_address_and_not_by_text_or_minor(tree: DriverTree) -> None:
    for minor, pci in enumerate(["10000:01:00.0", "0000:a1:00.0", "0002:00:00.0", "0000:0F:00.0"]):
        tree.gpu(pci, minor)

    assert [gpu.minor for gpu in procfs.gpus(tree.proc)] == [3, 1, 2, 0]
    assert procfs.gpus(tree.proc)[0].pci == "0000:0f:00.0"


def test_an_address_with_eight_domain_digits_is_shortened_to_sysfs_form(tree: DriverTree) -> None:
    assert information(tree, A10G, "00000000:00:1E.0")[0].pci == "0000:00:1e.0"


def test_a_host_without_the_driver_says_so(tmp_path: Path) -> None:
    for look in (procfs.driver_version, procfs.listing, procfs.gpus, procfs.access_paths, procfs.mig_parents):
        with pytest.raises(NoDriverError, match="not loaded"):
            look(str(tmp_path))


def test_a_loaded_driver_without_gpus_lists_none(tree: DriverTree) -> None:
    assert procfs.gpus(tree.proc) == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build  (x@y)\n", "570.86"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  590.48.01\nGCC version:  gcc 12.2.0\n", "590.48.01"),
        ("GCC version:  gcc version 12.2.0\n", None),
    ],
)
def test_the_driver_version_is_found_in_both_kinds_of_banner(tree: DriverTree, text: str, version: str | None) -> None:
    tree.write("proc/driver/nvidia/version", text)

    assert procfs.driver_version(tree.proc) == version


def test_a_fifo_in_place_of_a_driver_file_is_refused_at_once(tree: DriverTree) -> None:
    os.unlink(f"{tree.proc}/driver/nvidia/version")
    os.mkfifo(f"{tree.proc}/driver/nvidia/version")

    with pytest.raises(UntrustedPathError, match="not a regular file"):
        procfs.driver_version(tree.proc)


@pytest.mark.parametrize(
    ("lines", "majors"),
    [
        ("195 nvidia-frontend\n234 nvidia-uvm\n506 nvidia-caps", Majors(195, 234, 506, 195)),
        ("195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n236 nvidia-caps\n511 nvidia-uvm", Majors(195, 511, 236, 195)),
        ("195 nvidia\n195 nvidiactl\n243 nvidia-nvlink\n244 nvidia-caps", Majors(195, None, 244, None)),
        ("195 nvidiactl\n234 nvidia-caps-imex-channels", Majors(195, None, None, None)),
        ("195 not-nvidia-frontend\nNot a valid line:", Majors(None, None, None, None)),
        (" 95 nvidia-frontend", Majors(95, None, None, 95)),
    ],
)
def test_majors_are_found_by_exact_name(tree: DriverTree, lines: str, majors: Majors) -> None:
    tree.write("proc/devices", f"Character devices:\n  1 mem\n{lines}\n\nBlock devices:\n  7 loop\n")

    assert procfs.majors(tree.proc) == majors


def test_a_block_major_of_the_same_name_is_not_taken(tree: DriverTree) -> None:
    tree.write("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n195 nvidia\n")

    assert procfs.majors(tree.proc).gpu is None


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n", NodeRules(0, 44, 0o660)),
        ("NVreg_DeviceFileMode: 438\nNVreg_ModifyDeviceFiles: 0\n", NodeRules(mode=0o666, modify=False)),
        ('ExcludedGpus: ""\n', NodeRules(0, 0, 0o666, True)),
    ],
)
def test_owner_and_mode_of_nodes_come_from_the_module_parameters(tree: DriverTree, text: str, rules: NodeRules) -> None:
    tree.write("proc/driver/nvidia/params", text)

    assert procfs.node_rules(tree.proc) == rules


def test_a_gpu_with_mig_instances_is_known_by_its_device_minor(tree: DriverTree) -> None:
    for path in ("mig/config", "mig/monitor", "gpu3/mig/gi1/access", "gpu3/mig/gi1/ci0/access"):
        tree.write(f"proc/driver/nvidia/capabilities/{path}", "DeviceFileMinor: 1\n")
    (tree.top / "proc/driver/nvidia/capabilities/gpu5/mig").mkdir(parents=True)

    assert procfs.mig_parents(tree.proc) == {3}
    assert procfs.access_paths(tree.proc) == ["gpu3/mig/gi1/access", "gpu3/mig/gi1/ci0/access"]
