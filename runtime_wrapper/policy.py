"""Which of a container's wishes counts on this host, by the administrator's settings.

Pure. The first source in the settings' order that says anything wins; an ignored one falls through to the next. `void`
ends the search, except that GPUs which the spec itself opens are a request whatever the variables say.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime_wrapper import request
from runtime_wrapper.errors import RequestError
from runtime_wrapper.request import EXCLUSIVE, MONITOR, Request
from runtime_wrapper.settings import Settings
from runtime_wrapper.sources import VARIABLES, Wish

_NODES, _SWARM = "nodes", "swarm"
_OF_THE_IMAGE = ("nvidia_visible_devices", "legacy_image")

COUNTS = "counts"
VOID = "counts, and says that this is no GPU container"
NOT_REACHED = "not reached: an earlier place counts"


@dataclass(frozen=True, slots=True)
class Heard:
    """One wish and what became of it."""

    wish: Wish
    verdict: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What counts, None when nothing does, and every wish in the order in which they were heard."""

    wanted: Request | None
    heard: tuple[Heard, ...]
    error: RequestError | None = None

    def request(self) -> Request | None:
        """The request that counts. Raises the RequestError that it makes."""
        if self.error:
            raise self.error
        return self.wanted


def choose(wishes: Sequence[Wish], settings: Settings, *, privileged: bool) -> Choice:
    """The request that counts."""
    order = (*settings.sources, _NODES)
    judged = [(wish, _left_out(wish, settings, privileged)) for wish in wishes]
    left_out = [Heard(wish, why) for wish, why in judged if why]
    counting = _one_of_swarms([wish for wish, why in judged if not why])
    counting.sort(key=lambda wish: order.index(wish.source))
    heard: list[Heard] = []
    wanted, error, void = None, None, False
    for wish in counting:
        if wanted or error or (void and wish.source != _NODES):
            heard.append(Heard(wish, NOT_REACHED))
            continue
        try:
            wanted = _request(wish, settings)
        except RequestError as refused:
            error = refused
        void = not (wanted or error)
        heard.append(Heard(wish, VOID if void else COUNTS))
    return Choice(wanted, (*heard, *left_out), error)


def _one_of_swarms(wishes: Sequence[Wish]) -> list[Wish]:
    """The wishes, those of Swarm's variables as one: together they are what the task got."""
    parts = [wish for wish in wishes if wish.source == _SWARM]
    if len(parts) < 2:
        return list(wishes)
    names = ", ".join(wish.place.removeprefix("env ") for wish in parts)
    whole = Wish(_SWARM, f"env {names}", ",".join(wish.text for wish in parts))
    return [whole, *(wish for wish in wishes if wish.source != _SWARM)]


def _request(wish: Wish, settings: Settings) -> Request | None:
    """The request of a wish that counts, None for `void`. Raises RequestError."""
    wanted = request.parse(wish.text, wish.place)
    if wanted is not None:
        _require_allowed(wanted, wish, settings)
        wanted = replace(wanted, dialect=wish.source)
    return wanted


def _left_out(wish: Wish, settings: Settings, privileged: bool) -> str | None:
    """Why a wish does not count on this host; None when it does."""
    if wish.source == _NODES:
        return None  # these GPUs are open anyway: not to book them would void what others hold
    if wish.source not in settings.sources:
        return f"left out: the setting sources does not name {wish.source}"
    if wish.source in VARIABLES and settings.accept_env == "never":
        return "left out: no variable counts here (accept_env = never)"
    if wish.source in VARIABLES and settings.accept_env == "privileged" and not privileged:
        return "left out: variables count only with CAP_SYS_ADMIN (accept_env = privileged)"
    if wish.source == _SWARM and wish.place.removeprefix("env ") not in settings.swarm_resources:
        return "left out: the setting swarm_resources does not name this variable"
    if wish.source in _OF_THE_IMAGE and settings.lone_all == "none" and request.is_lone_all(wish.text):
        return "left out: all by itself is taken for the image's word (lone_all = none); GPULATCH_GPUS=all would count"
    return None


def _require_allowed(wanted: Request, wish: Wish, settings: Settings) -> None:
    for policy, allowed, key in (
        (EXCLUSIVE, settings.allow_exclusive_from, "allow_exclusive_from"),
        (MONITOR, settings.allow_monitor_from, "allow_monitor_from"),
    ):
        if wanted.policy == policy and not wanted.none and wish.source not in allowed:
            why = f"this host lets no {wish.source} request have the policy {policy} ({key})"
            raise RequestError(f"policy {policy}", wanted.where, why, "ask with +policy=shared")
