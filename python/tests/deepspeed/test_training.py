"""A sync into a training engine survives its next step, because the master weights were written too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engines import Case, consolidated, full_shapes, full_state, make_engine, standstill, step
from ranks import run_ranks
from rebuild import agreed, different, scattered

import reshard.deepspeed
from reshard.deepspeed import EngineError, released, training_target

CASES = {
    "stage 0": Case(stage=0),
    "stage 0 fp32": Case(stage=0, dtype="fp32"),
    "stage 1": Case(stage=1, two_groups=True),
    "stage 2 fp32": Case(stage=2, dtype="fp32", round_robin=True),
    "stage 3": Case(stage=3, sub_group_elements=30, frozen=("up.bias",)),
    "stage 3 zero.Init": Case(stage=3, init="world"),
    "stage 3 offloaded": Case(stage=3, offload="both"),
    "bf16 optimizer": Case(bf16_optimizer=True),
    "offloaded optimizer": Case(stage=2, offload="optimizer"),
    "hpZ": Case(tp=1, stage=3, hpz=2),
}


def _values(case: Case) -> dict[str, torch.Tensor]:
    """Numbers that bfloat16 holds exactly, another for each element of a parameter."""
    result = {}
    for name, shape in full_shapes(case).items():
        count = torch.Size(shape).numel()
        result[name] = ((torch.arange(count) % 128 + 1) / 64.0).view(shape)
    return result


def _synced(engine: Any, case: Case, **how: Any) -> None:
    target = training_target(engine, **how)
    with released(engine):
        shards = target.shards()
        scattered(target.layout, shards, _values(case))
        shards.check()
        target.commit()


def _still(engine: Any, case: Case) -> list[str]:
    truth = consolidated(engine)
    values = _values(case)
    return agreed(lambda: [name for name in values if not torch.equal(values[name], truth[name].float())])


def _survives(rank: int, case: Case) -> dict[str, list[str]]:
    found = {}
    engine = make_engine(case)
    step(engine, case)
    _synced(engine, case, moments="keep")
    found["arrived"] = _still(engine, case)
    standstill(engine)
    step(engine, case, 1)
    found["after a step"] = _still(engine, case)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_sync_survives_the_next_step(name: str) -> None:
    for found in run_ranks(4, _survives, CASES[name]):
        assert found == {"arrived": [], "after a step": []}


def _undone(rank: int, case: Case) -> dict[str, list[str]]:
    engine = make_engine(case)
    step(engine, case)
    _synced(engine, case, weights_only=True)
    arrived = _still(engine, case)
    standstill(engine)
    step(engine, case, 1)
    return {"arrived": arrived, "after a step": _still(engine, case)}


@pytest.mark.parametrize("stage", [1, 3])
def test_weights_alone_are_undone_by_the_next_step(stage: int) -> None:
    for found in run_ranks(4, _undone, Case(stage=stage)):
        assert found["arrived"] == []
        assert set(found["after a step"]) >= {"up.weight", "down.weight", "norm.bias"}


def _moments(rank: int, case: Case, moments: str) -> tuple[list[str], bool, float]:
    engine = make_engine(case)
    step(engine, case)
    before = full_state(engine, case, "exp_avg")
    _synced(engine, case, moments=moments)
    after = full_state(engine, case, "exp_avg")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    base = engine.optimizer.optimizer
    steps = max(float(state["step"]) for state in base.state.values())
    return changed, all(bool((one == 0).all()) for one in after.values()), steps


@pytest.mark.parametrize("stage", [1, 3])
def test_moments_are_kept_or_zeroed(stage: int) -> None:
    case = Case(stage=stage)
    names = set(full_shapes(case))
    for changed, zero, steps in run_ranks(4, _moments, case, "keep"):
        assert changed == [] and not zero and steps >= 1
    for changed, zero, steps in run_ranks(4, _moments, case, "zero"):
        # The last bias has a moment of its own, as all have after a step.
        assert set(changed) == names and zero and steps == 0


def _usage(rank: int) -> list[str]:
    engine, said = make_engine(Case()), []
    for how in ({}, {"moments": "keep", "weights_only": True}, {"moments": "halve"}):
        try:
            training_target(engine, **how)
        except EngineError as error:
            said.append(f"{error.kind}: {error}")
    return said


def test_what_becomes_of_the_masters_must_be_said() -> None:
    for first, second, third in run_ranks(2, _usage):
        assert first == second and 'moments="keep" or moments="zero"' in first and first.startswith("usage")
        assert "unknown moments 'halve'" in third


def _masters_over(rank: int) -> list[str]:
    """Exact 32-bit masters come by a plan of their own; here the same engine's, one rank's at a time."""
    case = Case(stage=3)
    engine = make_engine(case)
    step(engine, case)
    values = {name: one + 2.0**-20 for name, one in _values(case).items()}
    _synced(engine, case, moments="keep")
    layout = reshard.deepspeed.optimizer_layout(engine, "fp32")
    scattered(layout, reshard.deepspeed.optimizer_shards(engine, "fp32"), values)
    truth = full_state(engine, case, "fp32")
    return agreed(lambda: different({name: values[name].numpy().view("uint32") for name in values}, truth))


def test_exact_masters() -> None:
    assert run_ranks(4, _masters_over) == [[]] * 4
