"""`gpulatch claims` and `gpulatch release`: who holds which GPU, and taking a hold back."""

import json
from typing import Any

import click

from runtime_wrapper.claim import Claim, Device, devices_by_minor
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.operate import probing, tables


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of claims (schema claim.json).")
def claims(as_json: bool) -> None:
    """Show the containers that hold GPUs now."""
    found = Ledger().read(gpus()).claims
    if as_json:
        click.echo(json.dumps([to_json(claim) for claim in found], indent=2))
    elif found:
        columns = ("container", "GPUs", "policy", "request", "asked by", "since")
        tables.show("GPU claims", columns, [_row(claim) for claim in found])
    else:
        click.echo("No container holds a GPU.")


@click.command()
@click.argument("container_id", metavar="ID")
@click.option("--root", help="The state root, where several runtimes have a container of that id.")
@click.option("--force", is_flag=True, help="Also a live container's: it keeps its access, only the book forgets.")
def release(container_id: str, root: str | None, force: bool) -> None:
    """Take a container's claim out of the book, by its id or how it begins; dead ones leave by themselves."""
    claim = Ledger().release(container_id, root, force=force, by_minor=gpus())
    click.echo(f"Released GPUs {_indices(claim)} of container {tables.printable(claim.container)}.")


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
    return claim.container, _indices(claim), policy, claim.request, claim.source, tables.moment(claim.since)


def _indices(claim: Claim) -> str:
    return ",".join(str(device.index) for device in claim.devices)
