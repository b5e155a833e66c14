"""Puts what these tests share beside them: the harness of ranks, the engines in miniature."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS / "deepspeed")]
