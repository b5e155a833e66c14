"""The program under test, called as a user calls it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def reshard_convert(source: Path | str, target: Path | str, *arguments: str) -> None:
    """``reshard convert SOURCE ARGUMENTS TARGET``; a failure is an error that holds what it said."""
    beside = Path(sys.executable).with_name("reshard")
    program = os.environ.get("RESHARD_PROGRAM") or (beside if beside.exists() else shutil.which("reshard"))
    assert program, "no program reshard: install the wheel, or name one in RESHARD_PROGRAM"
    command = [str(program), "convert", str(source), *arguments, "--no-sync", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
