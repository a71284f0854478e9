"""The CUDA and cuDNN that a container's image brings, and whether the driver of this host runs them.

What the image's variables say counts; where they name no CUDA, the file names of its libraries do. Decided by
`cuda_driver`'s tables; what they do not know refuses nothing. Nothing of the image is mounted or written: compat
libraries are found by the container itself, by `LD_LIBRARY_PATH` or its `ld.so.conf`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime_wrapper import cuda_driver, image_libraries, requirement
from runtime_wrapper.cuda_driver import Release
from runtime_wrapper.errors import RequirementError, quoted
from runtime_wrapper.requirement import DISABLE_VARIABLE, Facts

# Where an image says which CUDA, and which cuDNN, it brings; the first that is a version counts.
CUDA_VARIABLES = (requirement.LEGACY_VARIABLE, "NV_CUDA_CUDART_VERSION", "NV_CUDA_LIB_VERSION")
CUDNN_VARIABLES = ("NV_CUDNN_VERSION", "CUDNN_VERSION")

ANYWAY = f"or set {DISABLE_VARIABLE}=1 to start it all the same"

_CUDART = re.compile(r"libcudart\.so\.([0-9]+)(?:\.([0-9]+))?")
_CUDNN = re.compile(r"libcudnn[a-z_]*\.so\.([0-9]+)")


@dataclass(frozen=True, slots=True)
class Brought:
    """Something in the image that needs a driver: `least` is the lowest one, None when no table knows it."""

    what: str
    where: str
    least: str | None
    release: Release | None = None


def check(environment: Mapping[str, str], root: str, facts: Sequence[Facts]) -> list[str]:
    """What was checked, a line each; `facts` one for each kind of GPU. Raises RequirementError."""
    found, driver = brought(environment, root), facts[0].driver
    if driver is None or facts[0].cuda is None:
        return [f"{one.what}, {one.where}: could not be checked, the driver's branch is not known" for one in found]
    compat = image_libraries.compat_driver(root) if found else None
    notes = [_judge(one, driver, compat, facts) for one in found]
    return notes + ([_told(compat, driver, facts)] if compat else [])


def brought(environment: Mapping[str, str], root: str) -> list[Brought]:
    """What the image brings, as its variables say, else as its libraries are called."""
    cudas = [
        _cuda(release, at) for text, at in _said(environment, CUDA_VARIABLES) if (release := requirement.release(text))
    ]
    cudnns = [_cudnn(text.partition(".")[0], at) for text, at in _said(environment, CUDNN_VARIABLES)]
    return cudas[:1] + cudnns[:1] if cudas else _seen(image_libraries.cuda_libraries(root))


def _said(environment: Mapping[str, str], names: Sequence[str]) -> list[tuple[str, str]]:
    """What the variables say, each with its place."""
    return [(environment[name], f"env {name}={quoted(environment[name])}") for name in names if environment.get(name)]


def _seen(names: Sequence[str]) -> list[Brought]:
    """Of several versions of a library the one that needs the least: which of them is used is not known."""
    cudas = [_cuda((int(m[1]), int(m[2] or 0)), name) for name in names if (m := _CUDART.match(name))]
    cudnns = [_cudnn(m[1], name) for name in names if (m := _CUDNN.match(name))]
    return [min(kind, key=_needs) for kind in (cudas, cudnns) if kind]


def _needs(one: Brought) -> tuple[int, ...]:
    return requirement.version(one.least or "0") or ()


def _cuda(release: Release, where: str) -> Brought:
    return Brought(f"CUDA {cuda_driver.text(release)} of the image", where, cuda_driver.least(release), release)


def _cudnn(major: str, where: str) -> Brought:
    return Brought(f"cuDNN {major[:8]} of the image", where, cuda_driver.least_of_cudnn(major))


def _judge(one: Brought, driver: str, compat: str | None, facts: Sequence[Facts]) -> str:
    newest, said = cuda_driver.newest(driver), f"{one.what}, {one.where}"
    if one.least is None:
        return f"{said}: could not be checked, the driver that it needs is not known"
    if not cuda_driver.is_older(driver, one.least):
        by_minor = one.release and newest and one.release > newest
        return f"{said}: runs on driver {driver}" + (", by minor-version compatibility" if by_minor else "")
    helps = compat is not None and not cuda_driver.is_older(compat, one.least)
    if helps and _works(str(compat), driver, facts) is not False:
        return f"{said}: needs driver {one.least}, or compat libraries as this image has them"
    why = f"needs driver {one.least} or newer, this host has {driver}, which runs CUDA up to {facts[0].cuda}"
    if compat:
        why += f", and {_told(compat, driver, facts)}" if helps else f", and its compat libraries {compat} are too old"
    raise RequirementError(one.what, one.where, why, way_out(one.least, facts[0].cuda))


def way_out(least: str | None, cuda: str | None) -> str:
    """What to do: another driver or another image, or not to heed it."""
    newer = f"install driver {least} or newer" if least else "install a newer driver"
    older = f"use an image for CUDA {cuda} or older" if cuda else "use an older image"
    return f"{newer}, {older}, {ANYWAY}"


def _works(compat: str, driver: str, facts: Sequence[Facts]) -> bool | None:
    """Whether compat libraries work on every GPU: no if not on one, and unknown if that is not known of one."""
    works = {cuda_driver.compat(compat, driver, one.brands).works for one in facts}
    return None if works == {True, None} else False if False in works else works.pop()


def _told(compat: str, driver: str, facts: Sequence[Facts]) -> str:
    """The choice about the image's compat libraries, in words."""
    works = _works(compat, driver, facts)
    why = next(found.why for one in facts if (found := cuda_driver.compat(compat, driver, one.brands)).works is works)
    choice = {True: "can be used", False: "must not be used", None: "may work"}[works]
    return f"its compat libraries {compat} {choice}: {why}"
