"""Typed access to the JSON of a machine file, with a MachineFileError that names file, value and what is expected.

Pure. Numbers are checked against bool too, which Python counts as int.
"""

import json
from collections.abc import Mapping
from typing import Any

from runtime_wrapper.errors import MachineFileError, quoted

_KINDS: dict[type, str] = {list: "a list", dict: "an object", int: "a number", str: "a text"}


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """The one JSON object that a file holds."""
    try:
        file = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise refused(where, f"not JSON ({error})", "expected one JSON object") from error
    if not isinstance(file, dict):
        raise refused(where, f"holds a JSON {type(file).__name__}", "expected one JSON object")
    return file


def typed(data: Mapping[str, Any], key: str, kind: type, where: str, default: Any = None) -> Any:
    """`data[key]`, which must be of a kind; `default` when absent or null, if there is one."""
    value = data.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise refused(where, f"{quoted(key)} is {quoted(value)}", f"expected {_KINDS[kind]}")
    return value


def text(data: Mapping[str, Any], key: str, where: str, default: str) -> str:
    """One line of text without blanks around it."""
    value = " ".join(typed(data, key, str, where, default).split())
    if not value.isprintable() or not value:
        raise refused(where, f"{quoted(key)} is not a line of text", "expected printable text")
    return value


def list_of(data: Mapping[str, Any], key: str, n: int, where: str) -> list[Any]:
    """A list with one entry per GPU; all null when absent."""
    value: list[Any] = typed(data, key, list, where, [None] * n)
    if len(value) != n:
        raise refused(where, f"{quoted(key)} has {len(value)} entries", f"expected {n}, one per GPU")
    return value


def is_count(value: object, low: int, high: int) -> bool:
    """Whether a value is a whole number in a range, both ends included."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def refused(where: str, why: str, expected: str) -> MachineFileError:
    """The error of every fault in a machine file."""
    return MachineFileError("machine file", where, why, expected)
