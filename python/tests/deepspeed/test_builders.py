"""Live layouts against those that the Rust builders derive from a configuration, and against DeepSpeed's own maps."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from deepspeed.module_inject.layers import collect_autotp_universal_checkpoint_info
from engines import Case, consolidated, make_engine, qwen3_config
from ranks import run_ranks
from rebuild import agreed, different, gathered, rebuilt

import reshard
import reshard.deepspeed

QWEN = Case(model="qwen3")

# topology, case, options of the builder
TOPOLOGIES: list[tuple[str, Case, dict[str, Any]]] = [
    ("autotp:tp=2,dp=2,zero=1", QWEN, {}),
    ("autotp:tp=2,dp=2,zero=1", QWEN.but(tied=True, dtype="fp32"), {}),
    ("autotp:tp=2,dp=2,zero=3", QWEN.but(stage=3, layers=2), {}),
    ("autotp:tp=2,dp=2,zero=3,init=zero", QWEN.but(stage=3, init="world"), {}),
    ("autotp:tp=2,dp=2,zero=3,init=dp", QWEN.but(stage=3, init="dp"), {}),
    (
        "autotp:tp=2,dp=2,zero=3,init=zero",
        QWEN.but(stage=3, init="world", optimizer="config"),
        {"config_optimizer": True},
    ),
    ("autotp:tp=1,dp=4,zero=3", QWEN.but(stage=3, tp=1), {}),
    ("autotp:tp=4,dp=1,zero=2", QWEN.but(stage=2, tp=4), {}),
    (
        "autotp:tp=2,dp=3,zero=2",
        QWEN.but(stage=2, two_groups=True, round_robin=True, alignment=True, heads=5, kv_heads=5),
        {"two_groups": True, "round_robin_gradients": True, "parameter_alignment": True},
    ),
    (
        "autotp:tp=2,dp=3,zero=3",
        QWEN.but(stage=3, two_groups=True, sub_group_elements=300),
        {"two_groups": True, "sub_group_size": 300},
    ),
]


def _config(case: Case) -> dict[str, Any]:
    config = json.loads(json.dumps(qwen3_config(case).to_dict(), default=str))
    config.pop("dtype", None)
    config["torch_dtype"] = {"bf16": "bfloat16", "fp32": "float32"}[case.dtype]
    return dict(config)


def _unequal(rank: int, topology: str, case: Case, options: dict[str, Any]) -> list[str]:
    engine = make_engine(case)
    live = {"weights": reshard.deepspeed.parameter_layout(engine)}
    live["fp32"] = reshard.deepspeed.optimizer_layout(engine, "fp32")
    built = {"weights": reshard.Layout.autotp(_config(case), topology, **options)}
    built["fp32"] = reshard.Layout.autotp(_config(case), topology, state="fp32", **options)
    return [name for name in live if live[name] != built[name]]


@pytest.mark.parametrize("number", range(len(TOPOLOGIES)))
def test_live_layouts_are_the_builders(number: int) -> None:
    topology, case, options = TOPOLOGIES[number]
    ways = [int(found) for found in re.findall(r"[td]p=(\d)", topology)]
    assert run_ranks(ways[0] * ways[1], _unequal, *TOPOLOGIES[number]) == [[]] * (ways[0] * ways[1])


def _boxes(layout: Any, name: str) -> list[Any]:
    return sorted((piece.rank, piece.origin, piece.shape) for piece in layout.pieces(name))


def _stage_0_unequal(rank: int) -> list[str]:
    """The builder lays stage 0 out flat, an engine without a fused optimizer does not: the same boxes elsewhere."""
    case = QWEN.but(stage=0)
    live = reshard.deepspeed.parameter_layout(make_engine(case))
    built = reshard.Layout.autotp(_config(case), "autotp:tp=2,dp=2,zero=0")
    assert live.parameters == built.parameters
    return [one.name for one in live.parameters if _boxes(live, one.name) != _boxes(built, one.name)]


def test_stage_0_holds_the_builders_boxes() -> None:
    assert run_ranks(4, _stage_0_unequal) == [[]] * 4


def _published_unequal(rank: int, case: Case) -> list[str]:
    engine = make_engine(case)
    info = collect_autotp_universal_checkpoint_info(engine.module)
    maps = {re.sub(r"\\(.)", r"\1", key[1:-1]): value for key, value in info["affine_map"]["params"].items()}
    live = reshard.deepspeed.parameter_layout(engine)
    told = reshard.Layout.from_affine_maps(maps, "bf16")
    assert {one.name: one.shape for one in live.parameters} == {one.name: one.shape for one in told.parameters}
    return [name for name in maps if _boxes(live, name) != _boxes(told, name)]


@pytest.mark.parametrize(
    "case", [QWEN.but(tp=4), QWEN.but(tp=4, tied=True, stage=2), Case(tp=2, fused=True, stage=0)], ids=str
)
def test_deepspeeds_own_maps_agree(case: Case) -> None:
    """Without data parallelism a rank is a tensor-parallel index, so that both speak of the same ranks."""
    assert run_ranks(case.tp, _published_unequal, case) == [[]] * case.tp


def _swapped(rank: int, case: Case) -> tuple[list[str], list[str]]:
    engine = make_engine(case)
    layout = reshard.deepspeed.parameter_layout(engine)
    with reshard.deepspeed.released(engine):
        told = gathered(layout, reshard.deepspeed.parameter_shards(engine))
    truth = consolidated(engine)
    swapped = [told[1], told[0], told[3], told[2]]
    right = agreed(lambda: different(rebuilt(layout, told), truth or {}))
    return right, agreed(lambda: different(rebuilt(layout, swapped), truth or {}))


@pytest.mark.parametrize(
    "case",
    [Case(stage=1), Case(stage=2), Case(stage=3), Case(stage=3, init="world"), Case(stage=3, init="dp")],
    ids=lambda case: f"stage {case.stage} {case.init}",
)
def test_swapped_tensor_parallel_storage_is_seen(case: Case) -> None:
    for right, wrong in run_ranks(4, _swapped, case):
        assert right == []
        assert "up.weight" in wrong
