"""The book of who holds which GPU: crash-safe, shared by every runtime of the host, without a release hook.

Hot. `/run/gpulatch/ledger.json` is replaced by rename under an exclusive flock on `lock` beside it (never renamed or
unlinked, not inherited by exec, nothing forked while it is held); readers need no lock. A claim counts while its
container lives (see `liveness`); every reader sees the reconciled view, with those in it that run with GPUs and were
not booked (see `recovery`). A ledger that is lost, damaged or of an unknown version is set aside and written anew
from those. Another boot id is an empty book. /run is a tmpfs, so nothing is synced to disk.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from runtime_wrapper import atomic, clock, events, lock, recovery, trust
from runtime_wrapper import book as books
from runtime_wrapper.book import DAMAGE, MAX_PAST, Book, damage, reconciled
from runtime_wrapper.claim import Claim, Device, is_called
from runtime_wrapper.errors import LedgerError, LiveClaimError, NoClaimError, UntrustedPathError, errno_name, quoted
from runtime_wrapper.recovery import Look

FILE = "ledger.json"
SET_ASIDE = "ledger.bad.json"
ROOTS_FILE = "roots.json"
NO_DEVICES: Mapping[int, Device] = {}

Found = TypeVar("Found")
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger in one state directory."""

    state_dir: str = trust.STATE_DIR

    @contextmanager
    def locked(self, by_minor: Mapping[int, Device] = NO_DEVICES, running: Look | None = None) -> Iterator[Book]:
        """The reconciled book under the lock; written back on leaving when something changed.

        `by_minor` are the host's GPUs: without them an unknown container's devices have no name, and only those that
        gpulatch started are found. `running` is what the method of that name has just given. Raises NotRootError,
        UntrustedPathError, LockTimeoutError, LedgerError; then nothing is changed.
        """
        directory = self._open(create=True)
        try:
            found = self._running(directory, by_minor) if running is None else running
            with lock.held(directory, f"{self.state_dir}/{lock.NAME}"):
                book = self._book(directory, found, by_minor)
                yield book
                if book.changed:
                    self._write(directory, book)
            events.append(_events(book))  # not under the lock
        finally:
            os.close(directory)

    def read(self, by_minor: Mapping[int, Device] = NO_DEVICES) -> Book:
        """The reconciled book without the lock; nothing is written. Raises as `locked`."""
        try:
            directory = self._open(create=False)
        except FileNotFoundError:
            return self._anew("its directory is missing", None, by_minor)
        try:
            return self._book(directory, self._running(directory, by_minor), by_minor)
        finally:
            os.close(directory)

    def running(self, by_minor: Mapping[int, Device]) -> Look:
        """The containers that run and may open GPUs, whatever the book says; to be looked for before the lock.

        Raises as `locked`.
        """
        directory = self._open(create=True)
        try:
            return self._running(directory, by_minor)
        finally:
            os.close(directory)

    def still_names(self, claim: Claim) -> bool:
        """Whether the ledger's text has a claim; cheap, without the lock, and False where it cannot be read."""
        try:
            directory = self._open(create=False)
        except (FileNotFoundError, UntrustedPathError):
            return False
        try:
            text = trust.read_file(directory, FILE, "ledger", self.state_dir)
        except (FileNotFoundError, UntrustedPathError):
            return False
        finally:
            os.close(directory)
        return f'"holder": {json.dumps(claim.holder.to_json())}'.encode() in text

    def release(
        self, container: str, root: str | None, *, force: bool, by_minor: Mapping[int, Device] = NO_DEVICES
    ) -> Claim:
        """Take a container's claim out of the book, by its name, its id or what only its id begins with.

        A live one needs `force`, and then stays out.

        Raises NoClaimError, also when several containers fit, and LiveClaimError.
        """
        with self.locked(by_minor) as book:
            fitting = [claim for claim in book.claims if root in (None, claim.root)]
            found = [claim for claim in fitting if claim.id == container]
            found = found or [claim for claim in fitting if is_called(container, claim.name)]
            found = found or [claim for claim in fitting if container and claim.id.startswith(container)]
            if len(found) != 1:
                fit = ", ".join(f"{claim.id} (root {claim.root})" for claim in found)
                why = f"fits {fit}" if found else "holds no live claim"
                hint = "add --root, or write more of the id" if found else "see the claims with: gpulatch claims"
                raise NoClaimError(f"container {quoted(container)}", self.state_dir, why, hint)
            if not force:
                why = "is alive and uses its GPUs"
                raise LiveClaimError(f"container {found[0].container}", self.state_dir, why, "stop it, or add --force")
            book.remove(found)
            book.released.append(found[0].token)
        events.append([_event(events.RELEASED, found[0])])
        return found[0]

    def prepare(self) -> None:
        """Make the state directory when it is absent. Raises NotRootError, UntrustedPathError."""
        os.close(self._open(create=True))

    def _open(self, *, create: bool) -> int:
        trust.require_root_of_host(self.state_dir)
        return trust.open_private_directory(self.state_dir, "state directory", create=create)

    def remember_root(self, root: str) -> None:
        """Keep a state root for which nobody would look, in a file of its own, so that a lost ledger can be rebuilt.

        To be called under the lock. Raises LedgerError.
        """
        if recovery.is_default_root(root):
            return
        directory = self._open(create=True)
        try:
            roots = self._more_roots(directory)
            if root not in roots:
                self._replace(directory, ROOTS_FILE, json.dumps([*roots[-MAX_PAST:], root]).encode())
        finally:
            os.close(directory)

    def _running(self, directory: int, by_minor: Mapping[int, Device]) -> Look:
        return _told(recovery.running, by_minor, self._more_roots(directory))

    def _more_roots(self, directory: int) -> tuple[str, ...]:
        """Unusual state roots; none where the file cannot be used, for they come back with the next create."""
        try:
            roots = json.loads(trust.read_file(directory, ROOTS_FILE, "list of state roots", self.state_dir))
        except (FileNotFoundError, UntrustedPathError, ValueError, RecursionError):
            return ()
        return tuple(root for root in roots if _is_path(root)) if isinstance(roots, list) else ()

    def _book(self, directory: int, found: Look, by_minor: Mapping[int, Device]) -> Book:
        where = f"{self.state_dir}/{FILE}"
        try:
            book = _told(reconciled, books.parse(trust.read_file(directory, FILE, "ledger", where)))
        except FileNotFoundError:
            return self._anew("it is missing", directory, by_minor)
        except UntrustedPathError as error:
            return self._anew(error.why, directory, by_minor)
        except DAMAGE as error:
            return self._anew(damage(error), directory, by_minor)
        _told(book.adopt, found.claims)
        book.unlimited = found.unlimited
        return book

    def _anew(self, why: str, directory: int | None, by_minor: Mapping[int, Device]) -> Book:
        """A book made from the containers that are there, those whose create is not over included.

        These are looked for first: a create that ends meanwhile has left the state by which the second look finds it.
        What was found before the lock is too old, for nothing but the ledger said who came since.
        """
        starting = _told(recovery.starting)
        more_roots = self._more_roots(directory) if directory is not None else ()
        book = Book([], changed=True, lost=why)
        found = _told(recovery.running, by_minor, more_roots)
        book.unlimited = found.unlimited
        _told(book.adopt, found.claims)
        _told(book.adopt, starting)
        return book

    def _write(self, directory: int, book: Book) -> None:
        where = f"{self.state_dir}/{FILE}"
        text = json.dumps(book.to_json()).encode()
        if len(text) > trust.MAX_FILE_BYTES:
            raise LedgerError("ledger", where, f"would grow beyond {trust.MAX_FILE_BYTES >> 20} MiB", "stop containers")
        if book.lost:
            self._set_aside(directory, book)
        self._replace(directory, FILE, text)

    def _set_aside(self, directory: int, book: Book) -> None:
        """Keep a ledger that could not be used, the last one only, whatever kind of file it is."""
        for name in (SET_ASIDE, f"{SET_ASIDE}.{clock.now()}"):  # the first can be taken by a folder
            try:
                os.rename(FILE, name, src_dir_fd=directory, dst_dir_fd=directory)
            except FileNotFoundError:
                return
            except OSError as error:
                failure = error
            else:
                book.set_aside = True
                return
        where = f"{self.state_dir}/{FILE}"
        why = f"cannot be used, nor set aside ({errno_name(failure)})"
        raise LedgerError("ledger", where, why, f"run: mv {where} {where}.bad") from failure

    def _replace(self, directory: int, name: str, data: bytes) -> None:
        """Always under the lock, so one name for the new file will do, and a killed writer leaves no more than that."""
        try:
            atomic.replace(directory, name, data, 0o600, temporary=f".{name}.new")
        except OSError as error:
            why = f"cannot be written ({errno_name(error)})"
            raise LedgerError("ledger", f"{self.state_dir}/{name}", why, "make room on /run") from error


def parse(raw: bytes, where: str) -> Book:
    """The reconciled book in a ledger's text; empty when it is of another boot.

    Raises LedgerError: damaged, or a claim of which it cannot be told whether it lives.
    """
    try:
        written = books.parse(raw)
    except DAMAGE as error:
        raise LedgerError("ledger", where, damage(error), "give a ledger file") from error
    return _told(reconciled, written)


def _is_path(root: object) -> bool:
    return isinstance(root, str) and root.startswith("/") and root.isprintable()


def _events(book: Book) -> list[Event]:
    """What a changed book tells beside the change that was asked for."""
    ended = [_event(events.ENDED, claim) for claim in book.ended]
    found = [_event(events.FOUND, claim) for claim in book.found]
    if not book.lost or not (book.found or book.set_aside):
        return ended + found
    rebuilt = events.event(events.REBUILT, None)
    rebuilt["notes"] = [f"the ledger was made anew from {len(book.found)} running containers: {book.lost}"]
    return [*ended, rebuilt, *found]


def _event(kind: str, claim: Claim) -> Event:
    container = {key: getattr(claim, key, None) for key in events.CONTAINER}
    devices = [device.to_json() for device in claim.devices]
    request = claim.request[: events.MAX_TEXT]
    return {**events.event(kind, container), "request": request, "policy": claim.policy, "devices": devices}


def _told(look: Callable[..., Found], *arguments: Any) -> Found:
    """The result of looking at containers. Raises LedgerError where it cannot be told whether they live."""
    try:
        return look(*arguments)
    except OSError as error:
        why = f"whether its claims live cannot be told ({errno_name(error)} on {error.filename})"
        raise LedgerError("ledger", trust.STATE_DIR, why, "see what the host lacks, then start again") from error
