"""A training engine as a target: weights that arrive must also reach the optimizer's 32-bit master copy.

    plan --> weights.0 (bf16)   written by the move
                 | commit(): each master element is set from its weight, on this rank
             fp32.0             what the next step starts from, and would else undo the move with
             exp_avg.0 ...      "keep": as they were; "zero": as if no step had been taken

A rank's master elements are a part of the weights that it stores (ZeRO's rule at every stage), so nothing is sent.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed

from reshard import Layout

from .errors import EngineError, unexpected
from .layouts import parameter_layout
from .release import release
from .shards import Shards, has_masters, stored
from .stored import Stored

__all__ = ["TrainingTarget", "training_target"]

Moments = Literal["keep", "zero"]


def training_target(
    engine: Any, *, moments: Moments | None = None, weights_only: bool = False
) -> TrainingTarget:
    """Makes a live engine a target. Collective over the tensor-parallel group, as `parameter_layout`.

    Args:
        engine: it may have an optimizer or none.
        moments: what becomes of the optimizer's moments: "keep", or "zero" with the step count. Must be said.
        weights_only: write the low-precision weights and nothing else. The next step undoes that: it is for engines
            that will not step again.

    Raises:
        EngineError: an engine with an optimizer and neither `moments` nor `weights_only`; else as `parameter_layout`.
    """
    if weights_only == (moments is not None):
        raise EngineError(
            "a training engine's next step starts from its master weights: say what becomes of them",
            kind="usage",
            hint='moments="keep" or moments="zero", or weights_only=True if the engine will not step again',
        )
    if moments not in (None, "keep", "zero"):
        raise EngineError(
            f"unknown moments {moments!r}; known: keep, zero",
            kind="usage",
            expected=("keep", "zero"),
            found=moments,
        )
    return TrainingTarget(engine, moments)


class TrainingTarget:
    """A live engine into which weights are moved.

    Attributes:
        layout: the target layout of a plan: `parameter_layout(engine)`.
    """

    layout: Layout

    def __init__(self, engine: Any, moments: Moments | None) -> None:
        self._engine, self._moments = engine, moments
        self.layout = parameter_layout(engine)

    def shards(self) -> Shards:
        """The tensors to write into, taken anew for each move. Inside `released(engine)`."""
        return Shards(self._engine, None, is_target=True)

    def commit(self) -> None:
        """Makes what arrived the truth: masters set from weights, moments as asked, full copies dropped. Local.

        A master of the weights' own dtype is equal to them afterwards, a wider one holds them exactly. To bring over
        exact 32-bit masters, move `optimizer_layout(engine, "fp32")` by a plan of its own after this.

        Give it to `Synchroniser.sync` as ``verify``: what fails on one rank then keeps all ranks from committing.
        """
        release(self._engine)
        if self._moments is None or not has_masters(self._engine):
            return
        with torch.no_grad():
            _refresh(stored(self._engine, None), stored(self._engine, "fp32"))
            if self._moments == "zero":
                _forget(self._engine)


def _refresh(weights: Stored, masters: Stored) -> None:
    """Copies each run of the master weights from the same elements of the weights."""
    places = {
        parameter: (storage, offset, first, length)
        for parameter, storage, offset, first, length in _runs(weights)
    }
    sources, targets = list(weights.tensors.values()), list(masters.tensors.values())
    for parameter, storage, offset, first, length in _runs(masters):
        at, begin, held_first, held = places[parameter]
        if first < held_first or first + length > held_first + held:
            raise unexpected(
                f"elements {first} to {first + length} among the stored weights",
                f"{held_first} to {held_first + held}",
                masters.facts[parameter].name,
            )
        source = sources[at].narrow(0, begin + first - held_first, length)
        target = targets[storage].narrow(0, offset, length)
        if source.data_ptr() != target.data_ptr():
            target.copy_(source)


def _runs(kept: Stored) -> list[list[int]]:
    runs = kept.account(0).runs(torch.distributed.get_rank())
    found: list[list[int]] = runs[runs[:, 4] > 0].tolist()
    return found


def _forget(engine: Any) -> None:
    """Every state of the base optimizer, and its step counts, as before the first step."""
    base = getattr(engine.optimizer, "optimizer", engine.optimizer)
    for states in base.state.values():
        for name, value in states.items():
            if torch.is_tensor(value):
                value.zero_()
            elif name == "step":
                states[name] = 0
    for group in base.param_groups:
        if "step" in group:
            group["step"] = 0
