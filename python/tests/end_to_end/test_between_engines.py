"""Training states through the executor: one engine into another of another sharding, and 32-bit masters into copies.

source (a step ahead) ──sync──► target ──► a step of length zero ──► the same weights still
fp32, exp_avg, exp_avg_sq ──a plan each──► the target's, bit for bit what DeepSpeed says the source holds
"""

from __future__ import annotations

from dataclasses import dataclass

import oracle
import pytest
from engines import Case, full_state, make_engine, standstill, step
from ranks import run_ranks
from stories import born, target_layout

import reshard
from reshard.deepspeed import (
    optimizer_layout,
    optimizer_shards,
    parameter_layout,
    parameter_shards,
    released,
    training_target,
)
from reshard.deepspeed.stored import STATES
from reshard.rollout import Placement
from reshard.torch import SyncError, Synchroniser

QWEN = Case(model="qwen3")
PAIRS = {
    "stage 1 tp4 to stage 3 tp2": (QWEN.but(tp=4), QWEN.but(stage=3, sub_group_elements=300)),
    "stage 3 zero.Init tp2 to stage 1 tp4": (QWEN.but(stage=3, init="world"), QWEN.but(tp=4)),
    "bf16 optimizer tp2 to stage 2 tp1 offloaded": (
        QWEN.but(bf16_optimizer=True, two_groups=True),
        QWEN.but(stage=2, tp=1, offload="optimizer"),
    ),
    "stage 3 tp1 to bf16 optimizer tp2": (QWEN.but(stage=3, tp=1), QWEN.but(bf16_optimizer=True)),
    "tied stage 2 tp2 to stage 3 tp1 offloaded": (
        QWEN.but(stage=2, tied=True),
        QWEN.but(stage=3, tp=1, tied=True, offload="both"),
    ),
}


@dataclass
class Seen:
    """Names of what differed, at each point, on one rank; and how weights written alone were refused."""

    refused: str
    before: list[str]
    arrived: list[str]
    after_a_step: list[str]
    moved: list[str]
    states: dict[str, list[str]]


def _between(rank: int, ahead: Case, behind: Case) -> Seen:
    source = make_engine(ahead)
    step(source, ahead)
    # DeepSpeed's own gathers use the groups of the engine that was made last.
    truth = oracle.truth(source)
    states = {name: full_state(source, ahead, name) for name in STATES}
    target = make_engine(behind)
    step(target, behind, 1)
    before = oracle.differing(oracle.truth(target), truth)

    into = training_target(target, moments="keep")
    plan = reshard.plan(parameter_layout(source), into.layout)
    with Synchroniser(plan, staging=4096) as synchroniser, released(source), released(target):
        with pytest.raises(SyncError) as refused:
            synchroniser.sync(parameter_shards(source), parameter_shards(target), version=0)
        shards = into.shards()
        addresses = {name: shard.data_ptr() for name, shard in shards.items()}
        synchroniser.sync(parameter_shards(source), shards, version=1, verify=into.commit)
        moved = [name for name, shard in into.shards().items() if shard.data_ptr() != addresses[name]]
    arrived = oracle.differing(oracle.truth(target), truth)
    standstill(target)
    step(target, behind, 2)
    after = oracle.differing(oracle.truth(target), truth)

    wrong = {}
    for name in STATES:
        plan = reshard.plan(optimizer_layout(source, name), optimizer_layout(target, name))
        with Synchroniser(plan, staging=4096) as synchroniser:
            synchroniser.sync(optimizer_shards(source, name), optimizer_shards(target, name), version=1)
        wrong[name] = oracle.differing(full_state(target, behind, name), states[name])
    return Seen(refused.value.cause, before, arrived, after, moved, wrong)


@pytest.mark.parametrize("name", PAIRS)
def test_a_training_engine_takes_over_another(name: str) -> None:
    for seen in run_ranks(4, _between, *PAIRS[name]):
        # Two engines that agreed from the start would show nothing.
        assert "training_target(engine, ...)" in seen.refused
        assert "model.layers.0.mlp.up_proj.weight" in seen.before
        assert (seen.arrived, seen.after_a_step, seen.moved) == ([], [], [])
        assert seen.states == {state: [] for state in STATES}


def _rounded(rank: int, case: Case) -> tuple[list[str], str | None]:
    engine, placement = make_engine(case), Placement(4)
    step(engine, case)
    masters, copies = optimizer_layout(engine, "fp32"), target_layout(case, placement)
    try:
        reshard.plan(masters, copies)
        refused = None
    except reshard.PlanError as error:
        refused = error.parameter
    tensors = born(case, placement)
    with Synchroniser(reshard.plan(masters, copies, cast=True), staging=4096) as synchroniser:
        synchroniser.sync(optimizer_shards(engine, "fp32"), tensors, version=1)
    full = oracle.truth(engine)
    return oracle.differing(tensors, oracle.expected(case, full, placement.tp, rank)), refused


@pytest.mark.parametrize(
    "case",
    [
        QWEN,
        QWEN.but(stage=2, bf16_optimizer=True),
        QWEN.but(stage=3, init="dp"),
        Case(stage=3, offload="both"),
    ],
    ids=lambda case: f"{case.model} stage {case.stage}",
)
def test_masters_rounded_on_their_way_are_the_weights(case: Case) -> None:
    """DeepSpeed rounds its masters to bfloat16 after a step: copies filled from the masters must hold the same."""
    for wrong, refused in run_ranks(4, _rounded, case):
        assert wrong == []
        assert refused in ("model.embed_tokens.weight", "norm.weight")
