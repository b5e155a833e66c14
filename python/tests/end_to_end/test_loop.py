"""A trainer's loop with a rollout engine in it: new weights are used at once, and training goes on as if unobserved."""

from __future__ import annotations

import pytest
import torch
from engines import Case
from ranks import run_ranks
from stories import generate, losses

from reshard.rollout import Placement

TRAINER = Case(model="qwen3", tp=2, dtype="fp32", learning_rate=0.05)


@pytest.mark.parametrize(
    ("case", "placement"),
    [
        (TRAINER.but(stage=1), Placement(4)),
        (TRAINER.but(stage=3, init="world"), Placement(2, copies=2)),
        (TRAINER.but(stage=2, tied=True), Placement(4, ranks=(2, 3, 0, 1))),
    ],
)
def test_responses_are_those_of_the_trained_weights(case: Case, placement: Placement) -> None:
    ranks = run_ranks(4, generate, case, placement)
    for steps in ranks:
        assert [one.version for one in steps] == [0, 1]
        for one in steps:
            assert torch.equal(one.ids, one.expected)
    # Prompts are those of the data-parallel rank; training has changed what is said.
    assert torch.equal(ranks[0][0].ids, ranks[1][0].ids)
    assert not torch.equal(ranks[0][0].ids, ranks[2][0].ids)
    assert any(not torch.equal(steps[0].ids, steps[1].ids) for steps in ranks)


@pytest.mark.parametrize(
    "case",
    [
        Case(model="qwen3", tp=2, stage=1),
        Case(model="qwen3", tp=2, stage=2, bf16_optimizer=True),
        Case(model="qwen3", tp=2, stage=3),
        Case(model="qwen3", tp=2, stage=3, init="dp", persistence_elements=0),
    ],
)
def test_training_goes_on_as_if_nobody_had_looked(case: Case) -> None:
    for alone, synced in run_ranks(4, losses, case):
        assert len(set(alone)) == 3
        assert synced == alone
