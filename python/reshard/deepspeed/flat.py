"""Flat buffers: stages 1 and 2, the bf16 optimizer, and the states of the fused optimizer of stage 0.

    weights.0  [ norm | up ........ | down ...... | 0 0 ]      one flat buffer a group, whole on every rank
    fp32.0     [ rank 0     | rank 1     | rank 2       ]      rank k's tensor is the k-th window of the same space

Where a parameter begins is what the optimizer recorded, or the running sum of its group where it records nothing. The
windows of the peers follow from this rank's own, whose records (`_param_slice_mappings`) must agree with the rule.
Sources: DeepSpeed 0.19.8 `runtime/zero/stage_1_and_2.py`, `runtime/bf16_optimizer.py`, `runtime/fp16/fused_optimizer.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from .errors import DetachedError, EngineError, internal, unexpected
from .stored import Stored, dense, group_ranks, state_tensor
from .tensor_parallel import ParameterFacts

__all__ = ["add_whole", "groups", "owns", "read", "relink"]

_KINDS = ("DeepSpeedZeroOptimizer", "BF16_Optimizer")


@dataclass(frozen=True)
class FlatGroup:
    """One optimizer group: its parameters in buffer order, where each begins, the buffer, and the master tensor."""

    parameters: Sequence[Any]
    starts: Sequence[int]
    flat: torch.Tensor
    master: torch.Tensor


def owns(optimizer: Any, state: str | None) -> bool:
    """Whether an engine's optimizer keeps the weights (`state` None), or its states, in flat buffers.

    Without a real optimizer the bf16 one has none. The fused one has a flat buffer of weights too, but its steps write
    `param.data`, which need not lie in it. By class name: subclasses may keep things elsewhere.
    """
    kind = type(optimizer).__name__
    if kind == "FP16_Optimizer":
        return state is not None
    return kind in _KINDS and getattr(optimizer, "using_real_optimizer", True)


def read(engine: Any, facts: Sequence[ParameterFacts], state: str | None) -> Stored:
    """What this rank keeps of the weights (`state` None) or of an optimizer state.

    Raises:
        EngineError, InternalsError: as everywhere in this package.
    """
    optimizer = engine.optimizer
    found = groups(optimizer)
    ranks, partitioned = _ranks(engine, optimizer)
    stored = Stored("window" if state and partitioned else "whole", ranks, facts)
    for number, group in enumerate(found):
        tensor = group.flat if state is None else _state(optimizer, group, state, number)
        storage = stored.add_tensor(f"{state or 'weights'}.{number}", tensor)
        for parameter, start in zip(group.parameters, group.starts, strict=True):
            stored.add_entry(parameter, storage, start, parameter.numel())
        if partitioned:
            _check_windows(optimizer, stored, group, number)
    if state is None:
        _add_alone(stored, found)
    return stored


def groups(optimizer: Any) -> list[FlatGroup]:
    """The optimizer's groups, whichever of the three kinds it is."""
    kind = type(optimizer).__name__
    if kind == "DeepSpeedZeroOptimizer":
        names = ("round_robin_bit16_groups", "bit16_groups_flat", "single_partition_of_fp32_groups")
        starts = internal(optimizer, "round_robin_bit16_offsets")
    elif kind == "BF16_Optimizer":
        names, starts = ("bf16_groups", "bf16_groups_flat", "fp32_groups_flat_partition"), None
    else:
        names, starts = ("fp16_groups", "fp16_groups_flat", "fp32_groups_flat"), None
    parameters, flats, masters = (internal(optimizer, name) for name in names)
    if starts is None:
        starts = [_running_sum(group) for group in parameters]
    if not len(parameters) == len(flats) == len(masters) == len(starts):
        raise unexpected(f"{kind}: as many {names[1]} and {names[2]} as {names[0]}", "different counts")
    return [FlatGroup(*fields) for fields in zip(parameters, starts, flats, masters, strict=True)]


def _running_sum(parameters: Sequence[Any]) -> list[int]:
    numels = (parameter.numel() for parameter in parameters)
    return list(itertools.accumulate(numels, initial=0))[:-1]


def _ranks(engine: Any, optimizer: Any) -> tuple[tuple[int, ...], bool]:
    """The data-parallel group in global ranks, and whether the states are partitioned over it."""
    if not hasattr(optimizer, "real_dp_process_group"):
        return group_ranks(internal(engine, "seq_data_parallel_group")), False
    found = {group_ranks(group) for group in optimizer.real_dp_process_group}
    if len(found) != 1:
        raise EngineError(
            f"the optimizer's groups are partitioned over different ranks: {sorted(found)}",
            found=sorted(found),
            hint="expert parallel engines have no layout here",
        )
    return found.pop(), True


def _state(optimizer: Any, group: FlatGroup, state: str, number: int) -> torch.Tensor:
    return state_tensor(internal(optimizer, "optimizer"), group.master, state, f"group {number}")


def _check_windows(optimizer: Any, stored: Stored, group: FlatGroup, number: int) -> None:
    """This rank's own records against the rule by which its peers are described."""
    ways, window = len(stored.ranks), group.master.numel()
    if window * ways != group.flat.numel():
        raise unexpected(
            f"group {number}: a flat buffer of {ways} windows of {window} elements", f"{group.flat.numel()} elements"
        )
    if getattr(optimizer, "round_robin_gradients", False) and not any(optimizer.round_robin_bit16_padding[number]):
        # DeepSpeed then records positions of the order before the parameters were dealt out, which is not the buffer's.
        return
    names, recorded = internal(optimizer, "param_names"), internal(optimizer, "_param_slice_mappings")[number]
    begin = stored.ranks.index(torch.distributed.get_rank()) * window
    for parameter, start in zip(group.parameters, group.starts, strict=True):
        low, high = max(start, begin), min(start + parameter.numel(), begin + window)
        rule = (low - begin, high - low) if high > low else None
        said = recorded.get(names[parameter])
        if rule != (None if said is None else (said.start, said.numel)):
            raise unexpected(f"start and numel {rule} in the partition of group {number}", f"{said}", names[parameter])


def _add_alone(stored: Stored, found: Sequence[FlatGroup]) -> None:
    """Frozen and empty parameters are in no flat buffer: each is whole in its own tensor."""
    flat = {id(parameter) for group in found for parameter in group.parameters}
    for fact in stored.facts:
        if id(fact.parameter) not in flat and fact.parameter.numel():
            add_whole(stored, fact)


def add_whole(stored: Stored, fact: ParameterFacts) -> None:
    """A parameter whose own tensor is where it lies."""
    tensor = dense(fact.parameter.data, fact.name)
    stored.add_entry(fact.parameter, stored.add_tensor(f"weights/{fact.name}", tensor), 0, tensor.numel())


def relink(engine: Any, facts: Sequence[ParameterFacts]) -> None:
    """Brings parameters that left their flat buffer back into it, where both hold the same values.

    DeepSpeed's consolidation of weights re-cuts tensor-parallel parameters into new tensors, and the forward reads those
    until the next step, whatever the flat buffer holds.

    Raises:
        DetachedError: the two differ. Names the parameter.
    """
    names = {id(fact.parameter): fact.name for fact in facts}
    for group in groups(engine.optimizer):
        begin, size = group.flat.data_ptr(), group.flat.element_size()
        for parameter, start in zip(group.parameters, group.starts, strict=True):
            data = parameter.data
            if data.data_ptr() == begin + start * size and data.is_contiguous():
                continue
            home = group.flat.detach().narrow(0, start, data.numel()).view(data.shape)
            if home.device != data.device or not torch.equal(_bytes(home), _bytes(data.contiguous())):
                raise DetachedError(
                    f"{names[id(parameter)]}: its data left ZeRO's flat buffer and holds other values than it",
                    parameter=names[id(parameter)],
                    expected="param.data inside the flat buffer",
                    found="a tensor elsewhere with other values",
                    hint="take a step, or assign through param.data.copy_ and not param.data =",
                )
            parameter.data = home


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
