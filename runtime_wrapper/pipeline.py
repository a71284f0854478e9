"""A container that asks for GPUs, or may open them: choose and book, edit its spec, in reading order.

Called by `main` once a container has a wish. The machine is looked at before the ledger is locked, the spec is written
after. A claim is booked for the calling process, which then becomes the low-level runtime: if it never gets there, the
claim ends with it.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from runtime_wrapper import (
    argv,
    changes,
    clock,
    devices,
    edits,
    engines_choice,
    events,
    lowlevel,
    placement,
    policy,
    settings,
    snapshot,
    sources,
    spec,
    trust,
)
from runtime_wrapper.argv import Invocation
from runtime_wrapper.book import Book
from runtime_wrapper.claim import Claim, devices_by_minor, devices_of
from runtime_wrapper.edits import Grant
from runtime_wrapper.errors import GpulatchError, HeldDeviceError, RestoreError
from runtime_wrapper.events import Story
from runtime_wrapper.inventory import Gpu, Inventory
from runtime_wrapper.ledger import Ledger
from runtime_wrapper.placement import Offer, Rules
from runtime_wrapper.proc import Process
from runtime_wrapper.recovery import Look
from runtime_wrapper.request import EXCLUSIVE, Request
from runtime_wrapper.settings import Settings
from runtime_wrapper.sources import Wish
from runtime_wrapper.spec import Spec

REQUIREMENT_VARIABLES = ("NVIDIA_REQUIRE_", "CUDA_VERSION", "NV_CUDA_")


@dataclass(frozen=True, slots=True)
class Start:
    """One container being started: `found` is its spec, `original` the engine's, the same unless gpulatch edited it.

    `story` is what the event log will say of it.
    """

    link: str
    invocation: Invocation
    found: Spec
    original: Spec
    story: Story

    @property
    def delegate(self) -> bool:
        """Whether NVIDIA's own runtime comes next."""
        return lowlevel.is_nvidia_runtime(self.link)


def prepare(start: Start, wishes: Sequence[Wish]) -> None:
    """Write the GPUs that the container gets into its spec, or leave it as it is when no wish counts.

    Raises GpulatchError when the container must not start.
    """
    story = start.story
    with story.phase("settings"):
        try:
            rules = settings.load(story.runtime)
        except GpulatchError as error:
            if sources.ask_for_gpus(wishes):
                for wish in wishes:
                    story.heard(wish.source, wish.place, wish.text, "not judged: the settings could not be read")
                raise
            story.notes.append(str(error))
            rules = Settings()  # a container without a request starts whatever is wrong with us
    story.mode = rules.mode
    story.notes += [rules.note] if rules.note else []
    choice = policy.choose(wishes, rules, privileged=sources.privileged(start.original.data))
    for heard in choice.heard:
        story.heard(heard.wish.source, heard.wish.place, heard.wish.text, heard.verdict)
    wanted = choice.request()
    if wanted is None:
        _without_request(start, rules)
        return
    story.request, story.policy = wanted.text, wanted.policy
    story.notes += wanted.notes
    if rules.mode == settings.OBSERVE:
        _observe(start, wanted, rules)
        story.kind = events.OBSERVED
    else:
        _give(start, wanted, rules)
        story.kind = events.GRANTED


def _give(start: Start, wanted: Request, rules: Settings) -> None:
    _require_usable(start, wanted)
    _heed_exclusive_holders(start, rules)
    claim = inventory = None
    offer = Offer((), wanted.policy, ("no GPU, by the container's own wish",))
    if not wanted.none:
        claim, offer, inventory = _book(start, wanted, rules, observed=False)
    try:
        _require_met(start, offer)
        mounts = _driver_mounts(start, offer, inventory, rules) if inventory else ()
        _write(start, _grant(offer, wanted, start, mounts), claim, wanted, rules)
        _tell(offer, start.story)
    except BaseException:
        if claim:
            _forget(claim)
        raise


def _write(start: Start, grant: Grant, claim: Claim | None, wanted: Request, rules: Settings) -> None:
    story = start.story
    with story.phase("edit"):
        data = start.original.data if grant.delegate else with_driver_files(start.original.data, grant.gpus, rules)
        edited = edits.apply(data, grant)
        told = changes.between(start.original.data, edited)
    with story.phase("write"):
        spec.write(start.original, edited, claim.token if claim else None, claim.record() if claim else "")
        if claim:
            _require_booked(claim, wanted, start)
    story.edits = told


def _forget(claim: Claim) -> None:
    """Take a claim out of the book whose container does not start; where that fails it ends with this process."""
    with suppress(GpulatchError, OSError), Ledger().locked(running=Look()) as book:
        book.remove([booked for booked in book.claims if booked.token == claim.token])


def _observe(start: Start, wanted: Request, rules: Settings) -> None:
    """Book a mark that hinders nobody. What an earlier enforcing start wrote is no longer booked and is taken back."""
    _require_usable(start, wanted)
    if start.found is not start.original:
        spec.put_back(start.original)
    if not wanted.none:
        _, offer, inventory = _book(start, wanted, rules, observed=True)
        _tell(offer, start.story)
        _require_met(start, offer)
        _driver_mounts(start, offer, inventory, rules)


def _tell(offer: Offer, story: Story) -> None:
    story.policy, story.reasons = offer.policy, offer.reasons
    story.devices = [device.to_json() for device in devices_of(offer.gpus)]


def _without_request(start: Start, rules: Settings) -> None:
    """No GPU for this container, also none from NVIDIA's hook or runtime unless we only observe."""
    _heed_exclusive_holders(start, rules)
    if start.found is not start.original:
        spec.put_back(start.original)
    if rules.mode == settings.OBSERVE:
        return
    data = start.original.data
    if (start.delegate or sources.has_nvidia_hook(data)) and sources.nvidia_would_act(data):
        silenced = edits.silence_nvidia(data)
        spec.write(start.original, silenced, None)
        start.story.edits = changes.between(data, silenced)


def _heed_exclusive_holders(start: Start, rules: Settings) -> None:
    """A container that may open every device voids what others hold exclusively: report it, or refuse it."""
    if not sources.unlimited(start.original.data):
        return
    try:
        claims = Ledger().read().claims
    except GpulatchError:
        if rules.unlimited_devices == "refuse":
            raise
        return
    held = [claim for claim in claims if claim.policy == EXCLUSIVE and not claim.observed]
    if not held:
        return
    name = start.story.name or start.invocation.container_id
    why = f"its device rules open every GPU, also those that container {held[0].container} holds exclusively"
    hint = "start it without --privileged or a wildcard rule"
    error = HeldDeviceError(f"container {name}", "linux.resources.devices", why, hint)
    if rules.unlimited_devices == "refuse" and rules.mode != settings.OBSERVE:
        raise error
    start.story.notes.append(f"{error} [reported only, as the settings have it]")


def _grant(offer: Offer, wanted: Request, start: Start, mounts: tuple[spec.Json, ...]) -> Grant:
    """The offer with the device nodes that this host has for it. Raises NoDriverError."""
    numbers = devices.Numbers.of_host()
    if start.delegate or not offer.gpus:
        return Grant(offer.gpus, (), numbers, start.delegate, wanted.dialect)
    nodes = devices.nodes(offer.gpus, edits.capabilities(start.original.data), numbers)
    return Grant(offer.gpus, nodes, numbers, dialect=wanted.dialect, mounts=mounts)


def _driver_mounts(start: Start, offer: Offer, inventory: Inventory, rules: Settings) -> tuple[spec.Json, ...]:
    """The driver's files for a container with GPUs, unless NVIDIA's runtime mounts them. Raises DriverFilesError."""
    if start.delegate or not offer.gpus:
        return ()
    with start.story.phase("files"):
        from runtime_wrapper import driver_mounts  # here, because a container without GPUs has no use for it

        data, asked = start.original.data, edits.capabilities(start.original.data)
        plan = driver_mounts.plan(data, start.invocation.bundle, inventory, offer.gpus, asked, rules.driver_files)
    start.story.notes += plan.notes
    return tuple(plan.mounts)


def _require_usable(start: Start, wanted: Request) -> None:
    """What does not matter for other containers stands against one that asks for GPUs."""
    trust.require_root_of_host(trust.STATE_DIR)
    start.found.require_trust()
    argv.require_id(start.invocation.container_id)
    if start.invocation.subcommand == "restore":
        why = "a checkpoint cannot bring back what was on the GPU"
        raise RestoreError("GPU container", wanted.where, why, "start it anew instead of restoring it")


def _require_met(start: Start, offer: Offer) -> None:
    """Refuse a container whose image cannot run here; its claim ends with this process. Raises RequirementError."""
    data = start.original.data
    if not says_requirements(data):
        return
    with start.story.phase("require"):
        from runtime_wrapper import requirements  # here, because many containers say nothing of the kind

        driver = requirements.driver_here()
        start.story.notes += requirements.check(data, start.invocation.bundle, offer.gpus, driver)


def says_requirements(data: spec.Json) -> bool:
    """Whether a container says what it needs of the driver and the GPUs."""
    return any(name.startswith(REQUIREMENT_VARIABLES) for name in spec.environment(data))


def _book(start: Start, wanted: Request, rules: Settings, *, observed: bool) -> tuple[Claim, Offer, Inventory]:
    """Choose and book the GPUs; the machine is looked at before the lock is taken, never under it."""
    ledger, story, call = Ledger(), start.story, start.invocation
    ledger.prepare()
    with story.phase("inventory"):
        inventory = snapshot.load()
    if observed:
        story.engine_gpus = engines_choice.gpus(start.original.data, inventory, delegate=start.delegate)
    by_minor = devices_by_minor(inventory)
    with story.phase("look"):
        running = ledger.running(by_minor)
    with ExitStack() as locked:
        with story.phase("lock"):
            book = locked.enter_context(ledger.locked(by_minor, running))
        with story.phase("choose"):
            offer = _choose(book, start, wanted, inventory, rules)
            if offer.policy == EXCLUSIVE and book.unlimited:
                _heed_unlimited(book.unlimited, start, wanted, rules)
            claim = Claim(
                id=call.container_id,
                root=call.root,
                bundle=call.bundle,
                config=call.config,
                name=story.name,
                engine=story.engine,
                runtime=story.runtime,
                devices=devices_of(offer.gpus),
                policy=offer.policy,
                source=wanted.source,
                request=wanted.text,
                since=clock.now(),
                holder=Process.current(),
                memory_mib=wanted.memory_mib,
                observed=observed,
            )
            book.add(claim)
            ledger.remember_root(call.root)
    return claim, offer, inventory


def _heed_unlimited(containers: Sequence[str], start: Start, wanted: Request, rules: Settings) -> None:
    """Containers that may open every device void what this one is to have to itself: report it, or refuse it."""
    more = f" and {len(containers) - 1} more" if len(containers) > 1 else ""
    why = f"container {containers[0]}{more} may open every GPU (--privileged, or a wildcard rule)"
    error = HeldDeviceError("policy exclusive", wanted.where, why, "stop that container, or ask with +policy=shared")
    if rules.unlimited_devices == "refuse" and rules.mode != settings.OBSERVE:
        raise error
    start.story.notes.append(f"{error} [reported only, as the settings have it]")


def _choose(book: Book, start: Start, wanted: Request, inventory: Inventory, rules: Settings) -> Offer:
    call = start.invocation
    book.refuse_live(call.container_id, call.root)
    book.refuse_shared_spec(call.config)
    before = book.had_before(call.container_id, call.root, inventory)
    holders = book.holders(inventory, observed=rules.mode == settings.OBSERVE)  # as if all were enforced
    return placement.choose(wanted, inventory, holders, placement_rules(rules), before)


def _require_booked(claim: Claim, wanted: Request, start: Start) -> None:
    """Book again what was lost with the ledger before the spec was written: only from then on a lost claim is found.

    Raises HeldDeviceError when somebody else got one of the GPUs meanwhile.
    """
    if Ledger().still_names(claim):
        return
    try:
        _book_again(claim, wanted)
    except BaseException:
        spec.put_back(start.original)
        raise


def _book_again(claim: Claim, wanted: Request) -> None:
    with Ledger().locked() as book:
        if claim.token in [booked.token for booked in book.claims]:
            return
        holder = book.excluding(claim)
        if holder:
            why = f"the ledger was lost during this start, and container {holder.container} got one of its GPUs"
            raise HeldDeviceError(f"container {claim.container}", wanted.where, why, "start it again")
        book.add(claim)


def with_driver_files(data: spec.Json, gpus: Sequence[Gpu], rules: Settings) -> spec.Json:
    """The spec with the driver's files for these GPUs, where the settings say so. Raises GpulatchError."""
    if rules.driver_files != "cdi" or not gpus:
        return data
    from runtime_wrapper import cdi_cache  # here, because few hosts say so

    return cdi_cache.with_driver_files(data, gpus)


def placement_rules(rules: Settings) -> Rules:
    """The settings that concern the choice of GPUs."""
    return Rules(all_is_rest=rules.all_when_held == "rest", share_when_busy=rules.count_when_busy == "share")
