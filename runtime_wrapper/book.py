"""The claims at one moment: who holds which GPU, what is refused because of it, and how it is written down.

Hot, pure but for looking at the containers (see `liveness`). `ledger` keeps the file and its lock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runtime_wrapper import liveness, proc
from runtime_wrapper.claim import Claim, Past
from runtime_wrapper.errors import LiveClaimError, quoted
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.placement import Holder
from runtime_wrapper.request import EXCLUSIVE, MONITOR

SCHEMA = "gpulatch-ledger/2"
_SCHEMA_1 = "gpulatch-ledger/1"
MAX_PAST = 256  # containers whose GPUs are remembered for a restart, or that an administrator released

# What reading a damaged ledger raises.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(slots=True)
class Book:
    """The live claims at one moment; changes count once `Ledger.locked` is left without an error.

    `released` holds the tokens of claims that an administrator took out of the book while their containers ran on.
    `unlimited` names the running containers that may open every GPU. What this look changed: `ended` claims, `found`
    ones, and why the ledger itself was `lost` (`set_aside` once the unusable file was).
    """

    claims: list[Claim]
    generation: int = 0
    past: list[Past] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    changed: bool = field(default=False, compare=False)
    unlimited: tuple[str, ...] = field(default=(), compare=False)
    ended: list[Claim] = field(default_factory=list, compare=False)
    found: list[Claim] = field(default_factory=list, compare=False)
    lost: str | None = field(default=None, compare=False)
    set_aside: bool = field(default=False, compare=False)

    def holders(self, inventory: Inventory) -> dict[int, list[Holder]]:
        """Who holds each GPU of the inventory, by index."""
        found: dict[int, list[Holder]] = {}
        for claim in self.claims:
            for device in claim.devices if not claim.observed else ():
                for gpu in inventory.gpus:
                    if device.is_gpu(gpu):
                        found.setdefault(gpu.index, []).append(Holder(claim.container, claim.policy))
        return found

    def had_before(self, container_id: str, root: str, inventory: Inventory) -> list[int]:
        """The GPUs, by index, that a container held when it last ended; empty when not known."""
        for past in self.past:
            if (past.id, past.root) == (container_id, root):
                return [gpu.index for device in past.devices for gpu in inventory.gpus if device.is_gpu(gpu)]
        return []

    def find(self, container_id: str, root: str | None = None) -> list[Claim]:
        """The live claims of a container id, of every runtime root unless one is given."""
        return [claim for claim in self.claims if claim.id == container_id and root in (None, claim.root)]

    def refuse_live(self, container_id: str, root: str) -> None:
        """Raises LiveClaimError when the container already holds GPUs: a second create must not touch them."""
        for claim in self.find(container_id, root):
            why = f"already holds GPUs {','.join(str(device.index) for device in claim.devices)} and is alive"
            raise LiveClaimError(
                f"container {claim.container}", f"runtime root {root}", why, "use another id or delete it first"
            )

    def refuse_shared_spec(self, config: str) -> None:
        """Raises LiveClaimError while another container is being started from the same spec file.

        Its runtime may not have read the file yet: writing it now would give one container the other's GPUs.
        """
        for claim in self.claims:
            if claim.config == config and claim.init is None and not claim.observed:
                why = f"container {claim.container} is being started from this file right now"
                raise LiveClaimError("container spec", config, why, "start the two one after the other")

    def excluding(self, claim: Claim) -> Claim | None:
        """A booked claim on a device of this one that does not go together with it; None when there is none."""
        if claim.policy == MONITOR:
            return None
        for booked in self.claims:
            counts = not booked.observed and booked.policy != MONITOR
            alone = EXCLUSIVE in (booked.policy, claim.policy)
            if counts and alone and set(booked.devices) & set(claim.devices):
                return booked
        return None

    def adopt(self, found: Sequence[Claim]) -> None:
        """Book containers that run with GPUs unbooked, but for those released by hand. Raises OSError."""
        for claim in found:
            booked = self.find(claim.id, claim.root) or claim.token in self.released
            if not booked and (seen := _looked_at(claim)):
                self.found.append(seen)
                self.add(seen)

    def add(self, claim: Claim) -> None:
        """Book a claim."""
        self.claims.append(claim)
        self.changed = True

    def remove(self, claims: Sequence[Claim]) -> None:
        """Take claims out of the book."""
        self.claims = [claim for claim in self.claims if claim not in claims]
        self.changed = True

    def to_json(self) -> dict[str, Any]:
        """The book as the ledger keeps it, one generation on; keys as in `schemas/ledger.json`."""
        return {
            "schema": SCHEMA,
            "boot_id": proc.boot_id(),
            "generation": self.generation + 1,
            "claims": [claim.to_json() for claim in self.claims],
            "past": [past.to_json() for past in self.past[-MAX_PAST:]],
            "released": self.released[-MAX_PAST:],
        }


def parse(raw: bytes) -> Book:
    """The book in a ledger's text as it was written, empty when that was in another boot.

    Raises one of `DAMAGE`. What version 1 did not say is left empty.
    """
    data = json.loads(raw)
    generation = int(data["generation"])
    if data["boot_id"] != proc.boot_id():
        return Book([], generation)
    if data["schema"] == _SCHEMA_1:
        data = {**data, "claims": [{"engine": "", **claim} for claim in data["claims"]], "released": []}
    elif data["schema"] != SCHEMA:
        raise _UnknownVersionError(f"is of another version of gpulatch ({quoted(data['schema'])}, not {SCHEMA})")
    claims = [Claim.from_json(claim) for claim in data["claims"]]
    past = [Past.from_json(one) for one in data["past"]]
    return Book(claims, generation, past, [str(token) for token in data["released"]])


def damage(error: Exception) -> str:
    """What is wrong with a ledger, in words."""
    return str(error) if isinstance(error, _UnknownVersionError) else f"is damaged ({type(error).__name__}: {error})"


class _UnknownVersionError(ValueError):
    """A well-formed ledger of a gpulatch that is not this one."""


def reconciled(book: Book) -> Book:
    """The book without dead claims, init and cgroup filled in where first seen. Raises OSError."""
    claims: list[Claim] = []
    ended: list[Claim] = []
    past = book.past
    for claim in book.claims:
        if seen := _looked_at(claim):
            claims.append(seen)
            continue
        ended.append(claim)
        if not claim.observed:
            past = [one for one in past if (one.id, one.root) != (claim.id, claim.root)]
            past.append(Past(claim.id, claim.root, claim.devices))
    changed = claims != book.claims
    return Book(claims, book.generation, past, book.released, changed=changed, ended=ended)


def _looked_at(claim: Claim) -> Claim | None:
    """The claim with what is newly seen of its container, or None when that is dead. Raises OSError."""
    token = "" if claim.observed else claim.token  # an observed container's spec was left without a mark
    trace = liveness.Trace(claim.id, claim.root, token, claim.holder, claim.init, claim.cgroup)
    seen = liveness.look(trace)
    if seen is None:
        return None
    return claim if seen == trace else replace(claim, init=seen.init, cgroup=seen.cgroup)
