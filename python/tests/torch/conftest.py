"""Puts the harness of ranks, which all tests of the package share, beside these tests."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
