"""The example is a program that a user starts: so it is started here, as its first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "sync_rollout.py"


def test_the_example_runs_and_its_losses_fall() -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        str(EXAMPLE),
    ]
    # Four interpreters import torch, DeepSpeed and the compiler: without their compiled files that takes a minute.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("step ")]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert "the copy answers as the whole model does" in ran.stdout
