"""From a spec to the edited spec on a machine that is only described: the pipeline without its ends."""

from typing import Any

from runtime_wrapper import devices, edits, placement, policy, sources
from runtime_wrapper.devices import Numbers
from runtime_wrapper.edits import Grant
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.placement import Holders, Offer
from runtime_wrapper.request import Request
from runtime_wrapper.settings import Settings

OWN_ID = "a" * 64


def wanted(data: dict[str, Any], settings: Settings | None = None, **more: Any) -> Request | None:
    """What counts of all that a spec asks for."""
    wishes = sources.wishes(data, OWN_ID, **more)
    return policy.choose(wishes, settings or Settings(), privileged=sources.privileged(data)).request()


def resolved(
    data: dict[str, Any], host: Inventory, settings: Settings | None = None, holders: Holders | None = None
) -> tuple[Offer, dict[str, Any]] | None:
    """The offer and the spec with it; None where no GPU is asked for."""
    found = wanted(data, settings)
    if found is None:
        return None
    offer = Offer((), found.policy, ()) if found.none else placement.choose(found, host, holders or {})
    numbers = Numbers.assumed()
    nodes = devices.nodes(offer.gpus, edits.capabilities(data), numbers) if offer.gpus else ()
    return offer, edits.apply(data, Grant(offer.gpus, nodes, numbers, dialect=found.dialect))


def gpu_minors(edited: dict[str, Any]) -> list[int]:
    """The minors of the GPU nodes in a spec."""
    found = edited.get("linux", {}).get("devices") or []
    return [entry["minor"] for entry in found if entry["major"] == 195 and entry["minor"] < 254]
