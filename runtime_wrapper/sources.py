"""Where a container can ask for GPUs: every place that says something, in the order in which they count.

Hot: runs on every create, and ends it when nothing is said. Which of the wishes counts on this host is for `policy`.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import cdi_annotations, docker, mount_list, spec, variables
from runtime_wrapper.errors import quoted
from runtime_wrapper.variables import Environment, Said

ANNOTATION = "gpulatch.io/gpus"

GPU_MAJOR = 195  # NV_MAJOR_DEVICE_NUMBER, the only fixed major of the driver (nv-chardev-numbers.h)
LAST_GPU_MINOR = 247
_UINT32 = (1 << 32) - 1  # -1, which stands for any number, in 32 bits

MAX_PLACE = 120  # the place is kept in the ledger, and a tenant chooses the names of variables and annotations

# Engines whose annotations include the image's own, so that an image could ask for GPUs by itself.
_ANNOTATIONS_OF_IMAGES = ("libpod", "cri-o")
_CONTAINER_TYPES = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
# NVIDIA's prestart hook, by its installed names.
_NVIDIA_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")

# Variables that somebody may have written for one of ours or NVIDIA's.
_ALMOST = re.compile(r"gpulatch_?\w*|(nvidia_)?visible_(gpu|device)s?|nvidia_visible\w*|gpus?", re.IGNORECASE)
_KNOWN = (variables.OWN, variables.NVIDIA, "GPULATCH_DEVICES")
_OWN_ANNOTATIONS = (ANNOTATION, spec.ORIGINAL_MARK, spec.EDITED_MARK, spec.CLAIM_MARK, spec.RECORD_MARK)


@dataclass(frozen=True, slots=True)
class Wish:
    """What one source says. `source` is its name in the settings, `place` its name in messages."""

    source: str
    place: str
    text: str


def wishes(data: spec.Json, container_id: str, *, annotations: bool = True) -> list[Wish]:
    """What every source says, in default order; a source whose text is empty says nothing.

    A pod's own container wishes nothing: annotations and variables are for those in the pod.
    """
    environment = spec.environment(data)
    silent: set[str] = set()
    if is_pods_own(data):
        silent = SOURCES.keys() - {"nodes"}
    elif not annotations or _annotations_are_images(data):
        silent = {"annotation", "cdi_annotations"}
    return [
        Wish(source, place if len(place) <= MAX_PLACE else general, text)
        for source, (general, read) in SOURCES.items()
        if source not in silent
        for place, text in read(data, container_id, environment)
        if text.strip(", \t\r\n\v\f")
    ]


def ask_for_gpus(wishes: Sequence[Wish]) -> bool:
    """Whether the wishes are for GPUs, whatever the settings say: a Swarm resource by itself may be anything, mounts
    count only where the settings have them, and `void` asks for nothing."""
    return any(wish.source not in ("swarm", "volume_mounts") and not _says_void(wish.text) for wish in wishes)


def _says_void(text: str) -> bool:
    return "void" in (item.strip().lower() for item in text.split(","))


def unheard(data: spec.Json) -> list[str]:
    """What in a spec looks like a request and is none, in words."""
    notes = []
    if is_pods_own(data):
        notes.append("the pod's own container: it asks for nothing, whatever its annotations and image say")
    elif _annotations_are_images(data) and spec.annotation(data, ANNOTATION) is not None:
        notes.append(f"annotation {ANNOTATION} does not count under Podman and CRI-O, whose images bring theirs along")
    for name in spec.environment(data):
        if _ALMOST.fullmatch(name) and name not in _KNOWN and not name.startswith(variables.OWN_PREFIX):
            notes.append(f"variable {quoted(name)} says nothing here: perhaps {variables.OWN} is meant")
    for name in spec.section(data, "annotations"):
        if name.startswith("gpulatch.io/") and name not in _OWN_ANNOTATIONS:
            notes.append(f"annotation {quoted(name)} says nothing here: perhaps {ANNOTATION} is meant")
    return notes


def is_pods_own(data: spec.Json) -> bool:
    """Whether this is the container that only keeps a pod's namespaces (`pause`), by containerd's or CRI-O's word."""
    return any(spec.annotation(data, name) == "sandbox" for name in _CONTAINER_TYPES)


def unlimited(data: spec.Json) -> bool:
    """Whether the spec opens GPUs that it does not name: by an allow-all rule (`--privileged`) or a wildcard."""
    return any(_opens(rule) and _is_wild(rule) for rule in _device_rules(data))


def opened(data: spec.Json) -> list[int]:
    """Minors of the GPUs that the spec opens one by one: the rule counts, whatever node or mount stands beside it."""
    if unlimited(data):
        return []
    numbers = (_number(rule) for rule in _device_rules(data) if _opens(rule))
    return [minor for major, minor in numbers if major == GPU_MAJOR and minor is not None and minor <= LAST_GPU_MINOR]


def privileged(data: spec.Json) -> bool:
    """Whether the container may hold CAP_SYS_ADMIN, as NVIDIA's runtime decides it."""
    bounding = spec.section(data, "process", "capabilities").get("bounding")
    return isinstance(bounding, list) and "CAP_SYS_ADMIN" in bounding


def has_nvidia_hook(data: spec.Json) -> bool:
    """Whether NVIDIA's prestart hook is in the spec: dockerd adds it for every `--gpus`, `--gpus 0` too."""
    return any(is_nvidia_hook(hook) for hook in _hooks(data))


def is_nvidia_hook(hook: object) -> bool:
    """Whether an entry of the spec's hooks would inject by itself what gpulatch gives or denies."""
    named = isinstance(hook, dict) and os.path.basename(str(hook.get("path", ""))) in _NVIDIA_HOOKS
    return named or is_ctrs_hook(hook)


def nvidia_would_act(data: spec.Json) -> bool:
    """Whether NVIDIA's own runtime or hook might give GPUs to a container that gpulatch gives none.

    They act on `NVIDIA_VISIBLE_DEVICES`, on old CUDA images by their `CUDA_VERSION` alone, on CDI annotations and,
    where their settings say so, on mounts.
    """
    environment = spec.environment(data)
    value = environment.get(variables.NVIDIA)
    cdi = any(cdi_annotations.PREFIX in name for name in spec.section(data, "annotations"))
    asked = value not in (None, "", "void") or (value is None and variables.CUDA_VERSION in environment)
    return asked or cdi or any(mount_list.asked(data)) or any(is_ctrs_hook(hook) for hook in _hooks(data))


def _from_annotation(data: spec.Json, container_id: str, environment: Environment) -> Said:
    text = spec.annotation(data, ANNOTATION)
    if text:
        yield f"annotation {ANNOTATION}", text


def _from_docker(data: spec.Json, container_id: str, environment: Environment) -> Said:
    text = docker.device_requests(data, container_id)
    if text:
        yield "docker DeviceRequests", text


def _from_ctr(data: spec.Json, container_id: str, environment: Environment) -> Said:
    """The GPUs of `ctr run --gpus`, which containerd hands to NVIDIA's tool by a hook (containerd contrib/nvidia)."""
    words = (word for hook in _hooks(data) if is_ctrs_hook(hook) for word in hook["args"])
    devices = [word.partition("=")[2] for word in words if isinstance(word, str) and word.startswith("--device=")]
    if devices:
        yield "ctr --gpus", ",".join(devices)


def _hooks(data: spec.Json) -> Iterator[Any]:
    for hooks in spec.section(data, "hooks").values():
        yield from hooks if isinstance(hooks, list) else ()


def is_ctrs_hook(hook: object) -> bool:
    """Whether an entry of the spec's hooks is containerd's call of NVIDIA's tool."""
    args = hook.get("args") if isinstance(hook, dict) else None
    words = [os.path.basename(word) for word in args if isinstance(word, str)] if isinstance(args, list) else []
    return "oci-hook" in words and "nvidia-container-cli" in words


def _annotations_are_images(data: spec.Json) -> bool:
    return spec.annotation(data, "io.container.manager") in _ANNOTATIONS_OF_IMAGES


def _from_nodes(data: spec.Json, container_id: str, environment: Environment) -> Said:
    yield "device rules of the spec", ",".join(f"/dev/nvidia{minor}" for minor in opened(data))


def _device_rules(data: spec.Json) -> list[spec.Json]:
    rules = spec.section(data, "linux", "resources").get("devices")
    return [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []


def _is_wild(rule: spec.Json) -> bool:
    """Whether an opening rule covers GPUs that it does not name. One of type `a` opens everything in runc."""
    major, minor = _number(rule)
    if rule.get("type") in (None, "", "a"):
        return major != GPU_MAJOR or minor is None
    any_gpu = minor is None or (major is None and minor <= LAST_GPU_MINOR)
    return major in (None, GPU_MAJOR) and any_gpu


def _number(rule: spec.Json) -> tuple[int | None, int | None]:
    """Major and minor of a rule as runc and crun take them; None stands for any."""
    return _cut(rule.get("major")), _cut(rule.get("minor"))


def _cut(value: object) -> int | None:
    """A device number cut to 32 bits; text is 0 for crun, and nothing that runc takes."""
    if value is None:
        return None
    number = value & _UINT32 if isinstance(value, int) else 0
    return None if number == _UINT32 else number


def _opens(rule: spec.Json) -> bool:
    """Whether a rule lets character devices be opened; making nodes alone (`m`) opens none."""
    kind, access = rule.get("type"), rule.get("access")
    return rule.get("allow") is True and kind in (None, "", "a", "c", "u") and access not in ("m", "")


SOURCES: dict[str, tuple[str, Callable[[spec.Json, str, Environment], Said]]] = {
    "annotation": (f"annotation {ANNOTATION}", _from_annotation),
    "docker": ("docker DeviceRequests", _from_docker),
    "ctr": ("ctr --gpus", _from_ctr),
    "cdi_annotations": (
        f"annotations {cdi_annotations.PREFIX}*",
        lambda data, own_id, env: cdi_annotations.asked(data),
    ),
    "volume_mounts": (f"mounts {mount_list.FOLDER}", lambda data, own_id, env: mount_list.asked(data)),
    "swarm": (f"env {variables.SWARM_PREFIX}*", lambda data, own_id, env: variables.swarm(env)),
    "gpulatch_gpus": (f"env {variables.OWN}, {variables.OWN_PREFIX}*", lambda data, own_id, env: variables.own(env)),
    "nvidia_visible_devices": (f"env {variables.NVIDIA}", lambda data, own_id, env: variables.nvidia(env)),
    "nvidia_mig_config": (f"env {variables.MIG_PROFILE}", lambda data, own_id, env: variables.mig_profile(env)),
    "legacy_image": (f"env {variables.CUDA_VERSION}", lambda data, own_id, env: variables.legacy_image(env)),
    "nodes": ("device rules of the spec", _from_nodes),
}
"""By name in the settings, in default order: what people call the place, and what reads it."""

OFF_BY_DEFAULT = ("volume_mounts",)
VARIABLES = ("swarm", "gpulatch_gpus", "nvidia_visible_devices", "nvidia_mig_config", "legacy_image")
