"""Which engine started a container, and what people call the container there.

For people only: no decision depends on it. The engine is told by its state root, which no tenant chooses, else by
annotations. Names come from Docker's own record, from the annotations of Kubernetes' CRI, CRI-O and nerdctl, and from
the command line of conmon, Podman's monitor and the parent of its containers (conmon.8, --name).
"""

from runtime_wrapper import docker, proc, spec

DOCKER, CONTAINERD, KUBERNETES, CRI_O, PODMAN = "docker", "containerd", "kubernetes", "cri-o", "podman"
DIRECT = "none"  # somebody called the runtime without an engine

MAX_NAME = 128  # the name is kept in the ledger and quoted to others

_MANAGER = "io.container.manager"
_CONTAINER_NAMES = ("io.kubernetes.cri.container-name", "io.kubernetes.cri-o.ContainerName", "nerdctl/name")
_POD_NAMES = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")


def of(data: spec.Json, root: str) -> str:
    """The engine by the runtime's state root and the spec's annotations."""
    above, _, name = root.rpartition("/")
    if name == "moby" or "/runtime-" in above:  # dockerd's own namespace, or `<exec-root>/runtime-<name>/<namespace>`
        return DOCKER
    if above.endswith("/containerd/runc"):
        return KUBERNETES if name == "k8s.io" else CONTAINERD
    manager = spec.annotation(data, _MANAGER)
    if manager in ("libpod", CRI_O):
        return PODMAN if manager == "libpod" else CRI_O
    return KUBERNETES if spec.annotation(data, "io.kubernetes.cri.container-type") else DIRECT


def container_name(engine: str, data: spec.Json, container_id: str, parent: int) -> str | None:
    """The name under which people find the container in its engine, `pod/container` in Kubernetes; None without one.

    `parent` is the pid of the process that starts the container, or of the parent of its first process.
    """
    name = None
    if engine == PODMAN:
        name = _conmons_name(parent, container_id)
    elif engine in (DOCKER, DIRECT):
        name = docker.container_name(data, container_id)
    if not name and engine != PODMAN:  # whose containers carry the annotations of their image
        name = "/".join(part for part in (_first(data, _POD_NAMES), _first(data, _CONTAINER_NAMES)) if part)
    return name[:MAX_NAME] if name else None


def _first(data: spec.Json, names: tuple[str, ...]) -> str | None:
    return next((text for name in names if (text := spec.annotation(data, name))), None)


def _conmons_name(pid: int, container_id: str) -> str | None:
    """What `-n` or `--name` says on the command line of a conmon that looks after this very container."""
    try:
        words = (proc.read(f"/proc/{pid}/cmdline") or b"").decode(errors="replace").split("\0")
    except OSError:
        return None  # only a name
    for option in ("-n", "--name"):
        if container_id in words and option in words[:-1]:
            return words[words.index(option) + 1]
    return None
