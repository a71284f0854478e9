"""`gpulatch claims` and `gpulatch release`: who holds which GPU, and taking a hold back."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from runtime_wrapper.claim import Claim, Device, devices_by_minor
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.operate import probing, tables


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of claims (schema claim.json).")
@click.option(
    "--watch",
    "interval_s",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=2.0,
    metavar="SECONDS",
    help="Show them again and again, every 2 seconds unless said, until interrupted.",
)
def claims(as_json: bool, interval_s: float | None) -> None:
    """Show the containers that hold GPUs now, each looked at whether it lives."""
    if interval_s and as_json:
        raise click.UsageError("--watch and --json both want the output: choose one")
    if as_json:
        click.echo(json.dumps([to_json(one) for one in _renumbered(Ledger().read(gpus()).claims)], indent=2))
    elif interval_s:
        tables.watch(_table, interval_s)
    else:
        tables.console().print(_table())


def _table() -> RenderableType:
    book = Ledger().read(gpus())
    shown: list[RenderableType] = [Text("No container holds a GPU.")]
    if book.claims:
        columns = ("container", "engine", "GPUs", "policy", "request", "asked by", "since", "state")
        shown = [tables.table("GPU claims", columns, [_row(claim) for claim in _renumbered(book.claims)])]
    if book.unlimited:
        names = tables.printable(", ".join(book.unlimited))
        shown.append(Text(f"Not booked, can open every GPU: {names}"))
    return Group(*shown)


def _renumbered(claims: Sequence[Claim]) -> list[Claim]:
    """The claims with each GPU's index as it is now: when one falls off the bus, those behind it move up."""
    now = {device.pci: device for device in gpus().values()}
    return [replace(one, devices=tuple(now.get(device.pci, device) for device in one.devices)) for one in claims]


@click.command()
@click.argument("container_id", metavar="ID")
@click.option("--root", help="The state root, where several runtimes have a container of that id.")
@click.option("--force", is_flag=True, help="Also a live container's: it keeps its access, only the book forgets.")
def release(container_id: str, root: str | None, force: bool) -> None:
    """Take a container's claim out of the book, by its name, its id or how the id begins.

    Dead ones leave by themselves. What is released does not come back while its container runs.
    """
    claim = Ledger().release(container_id, root and os.path.realpath(root), force=force, by_minor=gpus())
    click.echo(
        f"Released {tables.gpus([d.index for d in claim.devices])} of container {tables.printable(claim.container)}."
    )


def gpus() -> dict[int, Device]:
    """The host's GPUs by minor, as far as they can be seen: without a driver no container holds one."""
    try:
        return devices_by_minor(probing.look())
    except GpulatchError:
        return {}


def to_json(claim: Claim) -> dict[str, Any]:
    """A live claim as JSON values; keys as in `schemas/claim.json`."""
    return {
        "id": claim.id,
        "name": claim.name,
        "engine": claim.engine,
        "root": claim.root,
        "runtime": claim.runtime,
        "devices": [{"index": device.index, "uuid": device.uuid, "pci": device.pci} for device in claim.devices],
        "policy": claim.policy,
        "source": claim.source,
        "request": claim.request,
        "since": claim.since,
        "live": True,
        "stage": claim.stage,
        "observed": claim.observed,
    }


def _row(claim: Claim) -> tuple[str, ...]:
    policy = f"{claim.policy} (observed only)" if claim.observed else claim.policy
    engine, since = claim.engine or "-", tables.moment(claim.since)
    return claim.container, engine, _indices(claim), policy, claim.request, claim.source, since, claim.stage


def _indices(claim: Claim) -> str:
    return ",".join(str(device.index) for device in claim.devices)
