"""The program under test, called as a user calls it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def reshard_convert(source: Path | str, target: Path | str, *arguments: str) -> None:
    """``reshard convert SOURCE ARGUMENTS TARGET``; a failure is an error that holds what it said."""
    program = os.environ.get("RESHARD_PROGRAM") or shutil.which("reshard")
    assert program, "no program reshard: install the wheel, or name one in RESHARD_PROGRAM"
    command = [str(program), "convert", str(source), *arguments, "--no-sync", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"


def chosen(every: Sequence[T], usually: Sequence[T]) -> Sequence[T]:
    """All cases under ``RESHARD_EVERY_CASE=1`` (``make matrix``); else those that cover each rule once, for time."""
    return every if os.environ.get("RESHARD_EVERY_CASE") == "1" else usually
