"""The book of who holds which GPU: crash-safe, shared by every runtime of the host, without a release hook.

Hot. `/run/gpulatch/ledger.json` is replaced by rename under an exclusive flock on `lock` beside it (never renamed or
unlinked, not inherited by exec, nothing forked while it is held); readers need no lock. A claim counts while its
container lives (see `liveness`); every reader sees the reconciled view. Another boot id is an empty book.
/run is a tmpfs, so nothing is synced to disk.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from runtime_wrapper import atomic, liveness, lock, proc, trust
from runtime_wrapper.claim import Claim, Past
from runtime_wrapper.errors import LedgerError, LiveClaimError, NoClaimError, UntrustedPathError, errno_name, quoted
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.placement import Holder

FILE = "ledger.json"
SCHEMA = "gpulatch-ledger/1"
MAX_PAST = 256  # containers whose GPUs are remembered for a restart


@dataclass(slots=True)
class Book:
    """The live claims at one moment; changes count once `Ledger.locked` is left without an error."""

    claims: list[Claim]
    generation: int = 0
    past: list[Past] = field(default_factory=list)
    changed: bool = field(default=False, compare=False)

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

    def add(self, claim: Claim) -> None:
        """Book a claim."""
        self.claims.append(claim)
        self.changed = True

    def remove(self, claims: Sequence[Claim]) -> None:
        """Take claims out of the book."""
        self.claims = [claim for claim in self.claims if claim not in claims]
        self.changed = True


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger in one state directory."""

    state_dir: str = trust.STATE_DIR

    @contextmanager
    def locked(self) -> Iterator[Book]:
        """The reconciled book under the lock; written back on leaving when something changed.

        Raises NotRootError, UntrustedPathError, LockTimeoutError, LedgerError; then nothing is changed.
        """
        directory = self._open(create=True)
        try:
            with lock.held(directory, f"{self.state_dir}/{lock.NAME}"):
                book = self._read(directory)
                yield book
                if book.changed:
                    self._write(directory, book)
        finally:
            os.close(directory)

    def read(self) -> Book:
        """The reconciled book without the lock, empty when there is none; nothing is written. Raises as `locked`."""
        try:
            directory = self._open(create=False)
        except FileNotFoundError:
            return Book([])
        try:
            return self._read(directory)
        finally:
            os.close(directory)

    def release(self, container_id: str, root: str | None, *, force: bool) -> Claim:
        """Take a container's claim out of the book, by its id or what only its id begins with; a live one with `force`.

        Raises NoClaimError, also when several containers fit, and LiveClaimError.
        """
        with self.locked() as book:
            fitting = [claim for claim in book.claims if root in (None, claim.root)]
            found = [claim for claim in fitting if claim.id == container_id]
            found = found or [claim for claim in fitting if container_id and claim.id.startswith(container_id)]
            if len(found) != 1:
                fit = ", ".join(f"{claim.id} (root {claim.root})" for claim in found)
                why = f"fits {fit}" if found else "holds no live claim"
                hint = "add --root, or write more of the id" if found else "see the claims with: gpulatch claims"
                raise NoClaimError(f"container {quoted(container_id)}", self.state_dir, why, hint)
            if not force:
                why = "is alive and uses its GPUs"
                raise LiveClaimError(f"container {found[0].container}", self.state_dir, why, "stop it, or add --force")
            book.remove(found)
            return found[0]

    def prepare(self) -> None:
        """Make the state directory when it is absent. Raises NotRootError, UntrustedPathError."""
        os.close(self._open(create=True))

    def _open(self, *, create: bool) -> int:
        trust.require_root_of_host(self.state_dir)
        return trust.open_private_directory(self.state_dir, "state directory", create=create)

    def _read(self, directory: int) -> Book:
        where = f"{self.state_dir}/{FILE}"
        hint = f"stop the GPU containers, then run: mv {where} {where}.bad"
        try:
            return parse(trust.read_file(directory, FILE, "ledger", where), where, hint)
        except FileNotFoundError:
            return Book([])
        except UntrustedPathError as error:
            raise LedgerError("ledger", where, error.why, hint) from error

    def _write(self, directory: int, book: Book) -> None:
        where = f"{self.state_dir}/{FILE}"
        data = {
            "schema": SCHEMA,
            "boot_id": proc.boot_id(),
            "generation": book.generation + 1,
            "claims": [claim.to_json() for claim in book.claims],
            "past": [past.to_json() for past in book.past[-MAX_PAST:]],
        }
        text = json.dumps(data).encode()
        if len(text) > trust.MAX_FILE_BYTES:
            raise LedgerError("ledger", where, f"would grow beyond {trust.MAX_FILE_BYTES >> 20} MiB", "stop containers")
        try:
            # Always under the lock, so one name for the new file will do, and a killed writer leaves no more than that.
            atomic.replace(directory, FILE, text, 0o600, temporary=f".{FILE}.new")
        except OSError as error:
            raise LedgerError(
                "ledger", where, f"cannot be written ({errno_name(error)})", "make room on /run"
            ) from error


def parse(raw: bytes, where: str, hint: str) -> Book:
    """The reconciled book in a ledger's text; empty when it is of another boot.

    Raises LedgerError: damaged, with `hint` as what to do, or a claim of which it cannot be told whether it lives.
    """
    try:
        data = json.loads(raw)
        generation = int(data["generation"])
        if data["boot_id"] != proc.boot_id():
            return Book([], generation)
        if data["schema"] != SCHEMA:
            why = f"is of another version of gpulatch ({quoted(data['schema'])}, this one reads {SCHEMA})"
            raise LedgerError("ledger", where, why, hint)
        claims = [Claim.from_json(claim) for claim in data["claims"]]
        book = Book(claims, generation, [Past.from_json(one) for one in data["past"]])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError("ledger", where, f"is damaged ({type(error).__name__}: {error})", hint) from error
    try:
        return _reconciled(book)
    except OSError as error:
        why = f"whether its claims live cannot be told ({errno_name(error)} on {error.filename})"
        raise LedgerError("ledger", where, why, "see what the host lacks, then start again") from error


def _reconciled(book: Book) -> Book:
    """The book without dead claims, init and cgroup filled in where they are seen for the first time."""
    claims: list[Claim] = []
    past = book.past
    for claim in book.claims:
        token = "" if claim.observed else claim.token  # an observed container's spec was left without a mark
        trace = liveness.Trace(claim.id, claim.root, token, claim.holder, claim.init, claim.cgroup)
        seen = liveness.look(trace)
        if seen is not None:
            claims.append(claim if seen == trace else replace(claim, init=seen.init, cgroup=seen.cgroup))
        elif not claim.observed:
            past = [one for one in past if (one.id, one.root) != (claim.id, claim.root)]
            past.append(Past(claim.id, claim.root, claim.devices))
    return Book(claims, book.generation, past, changed=claims != book.claims)
