"""Rollout copies: their layouts, a small tensor-parallel one, and DeepSpeed's rollout interface over a sync."""

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

__all__ = [
    "Cut",
    "Cuts",
    "Generated",
    "Generator",
    "Placement",
    "Region",
    "Sampling",
    "Team",
    "TensorParallelModel",
    "linear_cuts",
    "make_team",
    "model_cuts",
    "near_even",
    "rollout_layout",
]
