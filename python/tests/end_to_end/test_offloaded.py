"""Syncs while the trainer's weights are offloaded, after they came back, and never from shards of before."""

from __future__ import annotations

from dataclasses import dataclass, field

import oracle
import pytest
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as States
from engines import Case, make_engine, step
from ranks import run_ranks
from stories import born, target_layout

from reshard.deepspeed import StaleError, parameter_shards, released
from reshard.rollout import DeepSpeedSource, Placement, WeightSync
from reshard.torch import SyncError, Synchroniser

CASES = [
    Case(stage=1),
    Case(model="qwen3", stage=2, two_groups=True),
    Case(model="qwen3", stage=3),
    Case(stage=3, init="world"),
]
PLACEMENT = Placement(4)


@dataclass
class Seen:
    """What one rank saw."""

    wrong: dict[str, list[str]] = field(default_factory=dict)
    refusal: SyncError | None = None
    is_stale: bool = False
    plans_made: int = 0


def _offloaded(rank: int, case: Case) -> Seen:
    engine, seen = make_engine(case), Seen()
    tensors = born(case, PLACEMENT)
    sync = WeightSync(DeepSpeedSource(engine), target_layout(case, PLACEMENT), tensors)
    direct = Synchroniser(sync.plan, staging=4096, timeout=20.0)

    def compare(when: str, version: int) -> None:
        for tensor in tensors.values():
            tensor.fill_(float("nan"))
        sync.sync(version)
        seen.wrong[when] = oracle.differing(tensors, oracle.expected(case, full, PLACEMENT.tp, rank))

    step(engine, case)
    full = oracle.truth(engine)
    compare("resident", 1)
    with released(engine):
        old = parameter_shards(engine)
    engine.offload_states(include=[States.lp_params])
    try:
        direct.sync(old, tensors, version=9)
    except SyncError as error:
        seen.refusal, seen.is_stale = error, isinstance(error.__cause__, StaleError)
    compare("offloaded", 2)
    # On the host a reload leaves tensors where they are: shards of before it would be right.
    engine.reload_states()
    compare("reloaded", 3)
    step(engine, case, 1)
    trained = oracle.truth(engine)
    assert oracle.differing(full, trained)
    full = trained
    compare("after a step", 4)
    seen.plans_made = sync.plans_made
    direct.close()
    sync.close()
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model} stage {case.stage} {case.init}")
def test_weights_are_synced_from_where_they_are(case: Case) -> None:
    for seen in run_ranks(4, _offloaded, case):
        assert seen.wrong == {"resident": [], "offloaded": [], "reloaded": [], "after a step": []}
        assert seen.refusal is not None and (seen.refusal.stage, seen.refusal.rank) == ("bind", 0)
        assert "StaleError" in seen.refusal.cause and seen.is_stale
        assert seen.plans_made == 1
