"""Where weights come from: anything that can say its layout and hand out its tensors.

DeepSpeed engine ──► DeepSpeedSource ──┐
own trainer: layout(), shards() ───────┴──► WeightSource ──► TensorParallelRollout
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch

from reshard import Layout, UsageError


@runtime_checkable
class WeightSource(Protocol):
    """The trainer's side of a sync, on one rank.

    Two more methods are used where they are there. ``fingerprint() -> int`` is asked before each sync, on this rank
    alone: a value other than the last one says that `layout` would now be another. ``released()`` is a context manager
    around each sync, in which the tensors are what they should be.
    """

    def layout(self) -> Layout:
        """The layout of all ranks, equal on all. May be collective among the ranks that have a source."""

    def shards(self) -> Mapping[str, torch.Tensor]:
        """This rank's tensors by storage name, as they are now. Asked anew at each sync."""


class DeepSpeedSource:
    """A live DeepSpeed engine, through `reshard.deepspeed`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def layout(self) -> Layout:
        """See `reshard.deepspeed.parameter_layout`; collective over the engine's ranks."""
        from reshard.deepspeed import parameter_layout

        layout: Layout = parameter_layout(self._engine)
        return layout

    def shards(self) -> Mapping[str, torch.Tensor]:
        """See `reshard.deepspeed.parameter_shards`."""
        from reshard.deepspeed import parameter_shards

        shards: Mapping[str, torch.Tensor] = parameter_shards(self._engine)
        return shards

    def fingerprint(self) -> int:
        """Of the names, lengths and types of this rank's shards."""
        return hash(tuple((name, len(shard), shard.dtype) for name, shard in self.shards().items()))

    def released(self) -> AbstractContextManager[Any]:
        """See `reshard.deepspeed.released`."""
        from reshard.deepspeed import released

        context: AbstractContextManager[Any] = released(self._engine)
        return context


def as_source(given: Any) -> WeightSource:
    """A weight source, or a DeepSpeed engine made into one."""
    if isinstance(given, WeightSource):
        return given
    if hasattr(given, "zero_optimization_stage") and hasattr(given, "module"):
        return DeepSpeedSource(given)
    raise UsageError(
        f"weights come from a DeepSpeed engine or an object with layout() and shards(), found {type(given).__name__}",
        found=type(given).__name__,
    )
