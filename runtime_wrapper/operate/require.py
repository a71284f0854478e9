"""`gpulatch require`: does this host, or one with the facts given, meet an expression of `NVIDIA_REQUIRE_*`?"""

import sys

import click

from runtime_wrapper import cuda_driver, requirement, requirements
from runtime_wrapper.errors import RequirementError
from runtime_wrapper.operate import probing
from runtime_wrapper.requirement import Facts, Need, NotAnExpressionError

MET, NOT_MET, NO_EXPRESSION = 0, 1, 2


def _version(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and requirement.version(value) is None:
        raise click.BadParameter("is no version: numbers with points between them")
    return value


@click.command()
@click.argument("expression", metavar="EXPR")
@click.option("--driver", callback=_version, help="The version of the driver.")
@click.option("--cuda", callback=_version, help="The newest CUDA that the driver runs; else by --driver.")
@click.option("--brand", help="The brand of the GPU, as tesla, nvidia or geforce.")
@click.option("--arch", callback=_version, help="The compute capability of the GPU.")
def require(expression: str, driver: str | None, cuda: str | None, brand: str | None, arch: str | None) -> None:
    """Evaluate EXPR, such as 'cuda>=12.4 brand=tesla,driver>=470', for this host's GPUs.

    With any of the options only what they say is known; what is not known is taken to be met.

    Exit code: 0 met, 1 not met, 2 EXPR is no valid expression.
    """
    if driver or cuda or brand or arch:
        newest = cuda_driver.newest(driver)
        cuda = cuda or (cuda_driver.text(newest) if newest else None)
        facts = [Facts(cuda, driver, arch, frozenset({brand.lower()}) if brand else None)]
    else:
        inventory = probing.look()
        facts = requirements.facts_of(inventory.gpus, inventory.driver_version)
    try:
        click.echo(requirements.judge(Need("EXPR", expression), facts))
    except RequirementError as error:
        click.echo(str(error), err=True)
        sys.exit(NO_EXPRESSION if isinstance(error.__cause__, NotAnExpressionError) else NOT_MET)
