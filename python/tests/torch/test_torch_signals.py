"""Handlers written in Python wait for a safe point."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from reshard.torch.signals import DeferredSignals


@pytest.fixture
def calls():
    """What a handler of SIGUSR1 was called with."""
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_is_raised_at_the_safe_point_and_not_before():
    before = signal.getsignal(signal.SIGINT)
    with DeferredSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        with pytest.raises(KeyboardInterrupt):
            signals.deliver()
        # It was delivered once.
        signals.deliver()
    assert reached
    assert signal.getsignal(signal.SIGINT) is before


def test_what_came_since_the_last_safe_point_is_raised_at_the_end():
    with pytest.raises(KeyboardInterrupt), DeferredSignals():
        os.kill(os.getpid(), signal.SIGINT)


def test_every_handler_runs_once_and_in_order(calls):
    with DeferredSignals() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert calls == []
        signals.deliver()
        assert calls == [signal.SIGUSR1]
        os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == [signal.SIGUSR1] * 2
    os.kill(os.getpid(), signal.SIGUSR1)
    assert calls == [signal.SIGUSR1] * 3


def test_other_threads_leave_handlers_alone(calls):
    def enter():
        with DeferredSignals():
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert calls == [signal.SIGUSR1]
