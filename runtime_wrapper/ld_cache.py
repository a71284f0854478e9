"""Reads `/etc/ld.so.cache`, the dynamic loader's index of libraries, of this host or of an image.

Pure. Format: sysdeps/generic/dl-cache.h of glibc; since 2.32 the new format stands alone, before behind the old one.
The file may be a tenant's: what does not fit the format yields nothing, and its size bounds what is read.
"""

import os
import struct
from collections.abc import Iterator

_OLD_MAGIC, _NEW_MAGIC = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = struct.Struct("=11sxI"), struct.Struct("=iII")
_NEW_HEADER, _NEW_ENTRY = struct.Struct("=20sII20x"), struct.Struct("=iIIIQ")  # flags, key, value, OS version, hwcap

# Entries of 64-bit libraries for glibc: FLAG_ELF_LIBC6 with FLAG_X8664_LIB64 or FLAG_AARCH64_LIB64.
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}
_MAX_PATH = 4096


def entries(data: bytes, machine: str | None = None) -> Iterator[tuple[str, str]]:
    """Library name and path of each 64-bit entry for an architecture (this machine's unless said), as they stand."""
    start = _start(data)
    if start is None:
        return
    _, count, _ = _NEW_HEADER.unpack_from(data, start)
    first, flags = start + _NEW_HEADER.size, _FLAGS.get(machine or os.uname().machine)
    table = data[first : first + count * _NEW_ENTRY.size]
    table = table[: len(table) - len(table) % _NEW_ENTRY.size]
    for kind, key, value, _, _ in _NEW_ENTRY.iter_unpack(table):
        if kind == flags:
            name, path = _text(data, start + key), _text(data, start + value)
            if name and path.startswith("/"):
                yield name, path


def _start(data: bytes) -> int | None:
    """Where the new format begins; texts are counted from there."""
    start = 0
    if data.startswith(_OLD_MAGIC) and len(data) >= _OLD_HEADER.size:
        _, count = _OLD_HEADER.unpack_from(data)
        start = -(-(_OLD_HEADER.size + count * _OLD_ENTRY.size) // 8) * 8
    whole = len(data) >= start + _NEW_HEADER.size
    return start if whole and data.startswith(_NEW_MAGIC, start) else None


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at, at + _MAX_PATH)
    return os.fsdecode(data[at:end]) if end > at else ""
