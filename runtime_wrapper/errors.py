"""Every way gpulatch refuses, each with a stable code, as one line: what, where: why; what to do.

Hot: imported by the pipeline. `docs/errors.md` lists the codes; a test compares the two.
"""

import errno
import re
from typing import ClassVar

MAX_QUOTED = 80

# Docker derives exit codes from these words in a runtime's message (moby daemon/errors.go,
# translateContainerdStartErr), so a tenant's text that holds one of them must not reach the message as it is.
_DOCKER_WORDS = re.compile(
    r"permission denied|is a directory|not a directory|no such file or directory|executable file not found",
    re.IGNORECASE,
)


class GpulatchError(Exception):
    """A refusal: `what` is at fault, `where` it stands, `why` it cannot be, `hint` what to do about it."""

    code: ClassVar[str] = "GL-9000"

    def __init__(self, what: str, where: str, why: str, hint: str) -> None:
        super().__init__(what, where, why, hint)
        self.what, self.where, self.why, self.hint = what, where, why, hint

    def __str__(self) -> str:
        return one_line(f"gpulatch: {self.what}, {self.where}: {self.why}; {self.hint} ({self.code})")


class InternalError(GpulatchError):
    """An exception that nobody expected: a bug in gpulatch."""

    code = "GL-9001"


class HostError(GpulatchError):
    """A system call failed that succeeds on a healthy host: out of descriptors, memory or disk, or an I/O error."""

    code = "GL-9002"


class SpecError(GpulatchError):
    """The bundle or its `config.json` cannot be used."""

    code = "GL-1001"


class UntrustedPathError(GpulatchError):
    """A file or directory is not what gpulatch may open: owner, mode, type, link or size."""

    code = "GL-1002"


class ChangedSpecError(GpulatchError):
    """`config.json` carries gpulatch's mark but is no longer what gpulatch wrote."""

    code = "GL-1003"


class ContainerIdError(GpulatchError):
    """The container id holds a character that no runtime accepts."""

    code = "GL-1004"


class HiddenDeviceError(GpulatchError):
    """A mount of the container covers the path of a device node that it needs."""

    code = "GL-1005"


class RestoreError(GpulatchError):
    """A checkpoint of a GPU container cannot be restored."""

    code = "GL-1006"


class RequestError(GpulatchError):
    """The GPU request does not follow the grammar."""

    code = "GL-2001"


class UnknownDeviceError(GpulatchError):
    """The request names a GPU that this host does not have, or names it ambiguously."""

    code = "GL-2002"


class CudaVisibleDevicesError(GpulatchError):
    """The container's own `CUDA_VISIBLE_DEVICES` cannot be met by its grant."""

    code = "GL-2003"


class NoDriverError(GpulatchError):
    """The NVIDIA driver, or a part of it that the request needs, is not loaded on this host."""

    code = "GL-3001"


class ProbeError(GpulatchError):
    """The machine could not be looked at in time."""

    code = "GL-3002"


class MachineFileError(GpulatchError):
    """A machine file or inventory snapshot is not well-formed."""

    code = "GL-3003"


class NotEnoughGpusError(GpulatchError):
    """Fewer free GPUs than asked for, or no set of them meets the constraints."""

    code = "GL-4001"


class HeldDeviceError(GpulatchError):
    """A GPU asked for by name is held by another container in a way that excludes this request."""

    code = "GL-4002"


class MigDeviceError(GpulatchError):
    """A GPU that is split into MIG instances was asked for as a whole."""

    code = "GL-4003"


class LedgerError(GpulatchError):
    """The ledger cannot be read or written."""

    code = "GL-5001"


class LockTimeoutError(GpulatchError):
    """Another process kept the ledger's lock for too long."""

    code = "GL-5002"


class LiveClaimError(GpulatchError):
    """The container id already holds a live claim, or its spec file is being used for another start right now."""

    code = "GL-5003"


class NotRootError(GpulatchError):
    """The caller is not root: the ledger is shared by the whole host and belongs to root."""

    code = "GL-5004"


class NoClaimError(GpulatchError):
    """There is no claim under that container id."""

    code = "GL-5005"


class LowLevelError(GpulatchError):
    """The low-level runtime cannot be found or started."""

    code = "GL-6001"


class WrongRuntimeError(GpulatchError):
    """A container asks for GPUs under a runtime that is not gpulatch's and gives none."""

    code = "GL-6002"


class SettingsError(GpulatchError):
    """The settings file cannot be used."""

    code = "GL-7001"


def quoted(text: object) -> str:
    """A value of unknown origin as it may stand in a message: quoted, one line, at most `MAX_QUOTED` characters."""
    shown = str(text)
    if len(shown) > MAX_QUOTED:
        shown = shown[:MAX_QUOTED] + "..."
    return f'"{shown}"'


def one_line(text: str) -> str:
    """Text without line breaks, control characters or the words from which Docker derives an exit code."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return _DOCKER_WORDS.sub(lambda match: match.group().replace(" ", "-"), plain)


def errno_name(error: OSError) -> str:
    """`EACCES` and the like: the name of an OSError's number, never its strerror."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
