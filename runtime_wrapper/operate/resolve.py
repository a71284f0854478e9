"""`gpulatch resolve`: what would happen to a container with this `config.json`; changes nothing.

The rules that guard a real bundle (owner, links) do not apply: the file is only read.
"""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import click

from runtime_wrapper import (
    argv,
    devices,
    driver_mounts,
    edits,
    ledger,
    placement,
    policy,
    requirements,
    settings,
    sources,
    spec,
    trust,
)
from runtime_wrapper.book import Book
from runtime_wrapper.claim import devices_by_minor
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import GpulatchError, SpecError
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.operate import probing, tables
from runtime_wrapper.pipeline import placement_rules, says_requirements, with_driver_files
from runtime_wrapper.placement import Offer
from runtime_wrapper.probe import machine as machine_files
from runtime_wrapper.report import unexpected
from runtime_wrapper.request import Request
from runtime_wrapper.settings import Settings
from runtime_wrapper.spec import Spec

RESOLVED, REFUSED, NO_GPU = 0, 1, 3


@dataclass(slots=True)
class Result:
    """What `resolve` found, as far as it came."""

    wanted: Request | None = None
    offer: Offer | None = None
    edited: spec.Json | None = None
    error: GpulatchError | None = None
    checked: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 resolved, 1 refused, 3 no GPU asked for."""
        if self.error:
            return REFUSED
        return RESOLVED if self.wanted else NO_GPU

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; keys as in `schemas/resolve.json`."""
        wanted, offer, error = self.wanted, self.offer, self.error
        return {
            "source": wanted and wanted.source,
            "request": wanted and wanted.text,
            "policy": wanted and wanted.policy,
            "devices": [
                {"kind": "gpu", "index": gpu.index, "uuid": gpu.uuid, "minor": gpu.minor}
                for gpu in (offer.gpus if offer else ())
            ],
            "reasons": list(offer.reasons) if offer else [],
            "error": {"code": error.code, "message": str(error)} if error else None,
        }


@click.command()
@click.option("--config", required=True, type=click.Path(exists=True), help="The container's config.json.")
@click.option("--id", "container_id", help="The container's id: a live claim of that id refuses it.")
@click.option("--machine", type=click.Path(exists=True), help="A machine file instead of this host's GPUs.")
@click.option("--ledger", "ledger_file", type=click.Path(exists=True), help="A ledger file instead of the host's book.")
@click.option("--runtime", "runtime_name", default="gpulatch-runtime", help="The runtime name whose settings hold.")
@click.option("--print-spec", is_flag=True, help="Print the config.json that the container would get.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON (schema resolve.json).")
def resolve(
    config: str,
    container_id: str | None,
    machine: str | None,
    ledger_file: str | None,
    runtime_name: str,
    print_spec: bool,
    as_json: bool,
) -> None:
    """Show what a container would get and why. With --machine and no --ledger nobody holds anything.

    Exit code: 0 resolved, 1 refused, 2 bad usage, 3 no GPU asked for.
    """
    if print_spec and as_json:
        raise click.UsageError("--print-spec and --json both want the output: choose one")
    result = Result()
    try:
        _resolve(result, config, container_id, machine, ledger_file, runtime_name)
    except GpulatchError as error:
        result.error = error
    except Exception as error:
        result.error = unexpected(error)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    elif result.error:
        click.echo(str(result.error), err=True)
    elif print_spec:
        click.echo(json.dumps(result.edited, indent=2))
    else:
        _tell(result)
    sys.exit(result.exit_code)


def _resolve(
    result: Result,
    config: str,
    container_id: str | None,
    machine: str | None,
    ledger_file: str | None,
    runtime_name: str,
) -> None:
    original = _read_spec(config)
    result.edited = original.data
    rules = Settings() if machine else settings.load(runtime_name)
    wishes = sources.wishes(original.data, container_id or "")
    result.wanted = wanted = policy.choose(wishes, rules, privileged=sources.privileged(original.data)).request()
    if wanted is None:
        return
    inventory = None if wanted.none else _inventory(machine)
    if inventory is None:
        offer = Offer((), wanted.policy, ("no GPU, by the container's own wish",))
    else:
        offer = _choose(wanted, container_id, inventory, _book(machine, ledger_file, inventory), rules)
    if says_requirements(original.data):
        driver = None if machine else requirements.driver_here()
        result.checked = tuple(requirements.check(original.data, os.path.dirname(config), offer.gpus, driver))
    numbers = devices.Numbers.assumed() if machine else devices.Numbers.of_host()
    asked = edits.capabilities(original.data)
    nodes = devices.nodes(offer.gpus, asked, numbers) if offer.gpus else ()
    files = driver_mounts.Plan()
    if offer.gpus and inventory and not machine:
        bundle = os.path.dirname(config)
        files = driver_mounts.plan(original.data, bundle, inventory, offer.gpus, asked, rules.driver_files)
    result.checked += tuple(files.notes)
    grant = Grant(offer.gpus, nodes, numbers, dialect=wanted.dialect, mounts=tuple(files.mounts))
    result.edited = edits.apply(with_driver_files(original.data, offer.gpus, rules), grant)
    result.offer = offer


def _choose(wanted: Request, container_id: str | None, inventory: Inventory, book: Book, rules: Settings) -> Offer:
    if container_id is not None:
        argv.require_id(container_id)
    for claim in book.find(container_id) if container_id else ():
        book.refuse_live(claim.id, claim.root)
    return placement.choose(wanted, inventory, book.holders(inventory), placement_rules(rules))


def _read_spec(config: str) -> Spec:
    found = spec.read(config)
    if found is None:
        raise SpecError(spec.WHAT, config, "is not a readable JSON object", "give the config.json of a bundle")
    return spec.original(found)


def _inventory(machine: str | None) -> Inventory:
    return machine_files.read(machine) if machine else probing.look()


def _book(machine: str | None, ledger_file: str | None, inventory: Inventory) -> Book:
    if ledger_file:
        return ledger.parse(trust.read_anyhow(ledger_file, "ledger"), ledger_file)
    return Book([]) if machine else Ledger().read(devices_by_minor(inventory))


def _tell(result: Result) -> None:
    wanted, offer = result.wanted, result.offer
    if wanted is None or offer is None:
        click.echo("The container asks for no GPU: nothing would be changed.")
        return
    tables.console().print(f"Request: {tables.printable(wanted.where)}, policy {offer.policy}", markup=False)
    rows = [(gpu.index, tables.uuid(gpu.uuid), f"nvidia{gpu.minor}", gpu.numa, gpu.model) for gpu in offer.gpus]
    if rows:
        tables.show("Devices", ("GPU", "UUID", "node", "NUMA", "model"), rows)
    for line in (*offer.reasons, *result.checked, *wanted.notes):
        click.echo(f"  {tables.printable(line)}")
