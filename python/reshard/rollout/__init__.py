"""Rollout copies beside a trainer: their layouts, a tensor-parallel model, and the sync that fills it.

    rollout_layout(config, Placement(tp=4))         where every parameter of the copies lies; for any engine
    TensorParallelModel, Generator                  a small copy of a Qwen3 or Llama model, for tests and examples
    WeightSync(source, layout, tensors)             one plan, carried out at every step
    TensorParallelRollout(engine, config, ...)      all of it behind DeepSpeed's RolloutEngine interface

Needs torch; the model needs transformers, and only `TensorParallelRollout` (with `RolloutOptions`) imports DeepSpeed.
"""

from typing import TYPE_CHECKING, Any

from reshard.rollout.council import RolloutError
from reshard.rollout.generation import Generated, Generator, Sampling
from reshard.rollout.layouts import (
    Cut,
    Cuts,
    Placement,
    Region,
    linear_cuts,
    model_cuts,
    near_even,
    rollout_layout,
)
from reshard.rollout.linear import Team
from reshard.rollout.model import TensorParallelModel, make_team
from reshard.rollout.source import DeepSpeedSource, WeightSource
from reshard.rollout.sync import SyncOptions, WeightSync

if TYPE_CHECKING:
    from reshard.rollout.engine import RolloutOptions, TensorParallelRollout

__all__ = [
    "Cut",
    "Cuts",
    "DeepSpeedSource",
    "Generated",
    "Generator",
    "Placement",
    "Region",
    "RolloutError",
    "RolloutOptions",
    "Sampling",
    "SyncOptions",
    "Team",
    "TensorParallelModel",
    "TensorParallelRollout",
    "WeightSource",
    "WeightSync",
    "linear_cuts",
    "make_team",
    "model_cuts",
    "near_even",
    "rollout_layout",
]


def __getattr__(name: str) -> Any:
    if name in ("RolloutOptions", "TensorParallelRollout"):
        from reshard.rollout import engine

        globals()[name] = value = getattr(engine, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
