"""Python signal handlers put off while messages are in flight.

    SIGINT ──► noted ──► deliver() at a safe point ──► the handler of before: KeyboardInterrupt, there and then

An exception between "posted" and "remembered" would lose a message that a peer waits for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class DeferredSignals:
    """While entered, in the main thread, handlers written in Python run only in `deliver` and after the exit."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._pending: list[int] = []

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.deliver()

    def deliver(self) -> None:
        """Runs the handlers of the signals that came since; what they raise is raised here."""
        while self._pending:
            number = self._pending.pop(0)
            self._handlers[number](number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pending.append(number)
