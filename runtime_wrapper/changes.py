"""What differs between two specs, in words: what gpulatch changed is told by comparing, not by what it meant to do.

Pure. Only what gpulatch may change is looked at: device nodes and rules, variables, hooks, groups, mounts (those added
are the driver's files), CDI annotations.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from runtime_wrapper import spec
from runtime_wrapper.errors import quoted

_VERSION = re.compile(r"\.so\.(\d+\.[\d.]*\d)$")


def between(before: spec.Json, after: spec.Json) -> list[str]:
    """One line for each difference."""
    lines = _differences(_nodes(before), _nodes(after), "device node")
    nodes = {**_nodes(before), **_nodes(after)}.values()
    rules_before, rules_after = (_rules(data, {node.rpartition(" ")[2] for node in nodes}) for data in (before, after))
    lines += _differences(rules_before, rules_after, "device rule")
    lines += _variables(spec.environment(before), spec.environment(after))
    lines += _differences(_hooks(before), _hooks(after), "hook")
    lines += _differences(_groups(before), _groups(after), "additional group")
    lines += _mounts(_objects(before.get("mounts")), _objects(after.get("mounts")))
    lines += _differences(_annotations(before), _annotations(after), "annotation")
    return lines + _cut(spec.section(before, "annotations"), spec.section(after, "annotations"))


def _differences(before: dict[Any, str], after: dict[Any, str], what: str) -> list[str]:
    dropped = [f"{what} {text} dropped" for key, text in before.items() if key not in after]
    return dropped + [f"{what} {text} added" for key, text in after.items() if key not in before]


def _nodes(data: spec.Json) -> dict[Any, str]:
    found = {}
    for node in _objects(spec.section(data, "linux").get("devices")):
        number = f"{node.get('major')}:{node.get('minor')}"
        found[str(node.get("path")), number] = f"{str(node.get('path'))[:80]} {number}"
    return found


def _rules(data: spec.Json, told: set[str]) -> dict[Any, str]:
    """Allow rules but for those that open a node already told of."""
    found = {}
    for rule in _objects(spec.section(data, "linux", "resources").get("devices")):
        number = ":".join("*" if part in (None, -1) else str(part) for part in (rule.get("major"), rule.get("minor")))
        if rule.get("allow") is True and number not in told:
            text = f"{rule.get('type')} {number} {rule.get('access')}"
            found[text] = text
    return found


def _variables(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    for name in (*after, *(name for name in before if name not in after)):
        if name not in after:
            yield f"variable {name} dropped (was {quoted(before[name])})"
        elif name not in before:
            yield f"variable {name}={quoted(after[name])} added"
        elif before[name] != after[name]:
            yield f"variable {name}={quoted(after[name])} set (was {quoted(before[name])})"


def _hooks(data: spec.Json) -> dict[Any, str]:
    found = {}
    for stage, hooks in spec.section(data, "hooks").items():
        for hook in _objects(hooks):
            name = os.path.basename(str(hook.get("path")))[:80]
            found[stage, name] = f"{stage} {name}"
    return found


def _groups(data: spec.Json) -> dict[Any, str]:
    groups = spec.section(data, "process", "user").get("additionalGids")
    return {group: str(group) for group in groups if isinstance(group, int)} if isinstance(groups, list) else {}


def _annotations(data: spec.Json) -> dict[Any, str]:
    return {name: name[:80] for name in spec.section(data, "annotations") if not name.startswith("gpulatch.io/")}


def _mounts(before: list[spec.Json], after: list[spec.Json]) -> Iterator[str]:
    """Mounts that were dropped, and one line for each folder into which files of the driver were mounted."""
    for mount in before:
        if mount not in after:
            yield f"mount {str(mount.get('destination'))[:80]} dropped"
    folders: dict[str, list[str]] = {}
    for mount in after:
        if mount not in before:
            folders.setdefault(os.path.dirname(str(mount.get("destination"))), []).append(str(mount.get("source")))
    for folder, sources in folders.items():
        versions = {match[1] for source in sources if (match := _VERSION.search(source))}
        of = f" of {versions.pop()}" if len(versions) == 1 else ""
        yield f"{len(sources)} driver file{'s' * (len(sources) > 1)}{of} mounted below {folder[:80]}"


def _cut(before: spec.Json, after: spec.Json) -> list[str]:
    """Annotations of which a part was taken out."""
    names = [
        name for name in before if not name.startswith("gpulatch.io/") and after.get(name, before[name]) != before[name]
    ]
    return [f"annotation {name[:80]}={quoted(after[name])} set (was {quoted(before[name])})" for name in names]


def _objects(value: object) -> list[spec.Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
