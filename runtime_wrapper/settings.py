"""The administrator's settings of one runtime name, from `/etc/gpulatch/config.toml` and its drop-ins.

Hot, and read only once a container asks for a GPU: a broken file never stops another container. `docs/settings.md`
lists the settings with their reasons and says how they are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime_wrapper import trust
from runtime_wrapper.sources import OFF_BY_DEFAULT, SOURCES

DIRECTORY = "/etc/gpulatch"

ENFORCE, OBSERVE = "enforce", "observe"


@dataclass(frozen=True, slots=True)
class Settings:
    """One runtime name's settings.

    `mode`: `enforce` writes the grant into the container, `observe` books a mark, reports and changes nothing.
    `sources`: where a request is looked for, in this order. `swarm_resources`: the variables of Swarm's generic
    resources that are GPUs. `lone_all`: what `NVIDIA_VISIBLE_DEVICES=all` or an old CUDA image means by itself, which
    is most likely the image's wish. `count_when_busy`: a count that free GPUs do not meet is refused, or filled up with
    shared ones. `all_when_held`: `all` means the rest when some are held, or is refused. `accept_env`: whose variables
    count. `allow_exclusive_from`, `allow_monitor_from`: the sources that may ask for those policies.
    `unlimited_devices`: a container that may open every device is reported, or refused, while another holds a GPU
    exclusively. `driver_files`: whether the driver's libraries are mounted: unless the spec brings them, always, never,
    or those of a CDI spec. `numa_pin` has one value yet. `note`, which is no setting, is what an event may say about
    how they were read.
    """

    mode: str = ENFORCE
    sources: tuple[str, ...] = tuple(name for name in SOURCES if name not in OFF_BY_DEFAULT)
    swarm_resources: tuple[str, ...] = ()
    lone_all: str = "all"
    count_when_busy: str = "refuse"
    all_when_held: str = "rest"
    accept_env: str = "always"
    allow_exclusive_from: tuple[str, ...] = tuple(SOURCES)
    allow_monitor_from: tuple[str, ...] = tuple(SOURCES)
    unlimited_devices: str = "report"
    driver_files: str = "auto"
    numa_pin: str = "off"
    note: str | None = field(default=None, compare=False)


def load(runtime_name: str, directory: str = DIRECTORY, state_dir: str = trust.STATE_DIR) -> Settings:
    """The settings for a runtime name; defaults where nothing is said.

    Raises SettingsError, UntrustedPathError. The compiled settings in `state_dir`, which is not made, save time and
    change nothing else.
    """
    try:
        fd = trust.open_directory(directory, "settings directory")
    except FileNotFoundError:
        return Settings()
    from runtime_wrapper import settings_cache, settings_folder  # here, because most hosts have no settings

    with settings_folder.Folder(fd, directory) as folder:
        if folder.problem:
            raise folder.problem
        stamps = folder.stamps()
    if not stamps:
        return Settings()
    compiled, remark = settings_cache.load(state_dir, stamps)
    if compiled is not None:
        return _of(runtime_name, compiled)
    from runtime_wrapper import settings_reading  # here, because it imports the reading of TOML, which is slow

    found = settings_reading.read(directory)
    if found.problems:
        raise found.problems[0]
    sections = found.values
    if found.stamps is not None:
        settings_cache.store(state_dir, found.stamps, sections)
    note = f"compiled settings were {remark}: read anew from {', '.join(found.files)}" if remark else None
    return _of(runtime_name, sections, note)


def _of(runtime_name: str, sections: Mapping[str, dict[str, Any]], note: str | None = None) -> Settings:
    values = sections.get("defaults", {}) | sections.get(f"runtime.{runtime_name}", {})
    return Settings(**values, note=note)
