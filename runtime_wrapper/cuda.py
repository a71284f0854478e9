"""`CUDA_VISIBLE_DEVICES`: what CUDA sees inside a container. It never changes the grant; the device nodes isolate.

Pure. Numbers inside count the container's own GPUs in PCI order, which `CUDA_DEVICE_ORDER=PCI_BUS_ID` makes CUDA follow
(CUDA C++ Programming Guide, "CUDA Environment Variables").
"""

from collections.abc import Sequence

from runtime_wrapper.errors import CudaVisibleDevicesError, quoted
from runtime_wrapper.inventory import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"


def visible_devices(wanted: str | None, gpus: Sequence[Gpu]) -> str:
    """The value for the container: all of its GPUs, or the user's own choice among them.

    A user's integers are positions in the grant; when one is out of range but all are host indices of granted GPUs they
    are translated. UUIDs must be granted. Empty, `-1` and `NoDevFiles` hide every GPU and stay. Raises
    CudaVisibleDevicesError.
    """
    if wanted is None:
        return ",".join(str(position) for position in range(len(gpus)))
    tokens = [token.strip() for token in wanted.split(",")]
    if wanted.strip() in ("", "NoDevFiles") or tokens[0] == "-1" or not gpus:
        return wanted
    if all(_is_number(token) for token in tokens):
        return _numbers(wanted, [int(token) for token in tokens], gpus)
    for token in tokens:
        _require_granted(token, wanted, gpus)
    return wanted


def _numbers(wanted: str, numbers: Sequence[int], gpus: Sequence[Gpu]) -> str:
    if all(number < len(gpus) for number in numbers):
        return wanted
    in_pci_order = [gpu.index for gpu in sorted(gpus, key=lambda gpu: gpu.pci)]
    if all(number in in_pci_order for number in numbers):
        return ",".join(str(in_pci_order.index(number)) for number in numbers)
    inside = f"0-{len(gpus) - 1}" if len(gpus) > 1 else "0"
    why = f"the container's GPUs are numbered {inside} inside (host indices {_indices(gpus)})"
    raise _error(wanted, why)


def _require_granted(token: str, wanted: str, gpus: Sequence[Gpu]) -> None:
    if not token.startswith("GPU-") or sum((gpu.uuid or "").startswith(token) for gpu in gpus) != 1:
        granted = ", ".join(gpu.key for gpu in gpus)
        raise _error(wanted, f"{quoted(token)} names none of the container's GPUs ({granted})")


def _is_number(token: str) -> bool:
    return token.isascii() and token.isdecimal() and len(token) < 7


def _indices(gpus: Sequence[Gpu]) -> str:
    return ",".join(str(gpu.index) for gpu in gpus)


def _error(wanted: str, why: str) -> CudaVisibleDevicesError:
    return CudaVisibleDevicesError(
        f"{VARIABLE}={quoted(wanted)}", "process.env", why, f"leave {VARIABLE} out or name granted GPUs"
    )
