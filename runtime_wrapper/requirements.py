"""Whether the driver and the GPUs of this host are what a container's image needs: decided before its spec is written.

Imported only for a container that says one of `pipeline`'s REQUIREMENT_VARIABLES. First the image's own expressions,
each for every GPU granted; then the CUDA that the image brings (`image_cuda`). What is not known refuses nothing: a
note says that it could not be checked.
"""

import os
import re
from collections.abc import Sequence

from runtime_wrapper import cuda_driver, gpu_models, image_cuda, requirement, spec
from runtime_wrapper.errors import MAX_QUOTED, NoDriverError, RequirementError, quoted
from runtime_wrapper.inventory import Gpu
from runtime_wrapper.probe import procfs
from runtime_wrapper.requirement import DISABLE_VARIABLE, Facts, Need, NotAnExpressionError

_ASKED_CUDA = re.compile(r"cuda>=?([0-9]{1,4})(?:\.([0-9]{1,4}))?", re.IGNORECASE)

MAX_TEXT = 16_384  # the longest of NVIDIA's own images have some 3,000


def check(data: spec.Json, bundle: str, gpus: Sequence[Gpu], driver: str | None) -> list[str]:
    """What was checked, a line each. Raises RequirementError for a container that this host cannot meet."""
    environment = spec.environment(data)
    if requirement.disabled(environment):
        return [f"what the image requires was not checked: {DISABLE_VARIABLE} is set"]
    facts = facts_of(gpus, driver)
    # What an old image's CUDA_VERSION stands for may also be met by compatibility: `image_cuda` decides that.
    notes = [judge(need, facts) for need in requirement.needs(environment) if not need.legacy]
    root = os.path.join(bundle, str(spec.section(data, "root").get("path", "")))
    return notes + image_cuda.check(environment, root, facts)


def driver_here() -> str | None:
    """The version of the loaded driver, which the snapshot of the GPUs has too; None when it is not known."""
    try:
        return procfs.driver_version()
    except NoDriverError:
        return None


def facts_of(gpus: Sequence[Gpu], driver: str | None) -> list[Facts]:
    """What is known of the host, once for each kind of GPU; without a GPU what is known of the driver."""
    newest = cuda_driver.newest(driver)
    cuda = cuda_driver.text(newest) if newest else None
    kinds = {(gpu_models.arch(gpu.model), gpu_models.brands(gpu.model)): None for gpu in gpus}
    return [Facts(cuda, driver, arch, brands) for arch, brands in kinds or {(None, None): None}]


def judge(need: Need, facts: Sequence[Facts]) -> str:
    """How an expression is met. Raises RequirementError when it is not, or is no expression."""
    what, where = f"requirement {quoted(need.text.strip())}", f"env {need.variable[:MAX_QUOTED]}"
    if len(need.text) > MAX_TEXT:
        raise RequirementError(what, where, f"is longer than {MAX_TEXT} characters", image_cuda.ANYWAY)
    unchecked: dict[str, None] = {}
    for one in facts:
        try:
            verdict = requirement.evaluate(need.text, one)
        except NotAnExpressionError as error:
            why = f"{quoted(error)} is no condition on {', '.join(requirement.PROPERTIES)}"
            raise RequirementError(what, where, why, f'write it as in "cuda>=12.4", {image_cuda.ANYWAY}') from error
        if not verdict.satisfied:
            raise RequirementError(what, where, f"not met, this host has {present(one)}", _way_out(need, one))
        unchecked |= dict.fromkeys(verdict.unchecked)
    if unchecked:
        return f"{what}, {where}: could not be checked, not known of this host: {', '.join(unchecked)}"
    return f"{what}, {where}: met by {', and '.join(present(one) for one in facts)}"


def present(facts: Facts) -> str:
    """What a host has, in words."""
    brand = " or ".join(sorted(facts.brands or ())) or "unknown"
    cuda = f"which runs CUDA up to {facts.cuda}" if facts.cuda else "CUDA unknown"
    return f"driver {facts.driver or 'unknown'}, {cuda}, GPU brand {brand}, arch {facts.arch or 'unknown'}"


def _way_out(need: Need, facts: Facts) -> str:
    """The driver for the CUDA that is asked for, if that is known, or another image."""
    asked = _ASKED_CUDA.search(need.text)
    if not asked and "driver" not in need.text.lower():
        return f"ask for a GPU that meets it, {image_cuda.ANYWAY}"
    least = cuda_driver.least_native((int(asked[1]), int(asked[2] or 0))) if asked else None
    return image_cuda.way_out(least, facts.cuda)
