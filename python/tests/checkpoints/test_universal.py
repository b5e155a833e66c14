"""Universal checkpoints under real engines: what `reshard` writes trains on as what DeepSpeed's converter writes.

    engine, TP2 x DP2, 2 steps, saved --DeepSpeed's converter--> a    engines of TP1, TP2, TP4 load a and b, hold the
                                      --reshard convert--------> b    same bits and have the same losses afterwards
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engines import Case
from program import reshard_convert
from resumed import TAG, Run, deepspeed_converts, differences, resume, save

WORLD = 4
MODELS = {
    "small": Case(fused=True),
    "qwen3": Case(model="qwen3", layers=2, heads=8, kv_heads=4),
    "two groups": Case(two_groups=True, bias=False),
}


class Saved:
    """A checkpoint that a real engine of TP2 x DP2 saved, and what DeepSpeed's converter makes of it."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        self.run = save(case, WORLD, folder / "zero")
        self.deepspeeds = folder / "deepspeeds"
        deepspeed_converts(folder / "zero" / TAG, self.deepspeeds / f"{TAG}_universal")

    def ours(self, stages: str) -> Path:
        target = self.folder / f"ours {stages}"
        if not target.exists():
            reshard_convert(self.folder / "zero", target, "--to", "universal", "--for", stages)
        return target


@pytest.fixture(scope="module", params=[(model, stage) for model in MODELS for stage in (1, 2, 3)], ids=str)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    model, stage = request.param
    return Saved(MODELS[model].but(stage=stage), tmp_path_factory.mktemp("saved"))


def other_family(stage: int) -> int:
    return 1 if stage == 3 else 3


def assert_close(case: Case, run: Run, to: Run) -> None:
    """As close as a change of tensor parallelism allows: sums are made in another order, and rounded to bf16."""
    # The fused layers of the small model are not cut where they meet: there, another degree is another function.
    if not case.fused:
        torch.testing.assert_close(run.losses, to.losses, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_engines_train_on_as_from_deepspeeds_own(saved: Saved, tp: int) -> None:
    case = saved.case.but(tp=tp, universal=True)
    ours = resume(case, WORLD, saved.ours("same"))
    assert ours.steps == 2
    assert differences(ours.states, saved.run.states) == []
    theirs = resume(case, WORLD, saved.deepspeeds)
    assert ours.losses == theirs.losses
    assert differences(ours.after, theirs.after) == []
    if tp == saved.case.tp:
        assert ours.losses == saved.run.losses
        assert differences(ours.after, saved.run.after) == []
    else:
        assert_close(case, ours, saved.run)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("stages", ["other", "both"])
def test_engines_of_the_other_family_of_stages_train_on(saved: Saved, tp: int, stages: str) -> None:
    """DeepSpeed's own converter writes for the stage that saved, and no other can load it."""
    stage = other_family(saved.case.stage)
    folder = saved.ours(f"zero={stage}" if stages == "other" else "both")
    run = resume(saved.case.but(tp=tp, stage=stage, universal=True), WORLD, folder)
    assert run.steps == 2
    assert differences(run.states, saved.run.states) == []
    assert_close(saved.case, run, saved.run)


def test_both_families_in_one_folder_leave_the_own_one_as_it_was(saved: Saved) -> None:
    run = resume(saved.case.but(universal=True), WORLD, saved.ours("both"))
    assert run.losses == saved.run.losses
    assert differences(run.after, saved.run.after) == []
