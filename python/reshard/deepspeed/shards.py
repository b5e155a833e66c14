"""This rank's side of a layout: ZeRO's own tensors, flat and without a copy, under the names of its storages.

    parameter_shards(engine)      {"weights.0": bit16_groups_flat[0], ...}      names and lengths as in parameter_layout
    optimizer_shards(engine, s)   {"fp32.0": single_partition_of_fp32_groups[0], ...}
         .check()                 right before a move: are these still the tensors that the engine uses?

ZeRO replaces its buffers (offload, reload, a re-made partition), and a view of a replaced buffer is memory that nobody
reads any more. So shards are taken anew for every move, and checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import flat, slices
from .errors import EngineError, StaleError, module_of
from .layouts import checked_state, read
from .stored import Stored
from .tensor_parallel import ParameterFacts, Survey

__all__ = ["Shards", "optimizer_shards", "parameter_shards"]


class Shards(Mapping[str, torch.Tensor]):
    """Flat tensors of this rank by storage name, in the order of the layout. Each is one-dimensional and dense.

    Writing into them writes into the engine. Padding is inside, and no piece of the layout touches it.
    """

    def __init__(self, engine: Any, state: str | None, *, is_target: bool = False) -> None:
        self._engine, self._state, self._is_target = engine, state, is_target
        self._tensors = _tensors(engine, state)

    def check(self) -> None:
        """Refuses if these are no longer the engine's tensors, or the engine is not in a state to be moved. Local.

        Raises:
            StaleError: a buffer was replaced, moved or offloaded. Names the storage.
            GatheredError, DetachedError, EngineError: as when shards are taken.
        """
        present = _tensors(self._engine, self._state)
        for name in sorted(self._tensors.keys() | present.keys()):
            mine, now = self._tensors.get(name), present.get(name)
            if mine is None or now is None or _identity(mine) != _identity(now):
                raise StaleError(
                    f"{name} is no longer the engine's: it was replaced, moved or offloaded since this shard was taken",
                    expected=None if now is None else _identity(now),
                    found=None if mine is None else _identity(mine),
                    hint="take shards anew before each move",
                )

    def check_target(self) -> None:
        """Refuses weights as a target where masters would undo them, unless they are a `TrainingTarget`'s. Local.

        Raises:
            EngineError: with the way out.
        """
        if self._state is None and not self._is_target and has_masters(self._engine):
            raise EngineError(
                "weights that are written alone are undone by the next step, which starts from the master weights",
                kind="usage",
                hint="training_target(engine, ...).shards() are shards to write into",
            )

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {tensor.numel()}" for name, tensor in self._tensors.items())
        return f"<Shards {sizes}>"


def parameter_shards(engine: Any) -> Shards:
    """The weights that this rank stores, under the names of `parameter_layout(engine)`. Local.

    Below stage 3 a parameter that left its flat buffer is put back first, if both hold the same values.

    Raises:
        GatheredError: a ZeRO-3 parameter is gathered or in flight; use `released(engine)`.
        DetachedError: a parameter left its flat buffer and holds other values.
        EngineError: as `parameter_layout`.
    """
    return Shards(engine, None)


def optimizer_shards(engine: Any, state: str) -> Shards:
    """The optimizer state that this rank stores, under the names of `optimizer_layout(engine, state)`. Local.

    Raises:
        EngineError: as `optimizer_layout`.
    """
    return Shards(engine, checked_state(state))


def has_masters(engine: Any) -> bool:
    """Whether the engine's next step would start from masters: whether it has a real optimizer."""
    return hasattr(engine.optimizer, "param_groups") and getattr(
        engine.optimizer, "using_real_optimizer", True
    )


def stored(engine: Any, state: str | None) -> Stored:
    """What this rank keeps, once it is seen that the engine may be moved."""
    survey = Survey(module_of(engine))
    facts = survey.facts()
    if state is None:
        _settle(engine, facts)
    return read(engine, facts, state, survey.tp)


def _settle(engine: Any, facts: list[ParameterFacts]) -> None:
    """Sees to it that what is stored is what the forward reads."""
    if engine.zero_optimization_stage() == 3:
        slices.refuse_gathered(facts)
    elif flat.owns(engine.optimizer, None):
        flat.relink(engine, facts)


def _tensors(engine: Any, state: str | None) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in stored(engine, state).tensors.items()}


def _identity(tensor: torch.Tensor) -> tuple[int, int, str, str]:
    return tensor.data_ptr(), tensor.numel(), str(tensor.dtype), str(tensor.device)
