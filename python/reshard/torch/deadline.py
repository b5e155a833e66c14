"""Time limits: one absolute moment that many waits share, so that they cannot add up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

_LEAST_SECONDS = 0.005


@dataclass(frozen=True)
class Deadline:
    """A moment on this process's monotonic clock."""

    moment: float

    @staticmethod
    def after(seconds: float) -> Deadline:
        """The moment `seconds` from now."""
        return Deadline(time.monotonic() + seconds)

    def later(self, seconds: float) -> Deadline:
        """The moment `seconds` after this one."""
        return Deadline(self.moment + seconds)

    @property
    def is_past(self) -> bool:
        """Whether the moment has passed."""
        return time.monotonic() >= self.moment

    def left(self) -> timedelta:
        """What is left, at least a few milliseconds: to torch zero is no limit, and what is there comes at once."""
        return timedelta(seconds=max(_LEAST_SECONDS, self.moment - time.monotonic()))
