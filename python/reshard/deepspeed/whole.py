"""No flat buffer at all: stage 0. Every parameter is whole, on every rank, in its own tensor.

    weights/up.weight   param.data itself
    fp32/up.weight      the optimizer's 32-bit copy; the parameter itself where a torch optimizer steps it directly

Sources: DeepSpeed 0.19.8 `runtime/fp16/unfused_optimizer.py`, `runtime/engine.py` (`_do_optimizer_sanity_check`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .errors import EngineError, internal
from .flat import add_whole
from .stored import Stored, dense, group_ranks, state_tensor
from .tensor_parallel import ParameterFacts

__all__ = ["read"]


def read(engine: Any, facts: Sequence[ParameterFacts], state: str | None) -> Stored:
    """What this rank keeps of the weights (`state` None) or of an optimizer state.

    Raises:
        EngineError: a state of an engine without an optimizer.
    """
    stored = Stored("whole", group_ranks(internal(engine, "seq_data_parallel_group")), facts)
    if state is None:
        for fact in facts:
            if fact.parameter.numel():
                add_whole(stored, fact)
        return stored
    base, pairs = _masters(engine)
    for parameter, master in pairs:
        if not parameter.numel() or not parameter.requires_grad:
            continue
        name = facts[stored.number(parameter)].name
        tensor = dense(state_tensor(base, master, state, name).view(master.shape), name)
        stored.add_entry(parameter, stored.add_tensor(f"{state}/{name}", tensor), 0, tensor.numel())
    return stored


def _masters(engine: Any) -> tuple[Any, Iterator[tuple[Any, Any]]]:
    """The torch optimizer, and each parameter with the tensor that it steps."""
    optimizer = engine.optimizer
    if type(optimizer).__name__ == "FP16_UnfusedOptimizer":
        groups = zip(internal(optimizer, "fp16_groups"), internal(optimizer, "fp32_groups"), strict=True)
        return optimizer.optimizer, (pair for group in groups for pair in zip(*group, strict=True))
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
        raise EngineError(
            f"an engine without an optimizer has no optimizer states: {type(optimizer).__name__}",
            found=type(optimizer).__name__,
        )
    stepped = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return optimizer, ((parameter, parameter) for parameter in stepped)
