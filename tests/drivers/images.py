"""Container images of busybox in the archive format of `docker load`, made without a network."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime_wrapper.operate import sample_bundle

PATH = "PATH=/bin"


def archive(path: Path, images: Mapping[str, Sequence[str]]) -> Path:
    """Write an archive of images that differ in their variables: `{"name": ["VARIABLE=value"]}`.

    They sleep, which heeds no SIGTERM as a first process, and so are stopped by SIGKILL.
    """
    layer = _layer(sample_bundle.root_fs(path.parent / "image-rootfs"))
    configs = {name: _config(layer, variables) for name, variables in images.items()}
    manifest = [
        {"Config": f"{_digest(config)}.json", "RepoTags": [f"{name}:latest"], "Layers": ["layer.tar"]}
        for name, config in configs.items()
    ]
    with tarfile.open(path, "w") as tar:
        _add(tar, "layer.tar", layer)
        for config in configs.values():
            _add(tar, f"{_digest(config)}.json", config)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return path


def _layer(root: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(root, arcname=".")
    return buffer.getvalue()


def _config(layer: bytes, variables: Sequence[str]) -> bytes:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [PATH, *variables], "Cmd": ["sleep", "1000"], "StopSignal": "SIGKILL"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        "history": [{"created_by": "tests"}],
    }
    return json.dumps(config).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
