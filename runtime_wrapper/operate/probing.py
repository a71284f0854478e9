"""`gpulatch probe`: look at this host's GPUs now, keep what was seen for the next containers, and show it."""

import json
import os

import click

from runtime_wrapper import snapshot
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.operate import tables
from runtime_wrapper.probe import host


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the inventory as JSON (schema inventory.json).")
def probe(as_json: bool) -> None:
    """Look at the GPUs of this host. As root: keep the snapshot and make missing device nodes."""
    found = refresh() if os.geteuid() == 0 else look()
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        show(found)


def look() -> Inventory:
    """The inventory of this host, nothing written. Raises NoDriverError, ProbeError, MachineFileError."""
    return host.probe()


def refresh() -> Inventory:
    """Probe anew and keep the snapshot. Raises as `look`, and what stands against the state directory."""
    Ledger().prepare()
    return snapshot.refresh()


def show(inventory: Inventory) -> None:
    """The GPUs and the matrix of their links."""
    rows = [
        (
            gpu.index,
            tables.uuid(gpu.uuid),
            gpu.pci,
            f"nvidia{gpu.minor}",
            gpu.numa,
            "yes" if gpu.mig else "no",
            gpu.model,
        )
        for gpu in inventory.gpus
    ]
    title = f"GPUs, driver {inventory.driver_version or 'unknown'}"
    tables.show(title, ("GPU", "UUID", "PCI address", "node", "NUMA", "MIG", "model"), rows)
    names = [str(gpu.index) for gpu in inventory.gpus]
    kinds = [["X" if link is None else link.kind for link in row] for row in inventory.links]
    if len(names) > 1:
        tables.show("Links", ("GPU", *names), [(name, *row) for name, row in zip(names, kinds, strict=True)])
    for note in inventory.notes:
        click.echo(f"Note: {note}")
    if inventory.bandwidth_assumed:
        click.echo("The NVLink generation is not known: 25 GB/s per link is assumed.")
