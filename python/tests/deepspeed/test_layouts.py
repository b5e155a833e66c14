"""Layouts and shards of live engines rebuild what the engine itself says it holds, before and after a step."""

from __future__ import annotations

from typing import Any

import engines
import pytest
import torch
from engines import Case, consolidated, forward, make_engine, step
from ranks import run_ranks
from rebuild import agreed, different, gathered, rebuilt, wrong_state, wrong_weights

import reshard.deepspeed
from reshard.deepspeed.stored import STATES

SMALL, QWEN = Case(), Case(model="qwen3")
FROZEN = ("norm.weight", "up.bias", "down.weight")

# name: ranks, case
CASES: dict[str, tuple[int, Case]] = {
    "stage 0": (4, SMALL.but(stage=0)),
    "stage 0, fp32": (4, SMALL.but(stage=0, dtype="fp32", frozen=FROZEN)),
    "stage 1": (4, SMALL),
    "stage 2, fp32": (4, SMALL.but(stage=2, dtype="fp32")),
    "stage 3": (4, SMALL.but(stage=3)),
    "stage 3 zero.Init": (4, SMALL.but(stage=3, init="world")),
    "stage 3 zero.Init dp, fp32": (4, SMALL.but(stage=3, init="dp", dtype="fp32")),
    "stage 3 zero.Init, config's optimizer": (4, SMALL.but(stage=3, init="world", optimizer="config")),
    "qwen3 stage 1, fp32": (4, QWEN.but(dtype="fp32")),
    "qwen3 stage 2": (4, QWEN.but(stage=2)),
    "qwen3 stage 3": (4, QWEN.but(stage=3)),
    "qwen3 stage 3 zero.Init, fp32": (4, QWEN.but(stage=3, init="world", dtype="fp32")),
    "qwen3 stage 3 zero.Init dp": (4, QWEN.but(stage=3, init="dp")),
    "tp1dp4": (4, SMALL.but(tp=1, stage=2)),
    "tp1dp4 stage 3": (4, SMALL.but(tp=1, stage=3)),
    "tp4dp1": (4, SMALL.but(tp=4, stage=1)),
    "tp4dp1 stage 3": (4, SMALL.but(tp=4, stage=3, two_groups=True)),
    "tp2dp3, groups, aligned": (6, QWEN.but(stage=2, two_groups=True, alignment=True, heads=5, kv_heads=5)),
    "tp2dp3 round robin, aligned": (6, SMALL.but(stage=2, round_robin=True, alignment=True)),
    "tp3dp2 stage 3, sub-groups": (6, SMALL.but(tp=3, stage=3, two_groups=True, sub_group_elements=30)),
    "fewer kv heads than tp": (8, QWEN.but(tp=4, kv_heads=2)),
    "tied": (4, QWEN.but(tied=True)),
    "tied stage 3, a module twice": (4, SMALL.but(tied=True, stage=3)),
    "tied vocabulary stage 3": (4, QWEN.but(tied=True, stage=3)),
    "fused, empty": (4, SMALL.but(fused=True, empty=True, two_groups=True)),
    "fused stage 3": (4, SMALL.but(fused=True, stage=3)),
    "frozen": (4, SMALL.but(frozen=FROZEN)),
    "frozen stage 3, some persist": (4, SMALL.but(frozen=FROZEN, stage=3, persistence_elements=20)),
    "bf16 optimizer": (4, SMALL.but(bf16_optimizer=True, two_groups=True, frozen=FROZEN)),
    "offload optimizer": (4, SMALL.but(offload="optimizer", stage=2)),
    "offload optimizer stage 3": (4, SMALL.but(offload="optimizer", stage=3)),
    "offload parameters stage 3, sub-groups": (
        4,
        SMALL.but(offload="both", stage=3, frozen=FROZEN, sub_group_elements=20, two_groups=True),
    ),
    "hpZ": (4, SMALL.but(tp=1, stage=3, hpz=2)),
    "no optimizer stage 0": (4, SMALL.but(stage=0, optimizer=None)),
    "no optimizer stage 3": (4, SMALL.but(stage=3, optimizer=None, init="world")),
}


def _wrong(rank: int, case: Case) -> dict[str, list[str]]:
    engine = make_engine(case)
    found = {"fresh": wrong_weights(engine)}
    if case.optimizer is None:
        forward(engine, case)
        found["after a forward"] = wrong_weights(engine)
        return found
    step(engine, case)
    found["after a step"] = wrong_weights(engine)
    # Below stage 1 DeepSpeed has no accessor to optimizer states to compare with.
    for state in STATES if case.stage else ():
        found[state] = wrong_state(engine, case, state)
    return found


@pytest.mark.parametrize("name", CASES)
def test_layouts_rebuild_what_the_engine_holds(name: str) -> None:
    ranks, case = CASES[name]
    for found in run_ranks(ranks, _wrong, case):
        assert found == dict.fromkeys(found, [])


def _stage_0_states(rank: int, case: Case) -> dict[str, list[str]]:
    """At stage 0 every rank holds whole masters: the first step of AdamW is worked from the gradient alone."""
    engine = make_engine(case)
    step(engine, case)
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_groups"):
        pairs = [(p, m) for ps, ms in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True) for p, m in zip(ps, ms)]
    else:
        pairs = [(p, p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    base = getattr(optimizer, "optimizer", optimizer)
    found = {}
    for state in STATES:
        layout = reshard.deepspeed.optimizer_layout(engine, state)
        shards = reshard.deepspeed.optimizer_shards(engine, state)
        tensors = {names[id(p)]: m if state == "fp32" else base.state[m][state] for p, m in pairs}
        truth = {
            name: engines._joined(tensor.detach(), engines.full_shapes(case)[name], case.tp, None)
            for name, tensor in tensors.items()
        }
        told = gathered(layout, shards)
        found[state] = agreed(lambda told=told, truth=truth, layout=layout: different(rebuilt(layout, told), truth))
    return found


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_states_at_stage_0(dtype: str) -> None:
    for found in run_ranks(4, _stage_0_states, SMALL.but(stage=0, dtype=dtype, frozen=("up.bias",))):
        assert found == dict.fromkeys(STATES, [])


def _fused_optimizer(rank: int) -> dict[str, list[str]]:
    """FP16_Optimizer is what a fused Adam gets; torch's AdamW passes for one here, as the compiled one cannot be had."""
    import deepspeed.runtime.engine as inside

    inside.FusedAdam = torch.optim.AdamW
    case = SMALL.but(stage=0, two_groups=True)
    engine = make_engine(case)
    assert type(engine.optimizer).__name__ == "FP16_Optimizer"
    found = {"fresh": wrong_weights(engine)}
    step(engine, case)
    found["after a step"] = wrong_weights(engine)
    found["fp32"] = _wrong_masters(engine)
    return found


def _wrong_masters(engine: Any) -> list[str]:
    """Master weights rounded to bf16 are the weights, whatever DeepSpeed records of where they lie."""
    layout = reshard.deepspeed.optimizer_layout(engine, "fp32")
    told = gathered(layout, reshard.deepspeed.optimizer_shards(engine, "fp32"))
    truth = consolidated(engine)

    def compare() -> list[str]:
        masters = {name: torch.from_numpy(values.view("float32")) for name, values in rebuilt(layout, told).items()}
        assert truth is not None and masters.keys() == truth.keys()
        return [name for name, master in masters.items() if not torch.equal(master.bfloat16(), truth[name])]

    return agreed(compare)


def test_the_fused_optimizer_of_stage_0() -> None:
    for found in run_ranks(4, _fused_optimizer):
        assert found == dict.fromkeys(found, [])


def _dealt_out(rank: int) -> list[list[str]]:
    """Without alignment gaps DeepSpeed's own records of round robin are wrong; the values are not."""
    case = QWEN.but(stage=2, round_robin=True)
    engine = make_engine(case)
    found = [wrong_weights(engine), _wrong_masters(engine)]
    step(engine, case)
    return [*found, wrong_weights(engine), _wrong_masters(engine)]


def test_round_robin() -> None:
    for found in run_ranks(6, _dealt_out):
        assert found == [[]] * 4


def _another_size(rank: int) -> tuple[Any, ...]:
    """A second engine keeps the groups of the first: cut over 2 whatever its configuration says."""
    make_engine(SMALL)
    keep, engines.forget_groups = engines.forget_groups, lambda: None
    try:
        engine = make_engine(SMALL.but(tp=4))
    finally:
        engines.forget_groups = keep
    shapes = {tuple(piece.shape) for piece in reshard.deepspeed.parameter_layout(engine).pieces("up.weight")}
    return engine.autotp_size(), shapes, wrong_weights(engine)


def test_the_size_is_what_the_layers_say() -> None:
    for claimed, shapes, wrong in run_ranks(4, _another_size):
        assert claimed == 4
        assert shapes == {(9, 7)}
        assert wrong == []
