"""While states are offloaded, and after reload: right where they are, and never through shards of before."""

from __future__ import annotations

from typing import Any

import deepspeed.ops.adam.fused_adam
import pytest
import torch
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as States
from engines import Case, consolidated, forward, full_shapes, make_engine, step
from ranks import run_ranks
from rebuild import agreed, different, gathered, rebuilt, scattered, wrong_state

import reshard.deepspeed
from reshard.deepspeed import EngineError, StaleError, released

CASES = [
    Case(stage=1),
    Case(stage=2, two_groups=True),
    Case(stage=3),
    Case(stage=3, init="world"),
    Case(tp=1, stage=3),
]


def _stale(shards: Any) -> str | None:
    try:
        shards.check()
    except StaleError as error:
        return str(error)
    return None


def _weights(rank: int, case: Case) -> dict[str, Any]:
    engine = make_engine(case)
    step(engine, case)
    truth = consolidated(engine)
    layout = reshard.deepspeed.parameter_layout(engine)
    with released(engine):
        before = reshard.deepspeed.parameter_shards(engine)
    engine.offload_states(include=[States.lp_params])
    found: dict[str, Any] = {
        "stale": _stale(before),
        "same layout": layout == reshard.deepspeed.parameter_layout(engine),
    }
    told = gathered(layout, reshard.deepspeed.parameter_shards(engine))
    found["offloaded"] = agreed(lambda: different(rebuilt(layout, told), truth or {}))

    new = {name: torch.randn(shape).bfloat16() for name, shape in full_shapes(case).items()}
    for values in new.values():
        torch.distributed.broadcast(values, 0)
    scattered(layout, reshard.deepspeed.parameter_shards(engine), new)
    engine.reload_states()
    with released(engine):
        again = gathered(layout, reshard.deepspeed.parameter_shards(engine))
    found["reloaded"] = agreed(lambda: different(rebuilt(layout, again), new))
    truth = consolidated(engine)
    found["seen by the engine"] = agreed(
        lambda: [name for name in new if not torch.equal(new[name], truth[name])]
    )
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"stage {case.stage} {case.init} tp{case.tp}")
def test_weights(case: Case) -> None:
    for rank, found in enumerate(run_ranks(4, _weights, case)):
        stale = found.pop("stale")
        assert f"rank {rank}: weights.0 is no longer the engine's" in stale and "take shards anew" in stale
        assert found == {"same layout": True, "offloaded": [], "reloaded": [], "seen by the engine": []}


def _states(rank: int, case: Case) -> dict[str, Any]:
    # DeepSpeed offloads states at stage 3 for its compiled Adam only; torch's keeps the same states.
    deepspeed.ops.adam.fused_adam.FusedAdam = torch.optim.AdamW
    engine = make_engine(case)
    step(engine, case)
    found: dict[str, Any] = {}
    names, truth = ("fp32", "exp_avg", "exp_avg_sq"), {}
    for name in names:
        layout = reshard.deepspeed.optimizer_layout(engine, name)
        truth[name] = rebuilt(layout, gathered(layout, reshard.deepspeed.optimizer_shards(engine, name)))
        found[name] = wrong_state(engine, case, name)
    old = {name: reshard.deepspeed.optimizer_shards(engine, name) for name in names}
    engine.offload_states(include=[States.hp_params, States.optim_states])
    for name in names:
        found[f"{name} offloaded"] = _unequal(engine, name, truth[name])
        moved = [
            key
            for key, one in reshard.deepspeed.optimizer_shards(engine, name).items()
            if _moved(one, old[name][key])
        ]
        found[f"{name} stale"] = [] if bool(moved) == bool(_stale(old[name])) else [f"{moved} moved"]
        if name == "fp32":
            found["master weights move"] = [] if moved else ["nowhere"]
    engine.reload_states()
    for name in names:
        found[f"{name} reloaded"] = _unequal(engine, name, truth[name])
    return found


def _moved(new: torch.Tensor, old: torch.Tensor) -> bool:
    return new.data_ptr() != old.data_ptr()


def _unequal(engine: Any, state: str, truth: dict[str, Any]) -> list[str]:
    layout = reshard.deepspeed.optimizer_layout(engine, state)
    now = rebuilt(layout, gathered(layout, reshard.deepspeed.optimizer_shards(engine, state)))
    return [name for name in truth if not (now[name] == truth[name]).all()]


@pytest.mark.parametrize(
    "case", [Case(stage=2), Case(stage=3, sub_group_elements=30)], ids=lambda case: str(case.stage)
)
def test_states(case: Case) -> None:
    for found in run_ranks(4, _states, case):
        assert not any(found.values()), found


def _frozen(rank: int) -> tuple[str | None, str]:
    """DeepSpeed points frozen partitions into the buffer of the trained ones, and fails beyond its end."""
    case = Case(stage=3, frozen=("up.bias",))
    engine = make_engine(case)
    forward(engine, case)
    engine.empty_partition_cache()
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        engine.offload_states(include=[States.lp_params])
    with pytest.raises(EngineError) as refusal:
        reshard.deepspeed.parameter_shards(engine)
    return refusal.value.parameter, str(refusal.value)


def test_frozen_parameters_do_not_survive_offload() -> None:
    for parameter, words in run_ranks(4, _frozen):
        assert parameter == "up.bias" and "its values are lost" in words
