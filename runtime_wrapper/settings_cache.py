"""The settings as compiled to `/run/gpulatch/settings.json`, which spares a create the reading of TOML.

Hot. The compiled settings hold while the stamps of every source are what they were. Whatever is wrong with them or
with the state directory costs time and nothing else: the sources are then read.
"""

import json
import os

from runtime_wrapper import atomic, settings_values, trust
from runtime_wrapper.errors import UntrustedPathError
from runtime_wrapper.settings_folder import Stamp
from runtime_wrapper.settings_values import Value

NAME = "settings.json"
SCHEMA = "gpulatch-settings/1"  # another word for another form or meaning of the compiled settings

Sections = dict[str, dict[str, Value]]


def load(state_dir: str, stamps: list[Stamp]) -> tuple[Sections | None, str | None]:
    """The sections compiled from sources with these stamps, or None and what is wrong with what is there."""
    try:
        folder = trust.open_private_directory(state_dir, "state directory", create=False)
        try:
            compiled = json.loads(trust.read_file(folder, NAME, "compiled settings", f"{state_dir}/{NAME}"))
        finally:
            os.close(folder)
        if compiled["schema"] != SCHEMA or compiled["sources"] != stamps:
            return None, "stale"
        return _sections(compiled["sections"]), None
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UntrustedPathError):
        return None, "unusable"


def store(state_dir: str, stamps: list[Stamp], sections: Sections) -> bool:
    """Keep sections for sources with these stamps, which must be settled; whether that could be done."""
    data = json.dumps({"schema": SCHEMA, "sources": stamps, "sections": sections})
    try:
        folder = trust.open_private_directory(state_dir, "state directory", create=False)
        try:
            atomic.replace(folder, NAME, data.encode())
        finally:
            os.close(folder)
    except (OSError, UntrustedPathError):
        return False  # no state directory yet, another user's call, a full file system: the next call reads TOML again
    return True


def _sections(data: dict[str, dict[str, object]]) -> Sections:
    """Sections with values that this version knows. Raises ValueError, AttributeError."""
    sections: Sections = {}
    for name, entries in data.items():
        sections[name] = {}
        for key, given in entries.items():
            value = settings_values.accepted(key, given)
            if value is None:
                raise ValueError(key)
            sections[name][key] = value
    return sections
