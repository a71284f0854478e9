"""Keys of a spec in odd spelling, which runc reads and gpulatch would overlook.

Pure. Go's encoding/json matches keys without regard to case, in an object twice even (`"Env"` beside `"env"`); crun and
Python do not. No engine writes such keys, so a GPU container's spec that has one is refused.
"""

from typing import Any

# What gpulatch reads or edits: key -> the same for the object, or the objects of the list, below it.
_KNOWN: dict[str, Any] = {
    "process": {"env": {}, "user": {"uid": {}, "gid": {}, "additionalGids": {}}, "args": {}},
    "linux": {
        "devices": {"path": {}, "type": {}, "major": {}, "minor": {}, "fileMode": {}, "uid": {}, "gid": {}},
        "resources": {"devices": {"allow": {}, "type": {}, "major": {}, "minor": {}, "access": {}}},
        "namespaces": {},
        "cgroupsPath": {},
    },
    "mounts": {"destination": {}, "type": {}, "source": {}, "options": {}},
    "hooks": {
        stage: {"path": {}, "args": {}, "env": {}}
        for stage in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
    },
    "annotations": {},
    "root": {"path": {}},
}


def odd_key(data: Any) -> str | None:
    """The first key that equals a known one but for its case, where gpulatch would have to know it; else None."""
    return _odd_key(data, _KNOWN)


def _odd_key(value: Any, known: dict[str, Any]) -> str | None:
    if isinstance(value, list):
        return next((odd for inner in value if (odd := _odd_key(inner, known))), None)
    if not isinstance(value, dict) or not known:
        return None
    folded = {name.casefold() for name in known}
    for key, inner in value.items():
        if key not in known and str(key).casefold() in folded:
            return str(key)
        odd = _odd_key(inner, known[key]) if key in known else None
        if odd is not None:
            return odd
    return None
