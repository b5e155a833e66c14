"""Imports what forked ranks need once, in their parent, and finds the harness of ranks beside this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import engines  # noqa: E402, F401
