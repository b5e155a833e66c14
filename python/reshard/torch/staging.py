"""Staging: four slots, allocated once, two for each direction.

    send     [ slot 0 ][ slot 1 ]      round k uses slot k mod 2: while one chunk is on its way,
    receive  [ slot 0 ][ slot 1 ]      the next one is packed into, or awaited in, the other

A slot holds the longest message of this rank, which the schedule keeps within a quarter of the limit.
"""

from __future__ import annotations

import torch

from .share import Strided

DEPTH = 2
"""Rounds in flight."""


class Slot:
    """Memory for one message, looked at as bytes or as elements of any type."""

    def __init__(self, length_bytes: int, device: torch.device) -> None:
        # Whole elements of the widest type, so that every view fits.
        self._bytes = torch.empty(-(-length_bytes // 8) * 8, dtype=torch.uint8, device=device)
        self._views: dict[torch.dtype, torch.Tensor] = {torch.uint8: self._bytes}

    def message(self, length_bytes: int) -> torch.Tensor:
        """The first bytes, as the wire takes them."""
        return self._bytes.narrow(0, 0, length_bytes)

    def box(self, box: Strided) -> torch.Tensor:
        """Where a box lies in the message, in the type of the wire."""
        view = self._views.get(box.wire)
        if view is None:
            view = self._views[box.wire] = self._bytes.view(box.wire)
        return view.as_strided(box.shape, box.dense, box.position)


class Staging:
    """The slots of a rank, and a count of the bytes that are in use at a time."""

    def __init__(self, length_bytes: int, device: torch.device) -> None:
        self.device = device
        self.send = tuple(Slot(length_bytes, device) for _ in range(DEPTH if length_bytes else 0))
        self.receive = tuple(Slot(length_bytes, device) for _ in range(DEPTH if length_bytes else 0))
        self.bytes = 2 * DEPTH * length_bytes if length_bytes else 0
        self.used_bytes = 0
        self.peak_bytes = 0

    def take(self, length_bytes: int) -> None:
        """Counts a message that goes through a slot."""
        self.used_bytes += length_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def give(self, length_bytes: int) -> None:
        """Counts it out again."""
        self.used_bytes -= length_bytes

    def reset(self) -> None:
        """Begins a new count."""
        self.used_bytes = self.peak_bytes = 0
