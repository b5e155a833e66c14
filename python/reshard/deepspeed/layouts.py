"""From a live engine to a layout of the whole world, the same on every rank, with one all-gather.

    rank 0 (tp 0, dp 0)   reads what it keeps, and knows its data-parallel peers [0, 2] by ZeRO's rule
      |  one all-gather over the tensor-parallel group [0, 1]
    rank 1 (tp 1, dp 0)   tells the same of [1, 3]
      '-> the layout of ranks 0 1 2 3: what rank 2 and 3 derive from each other is equal

A rank that must refuse says so in the same all-gather, so that its peers there raise its error and do not wait.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
import torch.distributed

from reshard import Layout, LayoutBuilder
from reshard.errors import ReshardError

from . import flat, slices, whole
from .errors import EngineError, module_of
from .held import Held
from .stored import STATES, Stored, short_dtype
from .tensor_parallel import ParameterFacts, Survey, TensorParallel

__all__ = ["optimizer_layout", "parameter_layout"]

_WHOLE = ("FP16_UnfusedOptimizer", "FP16_Optimizer", "BF16_Optimizer", "NoneType")
_SLICES = ("DeepSpeedZeroOptimizer_Stage3", "DeepSpeedZeRoOffload")


def parameter_layout(engine: Any) -> Layout:
    """Where every element of the weights lies: all ranks, global numbers, full Hugging Face shapes and names.

    Collective over the tensor-parallel group: one `all_gather_object`, none without tensor parallelism. Storages are
    named as `parameter_shards(engine)` names its tensors: "weights.N" for flat buffers, "weights/NAME" for a parameter
    that stands alone. Padding is in no piece.

    Raises:
        EngineError: a storage that cannot be described; see its subclasses. Raised alike on all tensor-parallel peers.
    """
    return _layout(engine, None)


def optimizer_layout(engine: Any, state: str) -> Layout:
    """Where every element of an optimizer state lies: "fp32" (the master weights), "exp_avg" or "exp_avg_sq".

    Holds the parameters that the optimizer owns: neither frozen nor empty. Otherwise as `parameter_layout`.

    Raises:
        EngineError: also an optimizer that has no such state, or not before its first step.
    """
    return _layout(engine, checked_state(state))


def read(engine: Any, facts: Sequence[ParameterFacts], state: str | None, tp: TensorParallel) -> Stored:
    """What this rank keeps. Local."""
    kind = type(engine.optimizer).__name__
    if getattr(engine, "has_moe_layers", False) or getattr(engine, "pipeline_parallelism", False):
        raise EngineError(
            "expert and pipeline parallel engines have no layout here", found=type(engine).__name__
        )
    if kind in _SLICES:
        return slices.read(engine, facts, state, tp)
    if flat.owns(engine.optimizer, state):
        return flat.read(engine, facts, state)
    ours = kind in _WHOLE
    if engine.zero_optimization_stage() == 0 and (
        ours or isinstance(engine.optimizer, torch.optim.Optimizer)
    ):
        return whole.read(engine, facts, state)
    raise EngineError(
        f"{kind} is not an optimizer whose storage is known",
        expected=[*_SLICES, *_WHOLE, "DeepSpeedZeroOptimizer"],
        found=kind,
        hint="ZenFlow, SuperOffload and their like keep weights in other places",
    )


def checked_state(state: str) -> str:
    """`state`, if it is one that has a layout."""
    if state not in STATES:
        known = ", ".join(STATES)
        raise EngineError(
            f"unknown optimizer state {state!r}; known: {known}", kind="usage", expected=STATES, found=state
        )
    return state


@dataclass(frozen=True)
class _Account:
    """What a rank tells its tensor-parallel peers."""

    held: Held
    parameters: tuple[Any, ...]


def _layout(engine: Any, state: str | None) -> Layout:
    facts: list[ParameterFacts]
    mine: _Account | ReshardError
    survey = Survey(module_of(engine))
    tp, facts = survey.tp, []
    try:
        facts = survey.facts()
        held = read(engine, facts, state, tp).account(tp.index)
        mine = _Account(held, tuple(fact.agreed() for fact in facts))
    except ReshardError as refusal:
        mine = refusal
    accounts = _exchanged(mine, tp)
    _check_world([account.held for account in accounts], engine)
    return _build(facts, [account.held for account in accounts], state)


def _exchanged(mine: _Account | ReshardError, tp: TensorParallel) -> list[_Account]:
    """Every tensor-parallel rank's account, by index."""
    told: list[Any] = [mine]
    if tp.group is not None and len(tp.ranks) > 1:
        told = [None] * len(tp.ranks)
        torch.distributed.all_gather_object(told, mine, group=tp.group)
    for one in told:
        if isinstance(one, ReshardError):
            raise one
    for rank, one in zip(tp.ranks, told, strict=True):
        for ours, theirs in zip_longest(told[0].parameters, one.parameters):
            if ours != theirs:
                raise EngineError(
                    f"{(theirs or ours)[0]}: ranks {tp.ranks[0]} and {rank} describe it as {ours} and {theirs}",
                    kind="invalid",
                    parameter=(theirs or ours)[0],
                    expected=ours,
                    found=theirs,
                )
    return told


def _check_world(held: Sequence[Held], engine: Any) -> None:
    covered = sorted(rank for one in held for rank in one.ranks)
    world = list(range(torch.distributed.get_world_size()))
    if covered != world:
        groups = [list(one.ranks) for one in held]
        raise EngineError(
            f"the data-parallel groups {groups} of the tensor-parallel ranks do not make up the world of {len(world)}",
            expected=world,
            found=covered,
            hint="no layer of the module was cut: is the engine's module the one that AutoTP changed?"
            if len(held) == 1
            else None,
        )


def _build(facts: Sequence[ParameterFacts], held: Sequence[Held], state: str | None) -> Layout:
    builder = LayoutBuilder()
    parameters = _parameters(builder, facts, held, state)
    shards = _shards(builder, facts, len(held))
    rows = []
    for rank, one in sorted(((rank, kept) for kept in held for rank in kept.ranks), key=lambda pair: pair[0]):
        buffers = [builder.tensor(rank, spec.name, spec.dtype, spec.length) for spec in one.storages]
        runs = one.runs(rank)
        runs = runs[runs[:, 4] > 0]
        columns = (
            parameters[runs[:, 0]],
            shards[runs[:, 0], one.tp_index],
            np.array(buffers, np.int64)[runs[:, 1]],
        )
        rows.append(np.column_stack([*columns, runs[:, 2:]]))
    builder.place_runs(np.ascontiguousarray(np.concatenate(rows), dtype=np.int64))
    return builder.build()


def _parameters(
    builder: LayoutBuilder, facts: Sequence[ParameterFacts], held: Sequence[Held], state: str | None
) -> Any:
    """The builder's number of each parameter; -1 for those that no optimizer owns, in the layout of a state."""
    dtypes: dict[int, str] = {}
    for one in held:
        for parameter, storage in one.entries[:, :2].tolist():
            dtypes[parameter] = one.storages[storage].dtype
    numbers = np.full(len(facts), -1, np.int64)
    for index, fact in enumerate(facts):
        if state is None and index not in dtypes:
            # An empty parameter: it has a place in the layout and no element.
            dtypes[index] = short_dtype(fact.parameter)
        if index in dtypes:
            numbers[index] = builder.parameter(fact.name, fact.shape, dtypes[index])
            for alias in fact.aliases:
                builder.alias(alias, int(numbers[index]))
    return numbers


def _shards(builder: LayoutBuilder, facts: Sequence[ParameterFacts], tp_size: int) -> Any:
    """int64 (parameter, tensor-parallel index): the builder's number of that shard."""
    numbers = np.zeros((len(facts), tp_size), np.int64)
    known: dict[Any, Any] = {}
    for index, fact in enumerate(facts):
        # Layers repeat: a map's bytes are far cheaper than reading it again.
        key = fact.shape, fact.affine_map and marshal.dumps(fact.affine_map)
        if key not in known:
            known[key] = _shards_of(builder, fact)
        numbers[index] = known[key]
    return numbers


def _shards_of(builder: LayoutBuilder, fact: ParameterFacts) -> int | list[int]:
    if fact.affine_map is not None:
        shards = builder.shards(fact.name, fact.shape, fact.affine_map)
        return [shards[tp_index] for tp_index in range(len(shards))]
    return builder.shard(fact.shape, fact.shape, [([0] * len(fact.shape), fact.shape, 0, None)])
