"""What cannot be described or moved is refused: which parameter, on which rank, what was found, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.checkpoint.constants import DS_AUTOTP_UC_META
from deepspeed.module_inject.layers import TensorParallelConv2d
from deepspeed.runtime.zero.partition_parameters import PartitionedParamStatus, ZeroParamStatus
from engines import Case, consolidated, forward, make_engine, step
from ranks import run_ranks

from reshard import ReshardError
from reshard.deepspeed import (
    DetachedError,
    EngineError,
    GatheredError,
    InternalsError,
    optimizer_layout,
    optimizer_shards,
    parameter_layout,
    parameter_shards,
    released,
    training_target,
)


def _said(action: Callable[..., Any], *arguments: Any) -> tuple[str, str, str | None]:
    """Class, words and parameter of what `action` raises; what it returned is no refusal."""
    try:
        result = action(*arguments)
    except ReshardError as error:
        return type(error).__name__, str(error), error.parameter
    return "none", repr(result), None


@contextmanager
def _set(owner: Any, name: str, value: Any) -> Any:
    """An attribute changed inside, or taken away if `value` is `_set`."""
    had, before = name in vars(owner) or name == "__class__", getattr(owner, name, None)
    if value is _set:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before) if had else delattr(owner, name)


def _stage_3(rank: int) -> dict[str, Any]:
    engine = make_engine(Case(stage=3, frozen=("up.bias",)))
    optimizer, module, said = engine.optimizer, engine.module, {}
    up = module.up.weight
    step(engine, Case())
    said["gathered"] = _said(parameter_shards, engine)
    said["layout of gathered"] = _said(parameter_layout, engine)
    said["states of gathered"] = _said(optimizer_shards, engine, "fp32")
    with released(engine):
        shards = parameter_shards(engine)
        with _set(up, "ds_status", ZeroParamStatus.INFLIGHT):
            said["in flight"] = _said(shards.check)
        shards.check()
        with _set(up.ds_tensor, "ds_quant_scale", torch.ones(1)):
            said["quantised"] = _said(parameter_layout, engine)
        with _set(up.ds_tensor, "status", PartitionedParamStatus.NOT_AVAILABLE):
            said["nvme"] = _said(parameter_layout, engine)
        with _set(up.ds_tensor, "ds_numel", 5):
            said["length"] = _said(parameter_layout, engine)
        with _set(optimizer, "swap_optimizer", True):
            said["nvme states"] = _said(optimizer_layout, engine, "exp_avg")
        with _set(optimizer, "grad_position", {key: [0, 3, 4] for key in optimizer.grad_position}):
            said["position"] = _said(optimizer_layout, engine, "fp32")
        with _set(optimizer, "grad_position", _set):
            said["no positions"] = _said(optimizer_layout, engine, "fp32")
        with _set(up, "ds_zero_param_process_group", torch.distributed.group.WORLD):
            said["hpz"] = _said(parameter_layout, engine)
        optimizer.lp_param_buffer, kept = optimizer.lp_param_buffer.clone(), optimizer.lp_param_buffer
        said["elsewhere"] = _said(parameter_layout, engine)
        optimizer.lp_param_buffer = kept
        said["unknown state"] = _said(optimizer_layout, engine, "momentum")
    module.late = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    said["late"] = _said(parameter_layout, engine)
    said["late shards"] = _said(parameter_shards, engine)
    said["late release"] = _said(released(engine).__enter__)
    del module.late
    forward(engine, Case())
    with released(engine):
        said["released"] = _said(lambda: len(parameter_shards(engine)))
    return said


def test_stage_3() -> None:
    for rank, said in enumerate(run_ranks(4, _stage_3)):
        for name, kind, words, parameter in [
            ("gathered", "GatheredError", "release it: with released(engine)", "norm.weight"),
            ("in flight", "GatheredError", "up.weight is in flight", "up.weight"),
            ("quantised", "EngineError", "up.weight is quantised", "up.weight"),
            ("nvme", "EngineError", "up.weight is swapped to NVMe", "up.weight"),
            (
                "length",
                "InternalsError",
                "looked for a partition of 32 elements, 1 of 2, found one of 5",
                "up.weight",
            ),
            ("nvme states", "EngineError", "sub-group 0 of exp_avg is swapped to NVMe", None),
            ("position", "InternalsError", "recorded position [0, 3, 4] in deepspeed 0.19.8", "norm.weight"),
            (
                "no positions",
                "InternalsError",
                "looked for DeepSpeedZeroOptimizer_Stage3.grad_position",
                None,
            ),
            ("hpz", "EngineError", "secondary partition (hpZ) under tensor parallelism", "up.weight"),
            ("elsewhere", "InternalsError", "its partition at element 0 of the flat buffer", "norm.weight"),
            ("unknown state", "EngineError", "unknown optimizer state 'momentum'", None),
            ("late", "EngineError", "late of shape (3,) is not partitioned", "late"),
            ("late release", "EngineError", "late of shape (3,) is not partitioned", "late"),
            ("late shards", "EngineError", "late of shape (3,) is not partitioned", "late"),
        ]:
            assert said[name][0] == kind and said[name][2] == parameter, (name, said[name])
            assert words in said[name][1], (name, said[name])
        assert said["gathered"][1].startswith(f"rank {rank}: ")
        assert said["layout of gathered"][0] == said["states of gathered"][0] == "none"
        assert said["released"][:2] == ("none", "2")


def _stage_1(rank: int) -> dict[str, Any]:
    engine = make_engine(Case(stage=1))
    optimizer, up, said = engine.optimizer, engine.module.up, {}
    said["no step yet"] = _said(optimizer_layout, engine, "exp_avg")
    step(engine, Case())

    consolidated(engine, restore=False)
    flat = optimizer.bit16_groups_flat[0]
    inside = range(flat.data_ptr(), flat.data_ptr() + flat.numel() * flat.element_size())
    said["left"] = up.weight.data_ptr() not in inside
    shards = parameter_shards(engine)
    said["back"] = up.weight.data_ptr() in inside
    shards["weights.0"].fill_(0.5)
    said["seen"] = bool((up.weight == 0.5).all())

    up.weight.data = up.weight.data + 1
    said["detached"] = _said(shards.check)
    up.weight.data = up.weight.data - 1
    shards.check()

    mappings = optimizer._param_slice_mappings
    with _set(optimizer, "_param_slice_mappings", [dict.fromkeys(mappings[0])]):
        said["records"] = _said(optimizer_layout, engine, "fp32")
    with _set(optimizer, "round_robin_bit16_offsets", _set):
        said["no offsets"] = _said(parameter_layout, engine)
    with _set(optimizer, "__class__", type("ZenFlowZeroOptimizer", (type(optimizer),), {})):
        said["another optimizer"] = _said(parameter_layout, engine)
    with _set(engine, "has_moe_layers", True):
        said["experts"] = _said(parameter_layout, engine)
    return said


def test_stages_1_and_2() -> None:
    for said in run_ranks(4, _stage_1):
        assert (
            said["no step yet"][0] == "EngineError" and "exist after the first step" in said["no step yet"][1]
        )
        assert said["left"] and said["back"] and said["seen"]
        assert said["detached"][0] == "DetachedError" and said["detached"][2] == "up.weight"
        assert said["records"][0] == "InternalsError"
        assert "looked for DeepSpeedZeroOptimizer.round_robin_bit16_offsets" in said["no offsets"][1]
        assert "deepspeed 0.19.8" in said["no offsets"][1]
        assert (
            "ZenFlowZeroOptimizer is not an optimizer whose storage is known" in said["another optimizer"][1]
        )
        assert "expert" in said["experts"][1]


def _tensor_parallel(rank: int) -> dict[str, Any]:
    engine = make_engine(Case(stage=1, fused=True))
    module, said = engine.module, {}
    published = getattr(module.qkv.weight, DS_AUTOTP_UC_META)
    unsupported = {
        **published,
        "conversion": {"affine_map": None, "unsupported_reason": "its bias is divided"},
    }
    # One rank alone: its tensor-parallel peers must hear of it in the same collective, and not wait.
    with _set(module.qkv.weight, DS_AUTOTP_UC_META, unsupported if rank == 1 else published):
        said["unsupported"] = _said(parameter_layout, engine)
    other = {**published, "conversion": {**published["conversion"], "affine_map": _halved(published)}}
    with _set(module.qkv.weight, DS_AUTOTP_UC_META, other):
        said["shard"] = _said(parameter_layout, engine)
    with _set(module.up, "tp_world_size", 4):
        said["size"] = _said(parameter_layout, engine)
    with _set(module.up, "__class__", type("Conv", (TensorParallelConv2d,), {"__init__": lambda self: None})):
        said["convolution"] = _said(parameter_layout, engine)
    return said


def _halved(published: Any) -> dict[str, Any]:
    told = published["conversion"]["affine_map"]
    return {**told, "ranks": {key: {**one, "shard_shape": [6, 7]} for key, one in told["ranks"].items()}}


def test_tensor_parallel_layers() -> None:
    results = run_ranks(2, _tensor_parallel)
    for said in results:
        assert said["unsupported"][2] == "qkv.weight"
        assert (
            said["unsupported"][1].startswith("rank 1: qkv.weight: ")
            and "its bias is divided" in said["unsupported"][1]
        )
        assert "looked for a shard of shape (6, 7) as its map says, found (12, 7)" in said["shard"][1]
        assert "up with size and index (4, " in said["size"][1]
        assert "DeepSpeed does not describe how Conv cuts its parameters" in said["convolution"][1]


def _no_optimizer(rank: int) -> list[Any]:
    said = []
    for case in (
        Case(stage=0, optimizer=None),
        Case(stage=3, optimizer=None),
        Case(stage=0, dtype="fp32", optimizer=None),
    ):
        engine = make_engine(case)
        said.append(_said(optimizer_layout, engine, "fp32"))
        training_target(engine, moments="keep").commit()
    return said


def test_engines_without_an_optimizer_have_no_states() -> None:
    for said in run_ranks(2, _no_optimizer):
        for kind, words, _ in said:
            assert kind == "EngineError" and "an engine without an optimizer has no optimizer states" in words


def test_errors_survive_a_pickle() -> None:
    import pickle

    for kind in (EngineError, GatheredError, DetachedError, InternalsError):
        error = kind(
            "up.weight is odd", rank=3, parameter="up.weight", expected=1, found=2, hint="look again"
        )
        again = pickle.loads(pickle.dumps(error))
        assert (
            type(again) is kind and str(again) == str(error) == "rank 3: up.weight is odd (hint: look again)"
        )
        assert (again.parameter, again.rank, again.expected, again.found, again.kind) == (
            "up.weight",
            3,
            1,
            2,
            "unsupported",
        )
