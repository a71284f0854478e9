"""`gpulatch explain`: what was asked for a container, what it got and why, and what has happened since; or a code."""

import json
import re
import sys
from collections.abc import Sequence

import click

from runtime_wrapper import errors, events
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.operate import account, tables
from runtime_wrapper.operate.account import Account
from runtime_wrapper.operate.event_log import Event
from runtime_wrapper.sources import SOURCES

_CODE = re.compile(r"GL-\d{4}", re.IGNORECASE)
_OUTCOMES = {
    "granted": "it got its GPUs",
    "refused": "it was refused",
    "no-gpu": "it asked for no GPU that counts",
    "observed": "observe mode: decided only, its spec was left as it was",
    "passed": "observe mode: it would have been refused, and was let pass",
}


@click.command()
@click.argument("what", metavar="CONTAINER|GL-xxxx")
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON (schema explain.json).")
def explain(what: str, as_json: bool) -> None:
    """Explain a container, by its name, id or how the id begins, or an error code.

    Exit code: 0 explained, 1 not known here, 2 bad usage.
    """
    if _CODE.fullmatch(what):
        sys.exit(_explain_code(what, as_json))
    found = account.of(what)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _tell(found)
    sys.exit(0 if found.known else 1)


def _explain_code(code: str, as_json: bool) -> int:
    kind = errors.by_code(code)
    if kind is None:
        known = ", ".join(sorted(one.code for one in GpulatchError.__subclasses__()))
        click.echo(f"gpulatch: {code} is no code of this version; those are: {known}", err=True)
        return 1
    meaning = " ".join(str(kind.__doc__).split())
    if as_json:
        click.echo(json.dumps({"code": kind.code, "meaning": meaning, "remedy": kind.remedy}, indent=2))
    else:
        click.echo(f"{kind.code}: {meaning}\n\nWhat to do: {kind.remedy}")
    return 0


def _tell(found: Account) -> None:
    _line(found.headline)
    if start := found.start:
        _tell_asked(start)
        _tell_decision(start)
        _section("Changed in its spec", start["edits"])
        _section("Noted", start["notes"])
        phases = ", ".join(f"{name} {duration:g}" for name, duration in start["phases_ms"].items())
        _section("Time, in ms", [phases])
    _section("Since then", [account.in_words(event) for event in found.since])
    _section("Now", found.now)
    _section("To know" if found.known else "Why that may be", found.findings)


def _tell_asked(start: Event) -> None:
    """Every place where a container can ask, and what became of what it says there."""
    _line("\nAsked")
    if start["error"] and not start["said"]:
        _line("  not looked at: it was refused before")
        return
    for said in start["said"]:
        _line(f'  {said["place"]}: "{said["text"]}": {said["verdict"]}')
    told = [said["source"] for said in start["said"]]
    if silent := [place for source, (place, _) in SOURCES.items() if source not in told]:
        _line(f"  says nothing: {', '.join(silent)}")


def _tell_decision(start: Event) -> None:
    outcome = _OUTCOMES.get(start["kind"], start["kind"])
    if start["kind"] == events.GRANTED and not start["devices"]:
        outcome = "it got none, as asked"
    _line(f"\nDecided at {tables.moment(start['time'])} UTC: {outcome}")
    for device in start["devices"]:
        _line(f"  GPU {device['index']}  {device['uuid'] or '-'}  {device['pci']}  {start['policy']}")
    for reason in start["reasons"]:
        _line(f"  because: {reason}")
    if start["error"]:
        _line(f"  {start['error']['message']}")
        _line(f"  more: gpulatch explain {start['error']['code']}")


def _section(title: str, lines: Sequence[str]) -> None:
    if lines:
        _line(f"\n{title}")
        for line in lines:
            _line(f"  {line}")


def _line(text: str) -> None:
    """Text of a container may be in it."""
    head = "\n" if text.startswith("\n") else ""
    click.echo(head + tables.printable(text.removeprefix("\n")))
