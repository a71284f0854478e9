"""Which of a container's wishes counts on this host, by the administrator's settings.

Pure. The first source in the settings' order that says anything wins; an ignored one falls through to the next. `void`
ends the search, except that GPUs which the spec itself opens are a request whatever the variables say.
"""

from collections.abc import Sequence

from runtime_wrapper import request
from runtime_wrapper.errors import RequestError
from runtime_wrapper.request import EXCLUSIVE, MONITOR, Request
from runtime_wrapper.settings import Settings
from runtime_wrapper.sources import Wish

_VARIABLES = ("gpulatch_gpus", "nvidia_visible_devices")
_NODES = "nodes"


def choose(wishes: Sequence[Wish], settings: Settings, *, privileged: bool) -> Request | None:
    """The request that counts, or None when none does. Raises RequestError."""
    counting = [wish for wish in wishes if _counts(wish, settings, privileged)]
    order = (*settings.sources, _NODES)
    counting.sort(key=lambda wish: order.index(wish.source))
    void = False
    for wish in counting:
        wanted = request.parse(wish.text, wish.place) if not void or wish.source == _NODES else None
        if wanted is not None:
            _require_allowed(wanted, wish, settings)
            return wanted
        void = True
    return None


def _counts(wish: Wish, settings: Settings, privileged: bool) -> bool:
    if wish.source == _NODES:
        return True  # these GPUs are open anyway: not to book them would void what others hold
    if wish.source not in settings.sources:
        return False
    if wish.source in _VARIABLES and (
        settings.accept_env == "never" or (settings.accept_env == "privileged" and not privileged)
    ):
        return False
    lone = wish.source == "nvidia_visible_devices" and set(request.tokens_of(wish.text.lower())) == {"all"}
    return not (lone and settings.lone_all == "none")


def _require_allowed(wanted: Request, wish: Wish, settings: Settings) -> None:
    for policy, allowed, key in (
        (EXCLUSIVE, settings.allow_exclusive_from, "allow_exclusive_from"),
        (MONITOR, settings.allow_monitor_from, "allow_monitor_from"),
    ):
        if wanted.policy == policy and not wanted.none and wish.source not in allowed:
            why = f"this host lets no {wish.source} request have the policy {policy} ({key})"
            raise RequestError(f"policy {policy}", wanted.where, why, "ask with +policy=shared")
