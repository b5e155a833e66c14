"""Time limits: one absolute moment that many waits share, so that they cannot add up."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import timedelta

from reshard import UsageError

_LEAST_SECONDS = 0.005


def checked_seconds(timeout: float) -> float:
    """A limit in seconds. Raises `UsageError` for what is no number, and for one in which nothing could be done."""
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"expected a timeout of some seconds, found {timeout!r}", found=timeout)
    return seconds


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
