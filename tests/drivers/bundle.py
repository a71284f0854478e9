"""A container bundle whose spec the tests change step by step."""

import json
import os
from pathlib import Path
from typing import Any, Self

from runtime_wrapper.operate import sample_bundle


class Bundle:
    """A bundle directory; methods change the spec and return the bundle."""

    def __init__(self, folder: Path, name: str = "bundle") -> None:
        self.path = folder / name
        self.config = self.path / "config.json"
        self.spec: dict[str, Any] = sample_bundle.spec(sample_bundle.root_fs(folder / "rootfs"))
        self.save()

    def asking_for(self, text: str, variable: str = "GPULATCH_GPUS") -> Self:
        return self.env(f"{variable}={text}")

    def env(self, *entries: str) -> Self:
        self.spec["process"]["env"].extend(entries)
        return self.save()

    def running(self, *args: str) -> Self:
        self.spec["process"]["args"] = list(args)
        return self.save()

    def annotated(self, name: str, text: str) -> Self:
        self.spec["annotations"][name] = text
        return self.save()

    def mounting(self, destination: str, source: str, *options: str) -> Self:
        mount = {"destination": destination, "source": source, "type": "bind", "options": list(options)}
        self.spec["mounts"].append(mount)
        return self.save()

    def with_host_dev(self) -> Self:
        sample_bundle.mount_host_dev(self.spec)
        return self.save()

    def save(self) -> Self:
        sample_bundle.write(self.path, self.spec)
        return self

    def on_disk(self) -> dict[str, Any]:
        """The spec as it lies in the bundle now."""
        data: dict[str, Any] = json.loads(self.config.read_bytes())
        return data

    def files(self) -> list[str]:
        return sorted(os.listdir(self.path))
