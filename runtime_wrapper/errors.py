"""Every way gpulatch refuses, each with a stable code, as one line: what, where: why; what to do.

Hot: imported by the pipeline. The docstring of a class says what it means and its `remedy` what to do: what `gpulatch
explain GL-xxxx` shows, and what a test compares with `docs/errors.md`.
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
    remedy: ClassVar[str] = ""

    def __init__(self, what: str, where: str, why: str, hint: str) -> None:
        super().__init__(what, where, why, hint)
        self.what, self.where, self.why, self.hint = what, where, why, hint

    def __str__(self) -> str:
        return one_line(f"gpulatch: {self.what}, {self.where}: {self.why}; {self.hint} ({self.code})")


class InternalError(GpulatchError):
    """An exception that nobody expected: a bug in gpulatch."""

    code = "GL-9001"
    remedy = (
        "Send the traceback kept in `/run/gpulatch/traceback.txt` to the project. To start containers "
        "meanwhile, make the file `off` beside the low-level link."
    )


class HostError(GpulatchError):
    """A system call failed that succeeds on a healthy host: out of descriptors, memory or disk, or an I/O error."""

    code = "GL-9002"
    remedy = "See what the host lacks (the message has the errno and the file), then start again."


class SpecError(GpulatchError):
    """The bundle or its `config.json` cannot be used."""

    code = "GL-1001"
    remedy = "Let the engine write the bundle again; the message says which key or line is wrong."


class UntrustedPathError(GpulatchError):
    """A file or directory is not what gpulatch may open: owner, mode, type, link or size."""

    code = "GL-1002"
    remedy = (
        "Check what is in the file or directory, then give it to root and take the write bits of others away "
        "(`chown root`, `chmod go-w`); put a plain file in the place of a link."
    )


class ChangedSpecError(GpulatchError):
    """`config.json` carries gpulatch's mark but is no longer what gpulatch wrote."""

    code = "GL-1003"
    remedy = "Run `mv config.gpulatch.json config.json` in the bundle, then make your change in that file."


class ContainerIdError(GpulatchError):
    """The container id holds a character that no runtime accepts."""

    code = "GL-1004"
    remedy = "Use letters, digits and `_ + . -`, and neither `.` nor `..`."


class HiddenDeviceError(GpulatchError):
    """A mount of the container covers the path of a device node that it needs."""

    code = "GL-1005"
    remedy = "Remove the mount over the node, or the GPU request."


class RestoreError(GpulatchError):
    """A checkpoint of a GPU container cannot be restored."""

    code = "GL-1006"
    remedy = "Start the container anew instead of restoring it."


class RequestError(GpulatchError):
    """The GPU request does not follow the grammar."""

    code = "GL-2001"
    remedy = "Use the grammar in docs/requests.md; the message names the token and the valid set."


class UnknownDeviceError(GpulatchError):
    """The request names a GPU that this host does not have, or names it ambiguously."""

    code = "GL-2002"
    remedy = "See the host's GPUs with `gpulatch probe`; write more digits of an ambiguous UUID."


class CudaVisibleDevicesError(GpulatchError):
    """The container's own `CUDA_VISIBLE_DEVICES` cannot be met by its grant."""

    code = "GL-2003"
    remedy = "Leave the variable out, or name GPUs that the container is granted."


class RequirementError(GpulatchError):
    """The container's image needs a newer driver, or another GPU, than this host has for it."""

    code = "GL-2004"
    remedy = (
        "Install the driver that the message names, or use an image for the CUDA that this host runs. To start it all "
        "the same, set `NVIDIA_DISABLE_REQUIRE=1` in the container. See docs/requirements.md."
    )


class NoDriverError(GpulatchError):
    """The NVIDIA driver, or a part of it that the request needs, is not loaded on this host."""

    code = "GL-3001"
    remedy = "Load the module that the message names (`modprobe nvidia`, `modprobe nvidia-uvm`)."


class ProbeError(GpulatchError):
    """The machine could not be looked at in time."""

    code = "GL-3002"
    remedy = "See `dmesg` for what the driver says, then run `gpulatch probe`."


class MachineFileError(GpulatchError):
    """A machine file or inventory snapshot is not well-formed."""

    code = "GL-3003"
    remedy = "Mend the file; the message names row, column and what is expected. See docs/files.md."


class DriverFilesError(GpulatchError):
    """The driver's libraries cannot be mounted: absent, of another version, or something is in the way."""

    code = "GL-3004"
    remedy = (
        "After an upgrade of the driver: reload its modules or reboot. Otherwise install the libraries of the loaded "
        'version and run `ldconfig`, or take away what the message names. `driver_files = "none"` mounts none.'
    )


class NotEnoughGpusError(GpulatchError):
    """Fewer free GPUs than asked for, or no set of them meets the constraints."""

    code = "GL-4001"
    remedy = "Stop a holder (`gpulatch claims`), ask for fewer, or loosen `link=` or `numa=`."


class HeldDeviceError(GpulatchError):
    """A GPU asked for by name is held by another container in a way that excludes this request."""

    code = "GL-4002"
    remedy = "Stop the container that is named, or ask for another GPU."


class MigDeviceError(GpulatchError):
    """A GPU that is split into MIG instances was asked for as a whole."""

    code = "GL-4003"
    remedy = "Ask for a GPU that is not split, or remove its MIG instances."


class LedgerError(GpulatchError):
    """The ledger cannot be read or written."""

    code = "GL-5001"
    remedy = (
        "A ledger that cannot be used is set aside and made anew from the running containers by itself. If it "
        "cannot be written: make room on `/run`. If a process or cgroup cannot be looked at: see what the "
        "host lacks."
    )


class LockTimeoutError(GpulatchError):
    """Another process kept the ledger's lock for too long."""

    code = "GL-5002"
    remedy = "Find the process with `fuser -v /run/gpulatch/lock`; a stopped one goes on with `kill -CONT`."


class LiveClaimError(GpulatchError):
    """The container id already holds a live claim, or its spec file is being used for another start right now."""

    code = "GL-5003"
    remedy = "Delete the container first, use another id, or for `release` add `--force`."


class NotRootError(GpulatchError):
    """The caller is not root: the ledger is shared by the whole host and belongs to root."""

    code = "GL-5004"
    remedy = "Use a rootful engine, or run the command as root."


class NoClaimError(GpulatchError):
    """There is no claim under that container id."""

    code = "GL-5005"
    remedy = "See the claims with `gpulatch claims`; a dead container's claim has already gone."


class LowLevelError(GpulatchError):
    """The low-level runtime cannot be found or started."""

    code = "GL-6001"
    remedy = (
        "See what is wrong with `gpulatch runtimes`, then install the name anew on a runc or crun: "
        "`packaging/install NAME LOWLEVEL`."
    )


class WrongRuntimeError(GpulatchError):
    """A container asks for GPUs under a runtime that is not gpulatch's and gives none."""

    code = "GL-6002"
    remedy = "Add `--runtime gpulatch` to `docker run`, or make it the default runtime. See docs/docker.md."


class SettingsError(GpulatchError):
    """The settings cannot be used."""

    code = "GL-7001"
    remedy = (
        "Mend what the message names below `/etc/gpulatch`; `gpulatch config check` names everything that is "
        "wrong. See docs/settings.md."
    )


class CdiError(GpulatchError):
    """A CDI spec cannot be used or written."""

    code = "GL-7002"
    remedy = (
        "Mend or remove the file that the message names; `gpulatch cdi list` names everything that is wrong. See "
        "docs/cdi.md."
    )


class StaleCdiError(GpulatchError):
    """Driver files come from CDI specs (`driver_files = "cdi"`), and these were not compiled or have changed since."""

    code = "GL-7003"
    remedy = (
        "Run `gpulatch cdi compile`; let the host run it at boot and after each change of a CDI spec. See docs/cdi.md."
    )


def by_code(code: str) -> type[GpulatchError] | None:
    """The class with a code, written in any case."""
    return next((kind for kind in GpulatchError.__subclasses__() if kind.code == code.upper()), None)


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
