"""The command `gpulatch`: each command is a leaf module, imported only when it is called.

Exit codes: 0 done, 1 refused or failed with one line on stderr, 2 bad usage; `resolve` adds 3, no GPU asked for.
"""

import importlib
import sys

import click

from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.report import unexpected

# command -> module that holds a click command of the same name, and its place in the help text
COMMANDS = {
    "cdi": "runtime_wrapper.operate.cdi",
    "claims": "runtime_wrapper.operate.claims",
    "config": "runtime_wrapper.operate.config",
    "demo": "runtime_wrapper.operate.demo",
    "explain": "runtime_wrapper.operate.explain",
    "probe": "runtime_wrapper.operate.probing",
    "release": "runtime_wrapper.operate.claims",
    "require": "runtime_wrapper.operate.require",
    "report": "runtime_wrapper.operate.report",
    "resolve": "runtime_wrapper.operate.resolve",
    "runtimes": "runtime_wrapper.operate.runtimes",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in alphabetical order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command if isinstance(command, click.Command) else None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpulatch")
def gpulatch() -> None:
    """Give each container its own GPUs, and see who has which."""


def main() -> None:
    """Run the command line; a refusal is one line on stderr and exit code 1."""
    try:
        gpulatch()
    except GpulatchError as error:
        refusal = error
    except Exception as error:
        refusal = unexpected(error)
    print(refusal, file=sys.stderr)
    sys.exit(1)
