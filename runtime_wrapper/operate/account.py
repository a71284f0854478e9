"""All that is known of one container: its last start, what came later, its claim, and how things are now."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import events, trust
from runtime_wrapper.book import Book
from runtime_wrapper.claim import Claim, devices_by_minor, is_called
from runtime_wrapper.engine import DIRECT
from runtime_wrapper.errors import GpulatchError, LiveClaimError, quoted
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.operate import diagnosis, docker_cli, event_log, outlook, probing, tables
from runtime_wrapper.operate.event_log import Event, Log

Key = tuple[str, str]
"""Container id and state root."""


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
    """The account of the container with this id, this name, or an id that begins so.

    Raises NotRootError, and what stands against reading the ledger. A log that cannot be read is told as a finding.
    """
    trust.require_root_of_host(trust.STATE_DIR)
    log = _log()
    inventory, driver = _inventory()
    book = Ledger().read(devices_by_minor(inventory) if inventory else {})
    known = _known(log, book)
    host = [*driver, *diagnosis.of_host(inventory)]
    if log.damaged:
        host.append(f"{tables.counted(log.damaged, 'line')} of the event log cannot be read and left out")
    keys = _fitting(text, known)
    if not keys:
        docker = docker_cli.container(text)
        keys = _fitting(docker.id, known) if docker.id else []  # Docker knows renamed ones
        if not keys:
            unseen = docker_cli.unseen(docker, log.events[0]["time"] if log.events else None)
            return Account(f"gpulatch knows no container {quoted(text)}", findings=(*unseen, *host))
    return _account(keys[0], log, book, inventory, [*_namesakes(text, keys, known), *host])


def _account(key: Key, log: Log, book: Book, inventory: Inventory | None, host: Sequence[str]) -> Account:
    own = [event for event in log.events if _key(event) == key]
    claim = next((one for one in book.claims if (one.id, one.root) == key), None)
    starts = [event for event in own if event["kind"] in events.STARTS]
    start = _start(starts, claim)
    since = own[own.index(start) + 1 :] if start else own
    findings = [*outlook.changed(start, inventory), *host]
    if len(starts) > 1:
        earlier = tables.counted(len(starts) - 1, "other start")
        findings.append(f"{earlier} of this container in {events.DIRECTORY}")
    now = outlook.now(key, start, claim, book, inventory)
    return Account(_headline(key, start, claim), start, tuple(since), claim, tuple(now), tuple(findings))


def in_words(event: Event) -> str:
    """One later event as people read it."""
    gpus = tables.gpus([device["index"] for device in event["devices"]])
    words = {
        events.ENDED: f"was seen to have ended: {gpus} free again",
        events.FOUND: f"was found running with {gpus} and booked as {event['policy']}",
        events.RELEASED: f"{gpus} released by hand: it keeps its access, the book forgets it",
    }
    told = words.get(event["kind"]) or (event["error"] or {}).get("message") or event["kind"]
    return f"{tables.moment(event['time'])} UTC: {told}"


def _log() -> Log:
    try:
        return event_log.read()
    except (GpulatchError, OSError):
        return Log((), 0)  # `event_log.problems` says why


def _inventory() -> tuple[Inventory | None, list[str]]:
    """The host's GPUs, or why they cannot be seen."""
    try:
        return probing.look(), []
    except GpulatchError as error:
        return None, [str(error)]


def _key(event: Event) -> Key | None:
    container = event["container"]
    return (container["id"], container["root"]) if container else None


def _known(log: Log, book: Book) -> list[tuple[Key, str | None]]:
    """Every container with its name, the one seen last first."""
    seen = [(key, event["container"]["name"]) for event in reversed(log.events) if (key := _key(event))]
    return [*seen, *(((claim.id, claim.root), claim.name) for claim in reversed(book.claims))]


def _fitting(text: str, known: Sequence[tuple[Key, str | None]]) -> list[Key]:
    """The containers that can be meant, the one seen last first: by id, else by name, else by an id's beginning."""
    by_id = [key for key, _ in known if key[0] == text]
    by_name = [key for key, name in known if is_called(text, name)]
    by_beginning = [key for key, _ in known if text and key[0].startswith(text)]
    return list(dict.fromkeys(by_id or by_name or by_beginning))


def _namesakes(text: str, keys: Sequence[Key], known: Sequence[tuple[Key, str | None]]) -> list[str]:
    if len(keys) == 1:
        return []
    names = dict(reversed(known))
    others = ", ".join(f"{names[key] or key[0]} ({key[0][:12]})" for key in keys[1:4])
    return [f"of {len(keys)} containers that {quoted(text)} can mean this is the one seen last; also: {others}"]


def _start(starts: Sequence[Event], claim: Claim | None) -> Event | None:
    """The start to tell of: the last, but for one that was refused because the container runs already."""
    for start in reversed(starts):
        refused_as_live = (start["error"] or {}).get("code") == LiveClaimError.code
        if not (claim and refused_as_live):
            return start
    return starts[-1] if starts else None


def _headline(key: Key, start: Event | None, claim: Claim | None) -> str:
    container = start["container"] if start else None
    name = claim.container if claim else None
    engine = (container or {}).get("engine") or (claim.engine if claim else "")
    shown = name or (f"{container['name']} ({key[0][:12]})" if container and container["name"] else key[0])
    by = f"engine {engine}" if engine not in ("", DIRECT) else "started without an engine"
    if container:
        through = f"runtime {container['runtime']} on {container['low_level']}"
    elif claim and claim.runtime:
        through = f"runtime {claim.runtime}, its start is no longer in the event log"
    else:
        through = "not started by gpulatch"
    return f"Container {shown}, {by}, {through}"
