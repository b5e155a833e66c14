"""What this rank keeps: ZeRO's own tensors, and where in them each parameter's elements begin.

    engine.optimizer                  is read by
    DeepSpeedZeroOptimizer            flat.py      stages 1, 2
    BF16_Optimizer                    flat.py      stage 1 with 32-bit gradients; without a real optimizer: whole.py
    FP16_Optimizer                    flat.py      stage 0 with a fused optimizer: its states; weights: whole.py
    FP16_UnfusedOptimizer             whole.py     stage 0
    a torch optimizer, or none        whole.py     stage 0
    DeepSpeedZeroOptimizer_Stage3     slices.py    stage 3
    DeepSpeedZeRoOffload              slices.py    stage 3 without an optimizer

Whatever else DeepSpeed may put there (ZenFlow, SuperOffload, pipeline, ...) is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed

from reshard.torch.dtypes import SHORT

from .errors import EngineError
from .held import Held, StorageSpec
from .tensor_parallel import ParameterFacts

__all__ = ["STATES", "Stored", "group_ranks", "short_dtype", "state_tensor"]

#: Optimizer states that have a layout: the master copy of the weights, and Adam's moments.
STATES = ("fp32", "exp_avg", "exp_avg_sq")


@dataclass
class Stored:
    """What this rank keeps of one kind of tensor. Built by the readers, entry by entry.

    Attributes:
        rule, ranks, partitions: as in `Held`.
        tensors: ZeRO's own tensors by storage name, each one-dimensional and dense, padding included; no copies.
        entries: as in `Held`, a tuple a row.
        facts: the module's parameters; entries number them.
    """

    rule: str
    ranks: tuple[int, ...]
    facts: Sequence[ParameterFacts]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    entries: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    partitions: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._groups: dict[int, int] = {}
        self._numbers = {id(fact.parameter): number for number, fact in enumerate(self.facts)}

    def number(self, parameter: Any) -> int:
        """Of a parameter among the facts."""
        found = self._numbers.get(id(parameter))
        if found is None:
            raise EngineError(
                f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that the module does not",
                hint="the module was changed after deepspeed.initialize",
            )
        return found

    def add_tensor(self, name: str, tensor: torch.Tensor) -> int:
        """Registers a storage and returns its number."""
        self.tensors[name] = tensor
        return len(self.tensors) - 1

    def add_entry(self, parameter: Any, storage: int, start: int, numel: int, partition: int = 0) -> None:
        self.entries.append((self.number(parameter), storage, start, numel, partition))

    def partition(self, group: Any) -> int:
        """The number of a process group that slices parameters."""
        if id(group) not in self._groups:
            ranks = group_ranks(group)
            if ranks not in self.partitions:
                self.partitions.append(ranks)
            self._groups[id(group)] = self.partitions.index(ranks)
        return self._groups[id(group)]

    def account(self, tp_index: int) -> Held:
        """The same without tensors: what is told to the tensor-parallel peers."""
        specs = (StorageSpec(name, short_dtype(one), one.numel()) for name, one in self.tensors.items())
        entries = np.array(self.entries, np.int64).reshape(-1, 5)
        return Held(self.rule, tp_index, self.ranks, tuple(specs), entries, tuple(self.partitions))


def short_dtype(tensor: torch.Tensor) -> str:
    """The name of a tensor's dtype in layouts."""
    name = SHORT.get(tensor.dtype)
    if name is None:
        raise EngineError(f"a buffer of dtype {tensor.dtype}, which has no layout", found=str(tensor.dtype))
    return name


def group_ranks(group: Any) -> tuple[int, ...]:
    """A process group in global ranks, in its own order."""
    return tuple(torch.distributed.get_process_group_ranks(group))


def dense(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A flat view of a tensor that stands alone. No copy."""
    if not tensor.is_contiguous():
        raise EngineError(
            f"{name}: strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)} are not dense",
            parameter=name,
            expected="a dense row-major tensor",
            found=tuple(tensor.stride()),
            hint="param.data = param.data.contiguous()",
        )
    return tensor.detach().view(-1)


def state_tensor(base: Any, master: torch.Tensor, state: str, about: str) -> torch.Tensor:
    """`master` itself for "fp32", else the base optimizer's state of it.

    Raises:
        EngineError: the optimizer has no such state, or not yet. Names the states that it has.
    """
    if state == "fp32":
        return master.detach()
    states = base.state.get(master, {})
    found = states.get(state)
    if not torch.is_tensor(found) or found.numel() != master.numel():
        raise EngineError(
            f"{about}: {type(base).__name__} has no state {state}, it has {sorted(map(str, states))}",
            expected=state,
            found=sorted(map(str, states)),
            hint="optimizer states exist after the first step" if not states else None,
        )
    return found.detach().view(-1)
