"""Slices: stage 3, where every parameter is partitioned on its own and the pieces lie end to end.

    weights.0       lp_param_buffer            [ a a|b b b|c|d d . ]    slots of ceil(numel / W), in sub-group order
    fp32.0 fp32.1   fp32_partitioned_groups_flat  [ a a|b b b] [c|d d . ]  the same slots, a tensor a sub-group
    weights/x       ds_tensor of a frozen x    [ x x ]                  stands alone, as all do without an optimizer

W and the order of slices are those of `param.ds_process_group`, per parameter: plain `zero.Init` partitioned what
AutoTP left alone over the world. While weights are offloaded, `ds_tensor`s alias wrong bytes of `lp_param_buffer`, so
slots are found through the buffer. Sources: DeepSpeed 0.19.8 `runtime/zero/stage3.py`,
`runtime/zero/partition_parameters.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from deepspeed.runtime.zero.partition_parameters import PartitionedParamStatus, ZeroParamStatus

from .errors import EngineError, GatheredError, internal, refuse_unpartitioned, unexpected
from .stored import Stored, group_ranks, state_tensor
from .tensor_parallel import ParameterFacts, TensorParallel

__all__ = ["read", "refuse_gathered"]


def read(engine: Any, facts: Sequence[ParameterFacts], state: str | None, tp: TensorParallel) -> Stored:
    """What this rank keeps of the weights (`state` None) or of an optimizer state.

    Raises:
        EngineError: NVMe, quantised weights, hpZ with tensor parallelism, a state of an engine without an optimizer.
        InternalsError: slots that are not where the rule says.
    """
    optimizer = engine.optimizer
    stored = Stored("slice", group_ranks(internal(engine, "seq_data_parallel_group")), facts)
    for fact in facts:
        _refuse(fact, tp)
        _check_length(stored, fact)
    if state is not None:
        _add_states(stored, optimizer, state)
        return stored
    groups = internal(optimizer, "fp16_groups") if hasattr(optimizer, "fp32_partitioned_groups_flat") else []
    owned = {id(parameter) for group in groups for parameter in group}
    alone = [
        fact for fact in facts if id(fact.parameter) not in owned and internal(fact.parameter, "ds_numel")
    ]
    for fact in alone:
        _refuse_alias(fact)
    if groups:
        _add_flat(stored, optimizer, groups)
    for fact in alone:
        storage = stored.add_tensor(f"weights/{fact.name}", fact.parameter.ds_tensor)
        _add_slot(stored, fact.parameter, storage, 0)
    return stored


def refuse_gathered(facts: Sequence[ParameterFacts]) -> None:
    """Refuses parameters whose full copy exists: the next forward reads that one.

    Raises:
        GatheredError: names the parameter, its status, and the way out.
    """
    for fact in facts:
        refuse_unpartitioned(fact.name, fact.parameter)
        status = internal(fact.parameter, "ds_status")
        if status is not ZeroParamStatus.NOT_AVAILABLE:
            words = "in flight" if status is ZeroParamStatus.INFLIGHT else "gathered"
            raise GatheredError(
                f"{fact.name} is {words}: what moves is its partition, what the next forward reads is this copy",
                parameter=fact.name,
                expected=ZeroParamStatus.NOT_AVAILABLE.name,
                found=status.name,
                hint="release it: with released(engine)",
            )


def _refuse(fact: ParameterFacts, tp: TensorParallel) -> None:
    parameter, name = fact.parameter, fact.name
    refuse_unpartitioned(name, parameter)
    partition = parameter.ds_tensor
    location = getattr(partition, "final_location", None)
    if internal(partition, "status") is not PartitionedParamStatus.AVAILABLE or location in ("nvme",):
        raise EngineError(
            f"{name} is swapped to NVMe", parameter=name, found=location, hint="offload to cpu instead"
        )
    if hasattr(partition, "ds_quant_scale") or partition.dtype != parameter.dtype:
        raise EngineError(
            f"{name} is quantised: its partition holds {partition.dtype}, the parameter is {parameter.dtype}",
            parameter=name,
            expected=parameter.dtype,
            found=partition.dtype,
            hint="zero_quantized_nontrainable_weights: false",
        )
    if getattr(parameter, "ds_zero_param_process_group", None) is not None and len(tp.ranks) > 1:
        raise EngineError(
            f"{name} has a secondary partition (hpZ) under tensor parallelism, which DeepSpeed builds over consecutive "
            "ranks and so across different shards: such an engine trains wrongly",
            parameter=name,
            hint="zero_hpz_partition_size: 1, or no tensor parallelism",
        )


def _check_length(stored: Stored, fact: ParameterFacts) -> None:
    """The slot by the rule against the partition that is there."""
    parameter = fact.parameter
    ways = len(stored.partitions[stored.partition(internal(parameter, "ds_process_group"))])
    slot, found = -(-internal(parameter, "ds_numel") // ways), internal(parameter.ds_tensor, "ds_numel")
    if found != slot or parameter.ds_tensor.numel() != slot:
        raise unexpected(f"a partition of {slot} elements, 1 of {ways}", f"one of {found}", fact.name)


def _add_slot(stored: Stored, parameter: Any, storage: int, start: int) -> int:
    """Adds an entry and returns where the next slot begins."""
    partition = stored.partition(parameter.ds_process_group)
    stored.add_entry(parameter, storage, start, parameter.ds_numel, partition)
    return start + int(parameter.ds_tensor.ds_numel)


def _add_flat(stored: Stored, optimizer: Any, groups: Sequence[Sequence[Any]]) -> None:
    """The weights that the optimizer owns."""
    single = getattr(optimizer, "lp_param_buffer", None)
    if single is not None:
        _fill_tensor(stored, optimizer, single, [parameter for group in groups for parameter in group])
        return
    # `offload_param` keeps a tensor a sub-group, in host memory.
    flats = internal(optimizer, "fp16_partitioned_groups_flat")
    if len(flats) != len(groups) or any(tensor is None for tensor in flats):
        raise EngineError("sub-groups of the weights are swapped to NVMe", hint="offload to cpu instead")
    for tensor, group in zip(flats, groups, strict=True):
        _fill_tensor(stored, optimizer, tensor, group)


def _fill_tensor(stored: Stored, optimizer: Any, tensor: torch.Tensor, parameters: Sequence[Any]) -> None:
    """A storage that the slots of `parameters` fill in this order."""
    storage, start = stored.add_tensor(f"weights.{len(stored.tensors)}", tensor), 0
    for parameter in parameters:
        _check_slot(stored, optimizer, parameter, tensor, start)
        start = _add_slot(stored, parameter, storage, start)
    if start != tensor.numel():
        raise unexpected(f"{start} elements in weights.{storage}", str(tensor.numel()))


def _check_slot(stored: Stored, optimizer: Any, parameter: Any, tensor: torch.Tensor, start: int) -> None:
    """Where the slot is by the rule against where `ds_tensor` really is."""
    offloaded = any(state.name == "lp_params" for state in getattr(optimizer, "offloaded_states", ()))
    expected = tensor.data_ptr() + start * tensor.element_size()
    if not offloaded and parameter.ds_tensor.numel() and parameter.ds_tensor.data_ptr() != expected:
        name = stored.facts[stored.number(parameter)].name
        raise unexpected(f"its partition at element {start} of the flat buffer", "it elsewhere", name)


def _refuse_alias(fact: ParameterFacts) -> None:
    """A parameter that no optimizer owns: its partition is a tensor of its own, or DeepSpeed has overwritten it."""
    partition = fact.parameter.ds_tensor
    if partition.untyped_storage().nbytes() != partition.numel() * partition.element_size():
        raise EngineError(
            f"{fact.name}: the partition of this frozen parameter is not a tensor of its own: offload_states has "
            "pointed it into the buffer of the trained ones, and its values are lost",
            parameter=fact.name,
            hint="do not offload lp_params where parameters are frozen, or load them again",
        )


def _add_states(stored: Stored, optimizer: Any, state: str) -> None:
    if not hasattr(optimizer, "fp32_partitioned_groups_flat"):
        raise EngineError(
            f"an engine without an optimizer has no optimizer states: {type(optimizer).__name__}",
            found=type(optimizer).__name__,
        )
    masters, groups = optimizer.fp32_partitioned_groups_flat, internal(optimizer, "fp16_groups")
    positions = internal(optimizer, "grad_position")
    for number, (master, group) in enumerate(zip(masters, groups, strict=True)):
        slots = sum(parameter.ds_tensor.ds_numel for parameter in group)
        if internal(optimizer, "swap_optimizer") or master.numel() == 0 < slots:
            raise EngineError(
                f"sub-group {number} of {state} is swapped to NVMe", hint="offload to cpu instead"
            )
        if master.numel() != slots:
            raise unexpected(
                f"{slots} elements in sub-group {number} of the master weights", str(master.numel())
            )
        tensor = state_tensor(internal(optimizer, "optimizer"), master, state, f"sub-group {number}")
        storage, start = stored.add_tensor(f"{state}.{number}", tensor), 0
        for parameter in group:
            recorded = positions[optimizer.get_param_id(parameter)]
            if recorded[:2] != [number, start]:
                name = stored.facts[stored.number(parameter)].name
                raise unexpected(
                    f"element {start} of sub-group {number}", f"recorded position {recorded}", name
                )
            start = _add_slot(stored, parameter, storage, start)
