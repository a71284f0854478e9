"""`gpulatch cdi`: CDI devices written for engines, all that this host has, and their driver files for containers."""

import os
import sys

import click

from runtime_wrapper import cdi_cache, cdi_edits, cdi_registry, cdi_spec, trust
from runtime_wrapper.cdi import OWN_KIND
from runtime_wrapper.devices import Numbers
from runtime_wrapper.operate import cdi_content, cdi_file, probing, tables

DIRECTORY = "/etc/cdi"


@click.group()
def cdi() -> None:
    """Write devices for engines that know CDI, list those of this host, or keep the driver files that they name."""


@cdi.command()
@click.option("--nvidia", is_flag=True, help="Plain devices nvidia.com/gpu, for engines without gpulatch.")
@click.option("--output", metavar="PATH", help="The file, .json or .yaml; - prints it. Default: below /etc/cdi.")
@click.option("--format", "form", type=click.Choice(cdi_file.FORMATS), help="Default: what PATH ends in, else json.")
def generate(nvidia: bool, output: str | None, form: str | None) -> None:
    """Write the devices gpulatch.io/gpu, each of which asks gpulatch for GPUs, for the GPUs of this host.

    Exit code: 0 the file says so now, 1 refused and the file is as it was, 2 bad usage.
    """
    kind = cdi_content.NVIDIA_KIND if nvidia else OWN_KIND
    path, form = _place(kind, output, form)
    found = probing.refresh() if path and os.geteuid() == 0 else probing.look()
    spec = cdi_content.plain(found, Numbers.of_host()) if nvidia else cdi_content.asking(found)
    text = cdi_file.dumps(spec, form)
    if path is None:
        click.echo(text, nl=False)
        return
    cdi_file.require_alone(path, spec)
    changed = cdi_file.put(path, text.encode())
    count = tables.counted(len(spec["devices"]), "device")
    click.echo(f"{path}: {kind}, {count}{'' if changed else ', as before'}")


@cdi.command("list")
def list_devices() -> None:
    """List every CDI device of this host, its file and what it gives; what is wrong with a file, a line on stderr.

    Exit code: 0 listed, 1 something is wrong with a file, 2 bad usage.
    """
    found = cdi_file.registry(cdi_registry.DIRECTORIES)
    rows = [
        (name, device.file, device.spec.version, _in_words(cdi_edits.joined([device.spec.edits, device.edits])))
        for name, device in sorted(found.devices.items())
    ]
    if rows:
        tables.show("CDI devices", ("device", "file", "version", "gives"), rows)
    elif not found.problems:
        click.echo(f"No CDI device in {' or '.join(cdi_registry.DIRECTORIES)}")
    _complain(found)
    if found.problems:
        sys.exit(1)


@cdi.command("compile")
def compile_files() -> None:
    """Keep what NVIDIA's CDI devices give for the next containers, for the setting `driver_files = "cdi"`.

    Waits until no file has changed for two seconds. Exit code: 0 kept, 1 refused, 2 bad usage; what is wrong with a
    file is a line on stderr.
    """
    trust.require_root_of_host(trust.STATE_DIR)
    found = cdi_file.compile_all(cdi_registry.DIRECTORIES)
    _complain(found)
    count = sum(name.startswith(f"{cdi_cache.KIND}=") for name in found.devices)
    click.echo(f"{trust.STATE_DIR}/{cdi_cache.NAME}: {cdi_cache.KIND}, {tables.counted(count, 'device')}")


def _complain(found: cdi_registry.Registry) -> None:
    for problem in (problem for problems in found.problems.values() for problem in problems):
        click.echo(problem, err=True)


_THINGS = {"deviceNodes": "node", "mounts": "mount", "hooks": "hook", "netDevices": "net device"}


def _in_words(edits: cdi_spec.Json) -> str:
    """What edits give: variables in full, for they tell what a device of gpulatch's asks for, the rest by number."""
    counted = [tables.counted(len(edits[key]), thing) for key, thing in _THINGS.items() if edits.get(key)]
    rest = [key for key in ("intelRdt", "additionalGids") if edits.get(key)]
    return ", ".join([*counted, *edits.get("env", ()), *rest])


def _place(kind: str, output: str | None, form: str | None) -> tuple[str | None, str]:
    """Where the spec goes, None for standard output, and its format; the default name is the CDI library's own."""
    if output == "-":
        return None, form or "json"
    if output is None:
        form = form or "json"
        return f"{DIRECTORY}/{kind.replace('/', '-')}.{form}", form
    ending = os.path.splitext(output)[1].removeprefix(".")
    if ending not in cdi_file.FORMATS or form not in (None, ending):
        wanted = f".{form}" if form else ".json or .yaml"
        raise click.UsageError(
            f"--output {output}: engines read a spec of this format from a name that ends in {wanted}"
        )
    return output, ending
