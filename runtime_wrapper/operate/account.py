"""All that is known of one container: its last start, what came later, its claim, and how things are now."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import events, liveness, placement, policy, request, runtime_state, settings
from runtime_wrapper.book import Book
from runtime_wrapper.claim import Claim, devices_by_minor, is_called
from runtime_wrapper.engine import DIRECT
from runtime_wrapper.errors import GpulatchError, quoted
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.operate import diagnosis, event_log, probing, tables
from runtime_wrapper.operate.event_log import Event
from runtime_wrapper.pipeline import placement_rules


@dataclass(frozen=True, slots=True)
class Account:
    """What is known. `start` is the container's last start that gpulatch saw, `since` what happened to it later."""

    headline: str
    start: Event | None = None
    since: tuple[Event, ...] = ()
    claim: Claim | None = None
    now: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether gpulatch saw this container start, or sees it hold GPUs."""
        return self.start is not None or self.claim is not None

    def to_json(self) -> dict[str, Any]:
        """As JSON values; keys as in `schemas/explain.json`."""
        return {
            "headline": self.headline,
            "start": self.start,
            "since": list(self.since),
            "claimed": self.claim is not None,
            "now": list(self.now),
            "findings": list(self.findings),
        }


def of(text: str) -> Account:
    """The account of the container with this name, this id, or an id that begins so.

    Raises NoClaimError never, GpulatchError where the log or the ledger cannot be read, OSError.
    """
    log = event_log.read()
    inventory, driver = _inventory()
    book = Ledger().read(devices_by_minor(inventory) if inventory else {})
    key = _find(text, log.events, book)
    host = [*driver, *diagnosis.of_host(inventory)]
    if log.damaged:
        host.append(f"{log.damaged} lines of the event log are damaged and left out")
    if key is None:
        return Account(f"gpulatch knows no container {quoted(text)}", findings=(*_unseen(text, log.events), *host))
    own = [event for event in log.events if _key(event) == key]
    starts = [event for event in own if event["kind"] in events.STARTS]
    start = starts[-1] if starts else None
    since = own[own.index(start) + 1 :] if start else own
    claim = next((one for one in book.claims if (one.id, one.root) == key), None)
    found = [*_findings(start, inventory), *host]
    if len(starts) > 1:
        found.append(f"{len(starts) - 1} earlier starts of this container are in {events.DIRECTORY}")
    now = _now(key, start, claim, book, inventory)
    return Account(_headline(key, start, claim), start, tuple(since), claim, tuple(now), tuple(found))


def in_words(event: Event) -> str:
    """One later event as people read it."""
    gpus = ",".join(str(device["index"]) for device in event["devices"])
    words = {
        events.ENDED: f"was seen to have ended: GPUs {gpus} are free again",
        events.FOUND: f"was found running with GPUs {gpus} and booked as {event['policy']}",
        events.RELEASED: f"GPUs {gpus} were released by hand: it keeps its access, the book forgets it",
    }
    return f"{tables.moment(event['time'])} UTC: {words.get(event['kind'], event['kind'])}"


def _inventory() -> tuple[Inventory | None, list[str]]:
    """The host's GPUs, or why they cannot be seen."""
    try:
        return probing.look(), []
    except GpulatchError as error:
        return None, [str(error)]


Key = tuple[str, str]


def _key(event: Event) -> Key | None:
    container = event["container"]
    return (container["id"], container["root"]) if container else None


def _find(text: str, log: Sequence[Event], book: Book) -> Key | None:
    """The container meant: by name, then id, then the beginning of an id; of several the one seen last."""
    claims = [((claim.id, claim.root), claim.name) for claim in reversed(book.claims)]
    seen = [(key, event["container"]["name"]) for event in reversed(log) if (key := _key(event))]
    known = [*seen, *claims]
    by_id = [key for key, _ in known if key[0] == text]
    by_name = [key for key, name in known if is_called(text, name)]
    by_beginning = [key for key, _ in known if text and key[0].startswith(text)]
    return next(iter([*by_id, *by_name, *by_beginning]), None)


def _headline(key: Key, start: Event | None, claim: Claim | None) -> str:
    container = start["container"] if start else None
    name = claim.container if claim else None
    engine = (container or {}).get("engine") or (claim.engine if claim else "")
    shown = name or (f"{container['name']} ({key[0][:12]})" if container and container["name"] else key[0])
    through = ", not started by gpulatch"
    if container:
        through = f", runtime {container['runtime']} on {container['low_level']}"
    by = f"engine {engine}" if engine not in ("", DIRECT) else "started without an engine"
    return f"Container {shown}, {by}{through}"


def _now(key: Key, start: Event | None, claim: Claim | None, book: Book, inventory: Inventory | None) -> list[str]:
    if claim:
        gpus = ",".join(str(device.index) for device in claim.devices)
        states = {
            liveness.STARTING: "is being started",
            liveness.RUNNING: "is running",
            liveness.LEFTOVER: "has ended, and processes of it are left in its cgroup",
        }
        observed = ", as observe mode would have it: nobody is hindered" if claim.observed else ""
        return [f"it {states[claim.stage]} and holds GPUs {gpus} ({claim.policy}){observed}"]
    state = runtime_state.read(key[1], key[0], lambda raw: True)
    lines = ["it is running and holds no GPU" if state and state.init.alive() else "it is not running"]
    if start and start["kind"] == events.REFUSED and start["request"] and inventory:
        lines.append(_asked_again(start, book, inventory))
    return lines


def _asked_again(start: Event, book: Book, inventory: Inventory) -> str:
    """What would become of a refused request now."""
    text = start["request"]
    place = next((said["place"] for said in start["said"] if said["verdict"] == policy.COUNTS), "the same request")
    if len(text) >= events.MAX_TEXT:
        return "its request is too long for the event log to say what it would get now"
    try:
        wanted = request.parse(text, place)
        if wanted is None:
            return "asked again now, it asks for no GPU"
        rules = placement_rules(settings.load(start["container"]["runtime"]))
        offer = placement.choose(wanted, inventory, book.holders(inventory), rules)
    except GpulatchError as error:
        same = str(error) == start["error"]["message"]
        return "asked again now, it would be refused for the same reason" if same else f"asked again now: {error}"
    return f"asked again now, it would get GPUs {','.join(str(gpu.index) for gpu in offer.gpus)}: start it again"


def _findings(start: Event | None, inventory: Inventory | None) -> list[str]:
    """What has changed under a container since its start."""
    if start is None:
        return []
    found = diagnosis.settings_since(start["time"])
    if inventory:
        there = {gpu.pci for gpu in inventory.gpus}
        gone = [str(device["index"]) for device in start["devices"] if device["pci"] not in there]
        found += [f"GPUs {','.join(gone)} of it are gone from this host"] if gone else []
    return found


def _unseen(text: str, log: Sequence[Event]) -> list[str]:
    """Why gpulatch may never have heard of a container."""
    docker = diagnosis.asked_docker(text)
    if docker is None:
        since = f"since {tables.moment(log[0]['time'])} UTC" if log else "yet"
        return [f"no start of it was seen {since}, and Docker knows none: its engine did not get so far as to call us"]
    runtime = (docker.get("HostConfig") or {}).get("Runtime")
    error = (docker.get("State") or {}).get("Error")
    lines = [f"Docker has it with the runtime {quoted(runtime)}, which did not call gpulatch for it"]
    lines += [f"Docker says of its last start: {error}"] if error else []
    return [*lines, "start it with --runtime gpulatch, or make gpulatch Docker's default runtime"]
