"""`gpulatch cdi generate`: write CDI specs for engines that know CDI."""

import os

import click

from runtime_wrapper.cdi import OWN_KIND
from runtime_wrapper.devices import Numbers
from runtime_wrapper.operate import cdi_content, cdi_file, probing, tables

DIRECTORY = "/etc/cdi"


@click.group()
def cdi() -> None:
    """Write devices for engines that know CDI."""


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
    found = probing.refresh() if os.geteuid() == 0 else probing.look()
    spec = cdi_content.plain(found, Numbers.of_host()) if nvidia else cdi_content.asking(found)
    text = cdi_file.dumps(spec, form)
    if path is None:
        click.echo(text, nl=False)
        return
    changed = cdi_file.put(path, text.encode())
    count = tables.counted(len(spec["devices"]), "device")
    click.echo(f"{path}: {kind}, {count}{'' if changed else ', as before'}")


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
