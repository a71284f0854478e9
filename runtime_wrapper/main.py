"""`gpulatch-runtime create | run | restore`: from the engine's call to the low-level runtime, in reading order.

The launcher starts this file by path, as `python3 -IS -B main.py RUNTIME_NAME LOW_LEVEL_LINK ARGUMENTS...`; every other
subcommand never gets here. Standard library only. What can be refused is refused with one line and exit code 1 before
the container exists; otherwise this process becomes the low-level runtime and stays the claim's holder, so that a claim
whose container never came to be ends with it and nothing has to be released.
"""

import os
import re
import sys
from typing import NoReturn

if __name__ == "__main__":  # started by path in isolated mode: the package lies in the folder above
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from runtime_wrapper import argv, devices, edits, lowlevel, placement, report, request, settings, snapshot, spec
from runtime_wrapper.argv import Invocation
from runtime_wrapper.claim import Claim, devices_of
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import ContainerIdError, GpulatchError, RestoreError, quoted
from runtime_wrapper.ledger import Ledger, now
from runtime_wrapper.placement import Offer
from runtime_wrapper.proc import Process
from runtime_wrapper.request import Request
from runtime_wrapper.spec import Spec

_CONTAINER_ID = re.compile(r"[A-Za-z0-9_+.-]{1,1024}")


def main(words: list[str]) -> NoReturn:
    """Prepare the container and become the low-level runtime; exit 1 with one line when the container is refused."""
    runtime_name, link, *arguments = words
    invocation = argv.parse(arguments, link, os.getcwd(), os.environ, os.geteuid())
    try:
        if invocation:
            prepare(runtime_name, link, invocation)
        lowlevel.become(link, arguments)
    except GpulatchError as error:
        refusal = error
    except Exception as error:
        refusal = report.unexpected(error)
    log, log_format = (invocation.log, invocation.log_format) if invocation else (None, "text")
    report.refusal(refusal, log, log_format)
    sys.exit(1)


def prepare(runtime_name: str, link: str, invocation: Invocation) -> None:
    """Give the container of this call its GPUs, or leave everything untouched when it asks for none.

    Raises GpulatchError when it must not start.
    """
    found = spec.read(invocation.config)
    if found is None:
        return
    original = spec.original(found)
    wanted = request.find(original.data, annotations=invocation.subcommand != "restore")
    if wanted is None:
        return
    _require_usable(found, invocation, wanted)
    if settings.load(runtime_name).mode == settings.OBSERVE:
        _observe(runtime_name, invocation, original, wanted)
        return
    claim = None
    offer = Offer((), wanted.policy, ())
    if not wanted.none:
        claim, offer = _book(runtime_name, invocation, original, wanted, observed=False)
    edited = edits.apply(original.data, _grant(offer, original, delegate=lowlevel.is_nvidia_runtime(link)))
    spec.write(original, edited, claim.token if claim else None)


def _grant(offer: Offer, original: Spec, *, delegate: bool) -> Grant:
    """The offer with the device nodes that this host has for it. Raises NoDriverError."""
    numbers = devices.Numbers.of_host()
    if delegate or not offer.gpus:
        return Grant(offer.gpus, (), numbers, delegate)
    return Grant(offer.gpus, devices.nodes(offer.gpus, edits.capabilities(original.data), numbers), numbers)


def _require_usable(found: Spec, invocation: Invocation, wanted: Request) -> None:
    """What does not matter for other containers stands against one that asks for GPUs."""
    found.require_trust()
    container_id = invocation.container_id
    if not _CONTAINER_ID.fullmatch(container_id) or container_id in (".", ".."):
        raise ContainerIdError(
            f"container id {quoted(container_id)}",
            "command line",
            "is not a valid id",
            "use letters, digits and _ + . - only",
        )
    if invocation.subcommand == "restore":
        why = "a checkpoint cannot bring back what was on the GPU"
        raise RestoreError("GPU container", wanted.where, why, "start it anew instead of restoring it")


def _book(
    runtime_name: str, invocation: Invocation, original: Spec, wanted: Request, *, observed: bool
) -> tuple[Claim, Offer]:
    """Choose and book the GPUs; the machine is looked at before the lock is taken, never under it."""
    ledger = Ledger()
    ledger.prepare()
    inventory = snapshot.load()
    with ledger.locked() as book:
        book.refuse_live(invocation.container_id, invocation.root)
        offer = placement.choose(wanted, inventory, book.holders(inventory))
        claim = _claim(runtime_name, invocation, original, wanted, offer, observed=observed)
        book.add(claim)
    return claim, offer


def _claim(
    runtime_name: str, invocation: Invocation, original: Spec, wanted: Request, offer: Offer, *, observed: bool
) -> Claim:
    return Claim(
        id=invocation.container_id,
        root=invocation.root,
        bundle=invocation.bundle,
        name=spec.container_name(original.data),
        runtime=runtime_name,
        devices=devices_of(offer.gpus),
        policy=offer.policy,
        source=wanted.source,
        request=wanted.text,
        since=now(),
        holder=Process.current(),
        observed=observed,
    )


def _observe(runtime_name: str, invocation: Invocation, original: Spec, wanted: Request) -> None:
    """Book what would be granted, marked so that it hinders nobody; say in the engine's log what would be refused."""
    try:
        if not wanted.none:
            _book(runtime_name, invocation, original, wanted, observed=True)
    except GpulatchError as error:
        report.observation(error, invocation.log, invocation.log_format)


if __name__ == "__main__":
    main(sys.argv[1:])
