"""Puts what these tests share beside them: the harness of ranks, the engines in miniature, the tiny model."""

import pathlib
import sys

_TESTS = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(_TESTS), str(_TESTS / "deepspeed"), str(_TESTS / "rollout")]
