"""`gpulatch report`: sums the event log up, above all what observe mode would have done, before a host is switched."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from runtime_wrapper import events, trust
from runtime_wrapper.operate import event_log, tables
from runtime_wrapper.operate.event_log import Event

SAME, OTHER, UNKNOWN = "same", "other", "unknown"
_EXAMPLES = 5


@dataclass(slots=True)
class Summary:
    """What one runtime name's starts came to. `compared` counts how our choice relates to the engine's."""

    runtime: str
    kinds: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; keys as in `schemas/report.json`."""
        return {
            "runtime": self.runtime,
            "starts": sum(self.kinds.values()),
            "kinds": {kind: self.kinds[kind] for kind in events.STARTS},
            "compared": {how: self.compared[how] for how in (SAME, OTHER, UNKNOWN)},
            "refusals": dict(self.errors.most_common()),
        }


@dataclass(frozen=True, slots=True)
class Clash:
    """A GPU that the engine gave to a container while another that it gave it to was still there."""

    time: str
    container: str
    gpus: tuple[int, ...]
    holder: str

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"time": self.time, "container": self.container, "gpus": list(self.gpus), "holder": self.holder}


@click.command()
@click.option("--runtime", "runtime_name", help="Only this runtime name's starts.")
@click.option("--json", "as_json", is_flag=True, help="Print the sums as JSON (schema report.json).")
def report(runtime_name: str | None, as_json: bool) -> None:
    """Sum up what containers asked for and got, and in observe mode what gpulatch would have done.

    Exit code: 0, also where nothing would have been refused or given twice; 1 the log cannot be read.
    """
    trust.require_root_of_host(trust.STATE_DIR)
    log = [event for event in event_log.read().events if event["container"]]
    log = [event for event in log if runtime_name in (None, event["container"]["runtime"])]
    found, clashes = summaries(log), twice(log)
    if as_json:
        period = [log[0]["time"], log[-1]["time"]] if log else None
        data = {
            "period": period,
            "runtimes": [one.to_json() for one in found],
            "twice": [one.to_json() for one in clashes],
        }
        click.echo(json.dumps(data, indent=2))
    elif not found:
        click.echo("The event log has no start to sum up.")
    else:
        _tell(log, found, clashes)


def summaries(log: Iterable[Event]) -> list[Summary]:
    """The starts of each runtime name."""
    found: dict[str, Summary] = {}
    for event in log:
        if event["kind"] not in events.STARTS:
            continue
        name = event["container"]["runtime"]
        summary = found.setdefault(name, Summary(name))
        summary.kinds[event["kind"]] += 1
        if event["error"]:
            summary.errors[event["error"]["code"]] += 1
        if event["kind"] == events.OBSERVED:
            summary.compared[_compared(event)] += 1
    return [found[name] for name in sorted(found)]


def twice(log: Iterable[Event]) -> list[Clash]:
    """The GPUs that the engine gave to two at once, as observe mode saw it; an end is seen at a later start only."""
    there: dict[tuple[str, str], tuple[str, set[int]]] = {}
    clashes = []
    for event in log:
        container = event["container"]
        key, name = (container["id"], container["root"]), container["name"] or container["id"][:12]
        there.pop(key, None)
        if event["kind"] not in (events.OBSERVED, events.PASSED):
            continue
        mine = set(event["engine_gpus"] or ())
        for holder, theirs in there.values():
            if both := mine & theirs:
                clashes.append(Clash(event["time"], name, tuple(sorted(both)), holder))
        there[key] = name, mine
    return clashes


def _compared(event: Event) -> str:
    if event["engine_gpus"] is None:
        return UNKNOWN
    return SAME if sorted(device["index"] for device in event["devices"]) == event["engine_gpus"] else OTHER


def _tell(log: Sequence[Event], found: Sequence[Summary], clashes: Sequence[Clash]) -> None:
    click.echo(f"Starts from {tables.moment(log[0]['time'])} to {tables.moment(log[-1]['time'])} UTC")
    columns = (
        "runtime",
        "starts",
        "no GPU",
        "given",
        "refused",
        "observed",
        "would be refused",
        "as the engine",
        "other GPUs",
    )
    rows = [
        (
            one.runtime,
            sum(one.kinds.values()),
            one.kinds[events.NO_GPU],
            one.kinds[events.GRANTED],
            one.kinds[events.REFUSED],
            one.kinds[events.OBSERVED] + one.kinds[events.PASSED],
            one.kinds[events.PASSED],
            one.compared[SAME],
            one.compared[OTHER],
        )
        for one in found
    ]
    tables.show("Starts", columns, rows)
    _tell_refusals(log)
    if clashes:
        click.echo(f"\nThe engine gave a GPU to two at once {tables.counted(len(clashes), 'time')}, for example:")
    for one in clashes[:_EXAMPLES]:
        told = f"{one.container} got {tables.gpus(one.gpus)}, which {one.holder} had"
        click.echo(tables.printable(f"  {tables.moment(one.time)} UTC: {told}"))


def _tell_refusals(log: Sequence[Event]) -> None:
    """The last refusal of each code, with how many there were."""
    last = {event["error"]["code"]: event for event in log if event["error"]}
    counts = Counter(event["error"]["code"] for event in log if event["error"])
    for code, number in counts.most_common(_EXAMPLES):
        container = last[code]["container"]
        name = container["name"] or container["id"][:12]
        click.echo(tables.printable(f"\n{code}, {tables.counted(number, 'time')}, the last for {name}:"))
        click.echo(tables.printable(f"  {last[code]['error']['message']}"))
