"""The book of who holds which GPU: crash-safe, shared by every runtime of the host, without a release hook.

Hot. `/run/gpulatch/ledger.json` is replaced by rename under an exclusive flock on `lock` beside it (never renamed or
unlinked, not inherited by exec, nothing forked while it is held); readers need no lock. A claim counts while its
container lives (see `liveness`); every reader sees the reconciled view. Another boot id is an empty book.
/run is a tmpfs, so nothing is synced to disk.
"""

import fcntl
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType

from runtime_wrapper import atomic, liveness, proc, trust
from runtime_wrapper.claim import Claim
from runtime_wrapper.errors import LedgerError, LiveClaimError, LockTimeoutError, NoClaimError, NotRootError, errno_name
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.placement import Holder

FILE = "ledger.json"
LOCK = "lock"
SCHEMA = "gpulatch-ledger/1"
LOCK_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Book:
    """The live claims at one moment; changes count once `Ledger.locked` is left without an error."""

    claims: list[Claim]
    generation: int = 0
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
            with _lock(directory, f"{self.state_dir}/{LOCK}"):
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

    def release(self, container_id: str, *, force: bool) -> list[Claim]:
        """Take a container's claims out of the book; live ones only with `force`.

        Raises NoClaimError, LiveClaimError.
        """
        with self.locked() as book:
            found = book.find(container_id)
            if not found:
                why = "holds no live claim"
                raise NoClaimError(
                    f"container {container_id}", self.state_dir, why, "see the claims with: gpulatch claims"
                )
            if not force:
                why = "is alive and uses its GPUs"
                raise LiveClaimError(f"container {found[0].container}", self.state_dir, why, "stop it, or add --force")
            book.remove(found)
            return found

    def prepare(self) -> None:
        """Make the state directory when it is absent. Raises NotRootError, UntrustedPathError."""
        os.close(self._open(create=True))

    def _open(self, *, create: bool) -> int:
        if os.geteuid() != 0:
            why = f"uid {os.geteuid()} has no part in it, the ledger is shared by the host and root's"
            raise NotRootError("rootless caller", self.state_dir, why, "use a rootful engine, or run this as root")
        return trust.open_private_directory(self.state_dir, "state directory", create=create)

    def _read(self, directory: int) -> Book:
        where = f"{self.state_dir}/{FILE}"
        try:
            return parse(trust.read_file(directory, FILE, "ledger", where), where)
        except FileNotFoundError:
            return Book([])

    def _write(self, directory: int, book: Book) -> None:
        data = {
            "schema": SCHEMA,
            "boot_id": proc.boot_id(),
            "generation": book.generation + 1,
            "claims": [claim.to_json() for claim in book.claims],
        }
        try:
            atomic.replace(directory, FILE, json.dumps(data).encode(), 0o600)
        except OSError as error:
            why = f"cannot be written ({errno_name(error)})"
            raise LedgerError("ledger", f"{self.state_dir}/{FILE}", why, "make room on /run") from error


def parse(raw: bytes, where: str) -> Book:
    """The reconciled book in a ledger's text; empty when it is of another boot. Raises LedgerError."""
    try:
        data = json.loads(raw)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
        if data["boot_id"] != proc.boot_id():
            return Book([], data["generation"])
        claims = [Claim.from_json(claim) for claim in data["claims"]]
        return _reconciled(Book(claims, data["generation"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = f"stop the GPU containers, then run: mv {where} {where}.bad"
        raise LedgerError("ledger", where, f"is damaged ({type(error).__name__}: {error})", hint) from error


def _reconciled(book: Book) -> Book:
    """The book without dead claims, init and cgroup filled in where they are seen for the first time."""
    claims: list[Claim] = []
    for claim in book.claims:
        token = "" if claim.observed else claim.token  # an observed container's spec was left without a mark
        trace = liveness.Trace(claim.id, claim.root, token, claim.holder, claim.init, claim.cgroup)
        seen = liveness.look(trace)
        if seen is not None:
            claims.append(claim if seen == trace else replace(claim, init=seen.init, cgroup=seen.cgroup))
    return Book(claims, book.generation, changed=claims != book.claims)


@contextmanager
def _lock(directory: int, where: str) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(LOCK, flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise LedgerError(
            "ledger lock", where, f"cannot be opened ({errno_name(error)})", "make /run writable"
        ) from error
    try:
        _wait_for(fd, where)
        yield
    finally:
        os.close(fd)  # gives the lock back: no other descriptor of it exists


def _wait_for(fd: int, where: str) -> None:
    """Take the lock; a blocking flock is served in order, the timer only bounds the wait."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        why = f"another process has kept it for {LOCK_TIMEOUT_S:g} s"
        raise LockTimeoutError("ledger lock", where, why, f"find it with: fuser -v {where}")

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LOCK_TIMEOUT_S)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
