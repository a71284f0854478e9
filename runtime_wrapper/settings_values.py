"""What each setting can be.

Hot and pure. `docs/settings.md` lists the settings with their reasons; a test compares the two.
"""

from typing import Any

from runtime_wrapper.sources import SOURCES
from runtime_wrapper.variables import SWARM_PREFIX

Value = str | tuple[str, ...]

# In the order in which people see them.
NAMES = (
    "mode",
    "sources",
    "swarm_resources",
    "lone_all",
    "count_when_busy",
    "all_when_held",
    "accept_env",
    "allow_exclusive_from",
    "allow_monitor_from",
    "unlimited_devices",
    "driver_files",
    "numa_pin",
)

# What each can be, default first. `LISTS` hold sources, by default all of them (but `sources` not those that are off by
# default), `VARIABLE_LISTS` names of variables that Swarm makes of generic resources, by default none.
CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("enforce", "observe"),
    "lone_all": ("all", "none"),
    "count_when_busy": ("refuse", "share"),
    "all_when_held": ("rest", "refuse"),
    "accept_env": ("always", "privileged", "never"),
    "unlimited_devices": ("report", "refuse"),
    "driver_files": ("auto", "own", "none", "cdi"),
    "numa_pin": ("off",),
}
LISTS = ("sources", "allow_exclusive_from", "allow_monitor_from")
VARIABLE_LISTS = ("swarm_resources",)


def accepted(key: str, value: Any) -> Value | None:
    """The value as a setting has it, read from TOML or JSON; None when this setting does not take it, or is none."""
    if key in CHOICES:
        return value if isinstance(value, str) and value in CHOICES[key] else None
    known = _is_source if key in LISTS else _is_of_swarm if key in VARIABLE_LISTS else None
    if known and isinstance(value, list) and all(isinstance(item, str) and known(item) for item in value):
        return tuple(dict.fromkeys(value))
    return None


def _is_source(item: str) -> bool:
    return item in SOURCES


def _is_of_swarm(item: str) -> bool:
    name = item.removeprefix(SWARM_PREFIX)
    return name not in ("", item) and name.isprintable() and "=" not in name
