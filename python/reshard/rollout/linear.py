"""The layers of a tensor-parallel copy: each holds its own shard and meets the others in one collective.

    column   x ──► [own rows] ──► own columns of y          lm_head: ──► gathered, widths may differ
    row      own columns of x ──► [own columns] ──► sum over the ranks ──► + bias, once ──► y
    vocabulary   tokens ──► own rows of the embedding, else 0 ──► sum over the ranks ──► y

Widths of zero are legal: such a rank computes empty tensors and takes part in the collectives. Inference only: no
collective here has a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Team:
    """The ranks of one copy: this one's index among `tp`, and their group (None: alone)."""

    index: int
    tp: int
    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the team, the same bits on all of it."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def first_tells(self, tensor: torch.Tensor) -> torch.Tensor:
        """What index 0 holds, on all of the team."""
        if self.group is not None:
            dist.broadcast(tensor, self.ranks[0], group=self.group)
        return tensor

    def joined(self, tensor: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Tensors of different widths in their last axis, side by side."""
        if self.group is None:
            return tensor
        # Collectives want equal shapes.
        padded = tensor.new_zeros((*tensor.shape[:-1], max(widths)))
        padded[..., : widths[self.index]] = tensor
        parts = [torch.empty_like(padded) for _ in widths]
        dist.all_gather(parts, padded, group=self.group)
        by_index = zip(self._by_index(parts), widths, strict=True)
        return torch.cat([part[..., :width] for part, width in by_index], dim=-1)

    def exchange(self, value: Any) -> list[Any]:
        """What each of the team says, by index."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.tp
        dist.all_gather_object(values, value, group=self.group)
        return self._by_index(values)

    def _by_index(self, gathered: list[Any]) -> list[Any]:
        """Collectives order by rank, whatever order a group was made in."""
        order = sorted(self.ranks)
        return [gathered[order.index(rank)] for rank in self.ranks]


class ColumnLinear(nn.Module):
    """Own rows of a linear layer; `gathered`: the whole output on every rank."""

    def __init__(
        self, whole: nn.Linear, team: Team, widths: Sequence[int], *, gathered: bool = False
    ) -> None:
        super().__init__()
        self.team, self.widths, self.gathered = team, tuple(widths), gathered
        self.weight = _empty(self.widths[team.index], whole.in_features)
        self.bias = _empty(self.widths[team.index]) if whole.bias is not None else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.linear(x, self.weight, self.bias)
        return self.team.joined(y, self.widths) if self.gathered else y


class RowLinear(nn.Module):
    """Own columns of a linear layer, and all of its bias."""

    def __init__(self, whole: nn.Linear, team: Team, widths: Sequence[int]) -> None:
        super().__init__()
        self.team = team
        self.weight = _empty(whole.out_features, tuple(widths)[team.index])
        self.bias = _empty(whole.out_features) if whole.bias is not None else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.team.sum(functional.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class VocabularyEmbedding(nn.Module):
    """Own rows of an embedding."""

    def __init__(self, whole: nn.Embedding, team: Team, widths: Sequence[int]) -> None:
        super().__init__()
        self.team, self.width = team, tuple(widths)[team.index]
        self.first = sum(tuple(widths)[: team.index])
        self.weight = _empty(self.width, whole.embedding_dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        local = tokens - self.first
        is_own = (local >= 0) & (local < self.width)
        if not self.width:
            return self.team.sum(self.weight.new_zeros((*tokens.shape, self.weight.shape[1])))
        rows = functional.embedding(local.clamp(0, self.width - 1), self.weight)
        return self.team.sum(rows.masked_fill(~is_own.unsqueeze(-1), 0))


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)
