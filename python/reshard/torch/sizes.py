"""Sizes as people write them: 268435456, "256MiB", "1 GB"."""

from __future__ import annotations

import re

from reshard import UsageError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


def size_bytes(size: int | str) -> int:
    """The bytes of a size: an integer, or a text of an integer and one of KB MB GB KiB MiB GiB.

    Raises `UsageError` for anything else.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"expected a size like 268435456 or 256MiB, found {size!r}")
    return int(match[1]) * _UNITS[match[2].upper()]
