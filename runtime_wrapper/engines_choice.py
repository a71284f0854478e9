"""Which GPUs a container gets without gpulatch: what its engine, or NVIDIA's own runtime or hook, makes of its spec.

Pure; for observe mode, which compares. Count requests are ids already when a runtime sees them: dockerd writes the
first N into the variable, or their nodes into the spec.
"""

from runtime_wrapper import placement, request, sources, spec, variables
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.inventory import Inventory


def gpus(data: spec.Json, inventory: Inventory, *, delegate: bool) -> list[int] | None:
    """The GPUs by index, None where that cannot be told. `delegate`: NVIDIA's own runtime comes next."""
    minors = sources.opened(data)
    found = {gpu.index for gpu in inventory.gpus if gpu.minor in minors}
    if sources.unlimited(data):
        return [gpu.index for gpu in inventory.gpus]
    value = spec.environment(data).get(variables.NVIDIA)
    if value and (delegate or sources.has_nvidia_hook(data)):
        try:
            wanted = request.parse(value, variables.NVIDIA)
            found |= {gpu.index for gpu in placement.asked_for(wanted, inventory)} if wanted else set()
        except GpulatchError:
            return None  # an id that NVIDIA's runtime may read in another way
    return sorted(found)
