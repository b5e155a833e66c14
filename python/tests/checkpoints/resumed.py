"""Real engines that save, load and train on: what each of them holds and loses.

save(case, world, folder)    --> trains two steps, saves;   Run(states, losses of the two steps after)
resume(case, world, folder)  --> loads;                     Run(states at once, losses and states two steps later)
deepspeed_converts(a, b)     --> DeepSpeed's own converter, in a process of its own
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from engines import Case, full_state, make_engine, step
from ranks import run_ranks

TAG = "global_step2"
STEPS = 2

States = dict[str, dict[str, torch.Tensor]]


@dataclass
class Run:
    """Full optimizer states where a run begins or was saved, the losses of two steps from there, states after them."""

    states: States
    losses: list[float]
    after: States
    steps: int


def save(case: Case, world: int, folder: Path) -> Run:
    """Trains for two steps, saves, and goes on for two more."""
    return _one(run_ranks(world, _saved, case, str(folder), timeout=300.0))


def resume(case: Case, world: int, folder: Path) -> Run:
    """Loads what is in `folder` and trains for two steps."""
    return _one(run_ranks(world, _resumed, case, str(folder), timeout=300.0))


def _one(runs: list[Run]) -> Run:
    """All ranks say the same."""
    for run in runs[1:]:
        assert run.losses == runs[0].losses
        assert differences(run.states, runs[0].states) == []
    return runs[0]


def _saved(rank: int, case: Case, folder: str) -> Run:
    engine = make_engine(case)
    for number in range(STEPS):
        step(engine, case, number)
    engine.save_checkpoint(folder, tag=TAG)
    return _trained_on(engine, case)


def _resumed(rank: int, case: Case, folder: str) -> Run:
    engine = make_engine(case)
    loaded, _ = engine.load_checkpoint(folder)
    assert loaded is not None, f"nothing was loaded from {folder}"
    return _trained_on(engine, case)


def _trained_on(engine: Any, case: Case) -> Run:
    steps = engine.global_steps
    before = states(engine, case)
    losses = [step(engine, case, STEPS + number) for number in range(STEPS)]
    return Run(before, losses, states(engine, case), steps)


def states(engine: Any, case: Case) -> States:
    names = ["fp32", "momentum_buffer"] if case.optimizer == "momentum" else ["fp32", "exp_avg", "exp_avg_sq"]
    return {name: full_state(engine, case, name) for name in names}


def differences(one: States, other: States) -> list[str]:
    """Where two are not the same to the bit."""
    assert one.keys() == other.keys()
    return [
        f"{state} of {name}"
        for state in one
        for name in sorted(one[state].keys() | other[state].keys())
        if not torch.equal(one[state][name], other[state][name])
    ]


def deepspeed_converts(source: Path, target: Path) -> None:
    """DeepSpeed's converter, from a tag's folder to one beside a `latest_universal`."""
    code = (
        "import argparse, deepspeed.checkpoint.ds_to_universal as converter\n"
        f"folders = dict(input_folder={str(source)!r}, output_folder={str(target)!r})\n"
        "workers = dict(num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False)\n"
        "converter.main(argparse.Namespace(**folders, **workers, strict=True, inject_missing_state=True))\n"
    )
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
