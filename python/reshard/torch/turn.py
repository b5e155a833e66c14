"""One sync at a time: two at once would mix their messages, which match by order, and neither would notice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from reshard import UsageError


class Turn:
    """What a sync holds while it goes on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, what: str) -> Iterator[None]:
        """Holds the turn. Raises `UsageError` if it is taken, by another thread or further up in this one."""
        if not self._lock.acquire(blocking=False):
            raise UsageError(f"a sync is going on: this is no time to {what}")
        try:
            yield
        finally:
            self._lock.release()
