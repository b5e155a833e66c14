"""Puts the harness of ranks, which all tests of the package share, beside these tests."""

import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))


@pytest.fixture(autouse=True)
def interrupts_raise():
    """A shell that starts the tests in the background has them ignore interrupts, and Python then keeps to that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
