"""A container that asks for GPUs: choose and book them, edit its spec, in reading order.

Called by `main` once a request is known. The machine is looked at before the ledger is locked, the spec is written
after. A claim is booked for the calling process, which then becomes the low-level runtime: if it never gets there, the
claim ends with it.
"""

from runtime_wrapper import argv, clock, devices, edits, lowlevel, placement, settings, snapshot, spec, trust
from runtime_wrapper.argv import Invocation
from runtime_wrapper.claim import Claim, devices_of
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import RestoreError
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.placement import Offer
from runtime_wrapper.proc import Process
from runtime_wrapper.request import Request
from runtime_wrapper.spec import Spec


def give(runtime_name: str, link: str, invocation: Invocation, found: Spec, original: Spec, wanted: Request) -> None:
    """Write the GPUs that the container gets into its spec. `found` is its spec, `original` the engine's.

    Raises GpulatchError when the container must not start.
    """
    _require_usable(found, invocation, wanted)
    if settings.load(runtime_name).mode == settings.OBSERVE:
        if found is not original:
            spec.put_back(original)  # what an earlier enforcing start wrote is no longer booked
        if not wanted.none:
            _book(runtime_name, invocation, original, wanted, observed=True)
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
    trust.require_root_of_host(trust.STATE_DIR)
    found.require_trust()
    argv.require_id(invocation.container_id)
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
        book.refuse_shared_spec(invocation.config)
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
        config=invocation.config,
        name=spec.container_name(original.data),
        runtime=runtime_name,
        devices=devices_of(offer.gpus),
        policy=offer.policy,
        source=wanted.source,
        request=wanted.text,
        since=clock.now(),
        holder=Process.current(),
        observed=observed,
    )
