"""CDI annotations, `cdi.k8s.io/<anything>: <device>,<device>`: the GPUs among them, and what is left for others.

Hot and pure. Format: pkg/cdi/annotations.go of the CDI project. A device without vendor and class is taken for
a GPU's id, as in NVIDIA's runtime.
"""

from collections.abc import Iterator

from runtime_wrapper import cdi, spec

PREFIX = "cdi.k8s.io/"


def asked(data: spec.Json) -> Iterator[tuple[str, str]]:
    """Where the annotations ask for GPUs, and for which. One that is there and names no device at all asks for none."""
    annotations = spec.section(data, "annotations").items()
    found = {name: _devices(text) for name, text in sorted(annotations) if _counts(name, text)}
    gpus = {name: [device for device in devices if not cdi.is_foreign(device)] for name, devices in found.items()}
    if any(gpus.values()):
        names = [name for name, devices in gpus.items() if devices]
        yield f"annotation {', '.join(names)}", ",".join(device for name in names for device in gpus[name])
    elif found and not any(found.values()):
        yield f"annotation {', '.join(found)}", "none"


def without_gpus(annotations: spec.Json) -> spec.Json:
    """Annotations without the GPUs that they ask for; one that asks for nothing else goes."""
    kept: spec.Json = {}
    for name, text in annotations.items():
        devices = _devices(text) if _counts(name, text) else []
        foreign = [device for device in devices if cdi.is_foreign(device)]
        if foreign or not _counts(name, text):
            kept[name] = text if len(foreign) == len(devices) else ",".join(foreign)
    return kept


def _counts(name: str, text: object) -> bool:
    return name.startswith(PREFIX) and isinstance(text, str)


def _devices(text: str) -> list[str]:
    return [device for part in text.split(",") if (device := part.strip())]
