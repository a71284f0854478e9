"""The container's `config.json`: read as untrusted data, kept as a dict so that unknown fields survive, written once.

Hot. The original stays beside ours as `config.gpulatch.json`, and ours carries a mark: the hash of the original and of
itself. A bundle that comes a second time (run again, or killed between write and exec) starts from the original, so
gpulatch's own edits never count as a request.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import atomic, spelling, trust
from runtime_wrapper.errors import ChangedSpecError, SpecError, UntrustedPathError, errno_name, quoted

WHAT = "container spec"
ORIGINAL_MARK = "gpulatch.io/original"
EDITED_MARK = "gpulatch.io/edited"
CLAIM_MARK = "gpulatch.io/claim"
RECORD_MARK = "gpulatch.io/record"

# A text without any of these asks for no GPU by name. Device rules may still open some, but only of a spec that the
# low-level runtime can read; what is wrong with any other is for it to say.
_REQUEST_WORDS = (
    *(b"NVIDIA_VISIBLE_DEVICES", b"GPULATCH_", b"gpulatch.io/"),
    *(b"nvidia.com/", b"NVIDIA_MIG_CONFIG", b"CUDA_VERSION"),
)

# Of a text that is too long to be parsed more is looked for: rules, mounts, hooks.
_MORE_WORDS = (
    *(b'"major":195', b'"major": 195', b"cdi.k8s.io/", b"nvidia-container-", b"DOCKER_RESOURCE_"),
    *(b'"allow":true,"access"', b'"allow": true, "access"'),
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec, its exact bytes, and the error that reading it by the rules of `trust` gave, if it did."""

    path: str
    raw: bytes
    data: Json
    distrust: UntrustedPathError | None = None

    def require_trust(self) -> None:
        """Raises what stands against using this file for a GPU container: an UntrustedPathError or a SpecError."""
        if self.distrust:
            raise self.distrust
        if key := _odd_key(self.data):
            raise SpecError(WHAT, self.path, _odd(key), "let the engine write it again")


def read(path: str) -> Spec | None:
    """The spec at `path`, or None when it is for the low-level runtime to say what is wrong with it.

    A file that only the rules of `trust` stand against is read all the same, to learn whether it asks for a GPU.
    Raises SpecError when its text speaks of GPUs and cannot be parsed, UntrustedPathError when it cannot be read.
    """
    distrust = None
    try:
        raw = _trusted(path)
    except FileNotFoundError:
        return None
    except UntrustedPathError as error:
        distrust = error
        try:
            raw = trust.read_anyhow(path, WHAT)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            return None
        except UntrustedPathError:
            if trust.mentions_any(path, (*_REQUEST_WORDS, *_MORE_WORDS)):
                raise
            return None  # too big for us to take in, and of no concern to us
    data = _parse(path, raw)
    return None if data is None else Spec(path, raw, data, distrust)


def original(spec: Spec) -> Spec:
    """The spec as the engine wrote it: itself, or the kept original of one that carries gpulatch's mark.

    Raises ChangedSpecError when it was edited since gpulatch wrote it, or when its original is gone. A mark that fits
    neither the spec nor a kept original was not made here and means nothing.
    """
    marks = _annotations(spec.data)
    if ORIGINAL_MARK not in marks and EDITED_MARK not in marks:
        return spec
    unchanged = marks.get(EDITED_MARK) == _digest_without_mark(spec.data)
    kept_path = original_path(spec.path)
    kept = read(kept_path)
    if kept and marks.get(ORIGINAL_MARK) != _sha256(kept.raw):
        kept = None
    hint = f"run: mv {kept_path} {spec.path}, then change that file and start again"
    if unchanged and not kept:
        raise ChangedSpecError(WHAT, spec.path, f"was written by gpulatch, and {kept_path} is not its original", hint)
    if kept and not unchanged:
        raise ChangedSpecError(WHAT, spec.path, "was changed after gpulatch wrote it", hint)
    return Spec(spec.path, kept.raw, kept.data, spec.distrust or kept.distrust) if kept else spec


def write(spec: Spec, edited: Json, claim_token: str | None, record: str = "") -> None:
    """Replace the spec's file by `edited` in one step, keeping the original beside it first.

    `claim_token` marks the container of this claim, and `record` is what the ledger says of it: the low-level runtime
    keeps annotations in its state, so that a lost ledger can be written anew. Not synced to disk: after a power failure
    the container is gone anyway. Raises SpecError, nothing half-written.
    """
    marks = {ORIGINAL_MARK: _sha256(spec.raw)}
    if claim_token:
        marks |= {CLAIM_MARK: claim_token, RECORD_MARK: record}
    annotations = section(edited, "annotations")  # a tenant's own marks of these names would pass for ours
    told = {name: text for name, text in annotations.items() if name not in (CLAIM_MARK, RECORD_MARK)}
    edited = {**edited, "annotations": {**told, **marks}}
    edited["annotations"][EDITED_MARK] = _digest_without_mark(edited)
    kept_name = os.path.basename(original_path(spec.path))
    with _bundle(spec) as (directory, mode):
        was_kept = kept_name in os.listdir(directory)  # then the spec's file may be ours, and this its only original
        atomic.replace(directory, kept_name, spec.raw, mode)
        try:
            atomic.replace(directory, os.path.basename(spec.path), json.dumps(edited).encode(), mode)
        except OSError:
            if not was_kept:
                os.unlink(kept_name, dir_fd=directory)
            raise


def is_original(path: str, digest: str | None) -> bool:
    """Whether the kept original of the spec at `path` has the digest of a spec's mark: gpulatch wrote that spec then.

    Only root can write beside a spec, so no tenant's annotation makes this true. Raises UntrustedPathError, OSError.
    """
    return _sha256(_trusted(original_path(path))) == digest


def marks(path: str) -> dict[str, str]:
    """The annotations of a spec that a process names, of which nothing is known but the path: by the rules of `trust`.

    Raises UntrustedPathError, OSError, ValueError.
    """
    data = json.loads(_trusted(path))
    return _annotations(data) if isinstance(data, dict) else {}


def _trusted(path: str) -> bytes:
    directory = trust.open_directory(os.path.dirname(path), "bundle directory")
    try:
        return trust.read_file(directory, os.path.basename(path), WHAT, path)
    finally:
        os.close(directory)


def put_back(spec: Spec) -> None:
    """Replace the spec's file by the original that `spec` holds. Raises SpecError, nothing half-written."""
    with _bundle(spec) as (directory, mode):
        atomic.replace(directory, os.path.basename(spec.path), spec.raw, mode)


@contextmanager
def _bundle(spec: Spec) -> Iterator[tuple[int, int]]:
    """A descriptor of the spec's directory and the mode of its file, for writing. An OSError becomes a SpecError."""
    directory = trust.open_directory(os.path.dirname(spec.path), "bundle directory")
    try:
        mode = os.stat(os.path.basename(spec.path), dir_fd=directory, follow_symlinks=False).st_mode & 0o777
        yield directory, mode
    except OSError as error:
        why = f"cannot be written ({errno_name(error)})"
        raise SpecError(WHAT, spec.path, why, "make room or make the bundle's file system writable") from error
    finally:
        os.close(directory)


def original_path(path: str) -> str:
    """Where the original of the spec at `path` is kept: `config.gpulatch.json` for `config.json`."""
    return f"{path.removesuffix('.json')}.gpulatch.json"


def environment(data: Json) -> dict[str, str]:
    """The process environment; of duplicates the last wins, as in runc and crun. An entry needs a `=`."""
    entries = section(data, "process").get("env")
    found: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, str) and "=" in entry:
            name, _, value = entry.partition("=")
            found[name] = value
    return found


def annotation(data: Json, name: str) -> str | None:
    """One annotation's text, None when absent or no text."""
    return _annotations(data).get(name)


def section(data: Json, *names: str) -> Json:
    """A nested object of the spec, empty where it is absent or not an object."""
    for name in names:
        inner = data.get(name)
        data = inner if isinstance(inner, dict) else {}
    return data


def _annotations(data: Json) -> dict[str, str]:
    return {name: text for name, text in section(data, "annotations").items() if isinstance(text, str)}


def _odd_key(data: Json) -> str | None:
    try:
        return spelling.odd_key(data)
    except RecursionError:
        return None  # as deep as that lies nothing that a runtime reads


def _parse(path: str, raw: bytes) -> Json | None:
    """The spec's object; invalid UTF-8 is replaced as Go does it, so that the runtime and we read the same text."""
    speaks_of_gpus = any(word in raw for word in _REQUEST_WORDS)
    try:
        data = json.loads(raw.decode(errors="replace"))
        why = "holds no JSON object" if not isinstance(data, dict) else None
    except (ValueError, RecursionError) as error:
        data, why = None, f"is not valid JSON ({error})"
    if not why and speaks_of_gpus and (key := _odd_key(data)):
        why = _odd(key)
    if why and speaks_of_gpus:
        raise SpecError(WHAT, path, f"{why}, and it speaks of GPUs", "let the engine write it again")
    return None if why else data


def _odd(key: str) -> str:
    return f"has the key {quoted(key)}, which the low-level runtime reads as {quoted(key.casefold())} or ignores"


def _digest_without_mark(data: Json) -> str:
    annotations = {name: text for name, text in section(data, "annotations").items() if name != EDITED_MARK}
    return _sha256(json.dumps({**data, "annotations": annotations}, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    import hashlib  # here, because it loads OpenSSL and a container without a GPU request has no use for it

    return hashlib.sha256(data).hexdigest()
