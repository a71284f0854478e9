"""What the low-level runtime keeps on disk of a container that it started: runc's `state.json`, crun's `status`.

Hot for `liveness`, which reads one file; `recovery` reads those of the whole host. Written before `create` exits and
never changed, so neither a file nor its directory is proof of life. Raises OSError where it cannot be told.
Sources: runc libcontainer/container.go (BaseState) and configs/config.go, crun src/libcrun/status.c.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import proc
from runtime_wrapper.proc import Cgroup, Process

_CGROUP_MOUNT = "/sys/fs/cgroup"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """One container's state. `spec` is what the runtime keeps of its `config.json`, in the OCI specification's form."""

    id: str
    root: str
    bundle: str
    init: Process
    cgroup_path: str | None
    created: str | None
    spec: Json

    @property
    def cgroup(self) -> Cgroup | None:
        """The container's cgroup as it is now. Raises OSError."""
        return Cgroup.at(self.cgroup_path) if self.cgroup_path else None

    def annotation(self, name: str) -> str | None:
        """One annotation's text."""
        annotations = self.spec.get("annotations")
        text = annotations.get(name) if isinstance(annotations, dict) else None
        return text if isinstance(text, str) else None


def read(root: str, container_id: str, concerns: Callable[[bytes], object]) -> RuntimeState | None:
    """The state below a root, or None: there is none, it is damaged, or its text is not what `concerns` looks for."""
    raw = proc.read(f"{root}/{container_id}/state.json")
    if raw is not None:
        return _runc(root, container_id, raw) if concerns(raw) else None
    raw = proc.read(f"{root}/{container_id}/config.json")
    return _crun(root, container_id, raw) if raw is not None and concerns(raw) else None


def _runc(root: str, container_id: str, raw: bytes) -> RuntimeState | None:
    data = _object(raw)
    init = _process(data.get("init_process_pid"), data.get("init_process_start"))
    config, paths = data.get("config"), data.get("cgroup_paths")
    if init is None or not isinstance(config, dict):
        return None
    cgroup = (paths.get("") or paths.get("devices")) if isinstance(paths, dict) else None
    annotations = dict(label.partition("=")[::2] for label in _texts(config.get("labels")))
    bundle = annotations.pop("bundle", "")
    return RuntimeState(
        container_id, root, bundle, init, _text(cgroup), _text(data.get("created")), _runcs_spec(config, annotations)
    )


def _runcs_spec(config: Json, annotations: Json) -> Json:
    cgroups = config.get("cgroups")
    rules = cgroups.get("devices") if isinstance(cgroups, dict) else None
    return {
        "root": {"path": config.get("rootfs")},
        "annotations": annotations,
        "hooks": config.get("Hooks"),
        "linux": {"resources": {"devices": [_rule(rule) for rule in _objects(rules)]}},
    }


def _rule(rule: Json) -> Json:
    """A device rule of runc, whose type is the number of a character, as the specification has it."""
    kind = rule.get("type")
    letter = chr(kind) if isinstance(kind, int) and 0 < kind < 128 else kind
    return {**rule, "type": letter, "access": rule.get("permissions")}


def _crun(root: str, container_id: str, raw: bytes) -> RuntimeState | None:
    """crun keeps a copy of the spec beside its own status."""
    data = _object(proc.read(f"{root}/{container_id}/status") or b"")
    init = _process(data.get("pid"), data.get("process-start-time"))
    if init is None:
        return None
    cgroup = data.get("cgroup-path")
    path = _CGROUP_MOUNT + cgroup if isinstance(cgroup, str) else None
    bundle = _text(data.get("bundle")) or ""
    return RuntimeState(container_id, root, bundle, init, path, _text(data.get("created")), _object(raw))


def _process(pid: object, start: object) -> Process | None:
    return Process(pid, start) if isinstance(pid, int) and isinstance(start, int) else None


def _object(raw: bytes) -> Json:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
