"""What each rank of a copy must hold: slices of DeepSpeed's own full weights, cut by rules written down here.

    18 rows over 4 ranks: 5, 5, 4, 4      4 query and 2 key-value heads over 4 ranks: 2, 2, 0, 0 and 1, 1, 0, 0

Nothing here is asked of the code under test.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from engines import Case, consolidated

COLUMN, ROW = 0, 1
_AXES = {
    "up": COLUMN, "down": ROW,
    "q_proj": COLUMN, "k_proj": COLUMN, "v_proj": COLUMN, "o_proj": ROW,
    "gate_proj": COLUMN, "up_proj": COLUMN, "down_proj": ROW, "lm_head": COLUMN,
}  # fmt: skip
_BY_HEADS = ("q_proj", "k_proj", "v_proj", "o_proj")


def cut(case: Case, name: str, shape: torch.Size, tp: int) -> tuple[int, list[int]] | None:
    """The axis and the widths of a parameter over `tp` ranks, None if it is whole on each."""
    *_, layer, kind = name.split(".")
    axis = _AXES.get(layer)
    if layer == "embed_tokens" and case.tied:
        axis = COLUMN
    if axis is None or (axis == ROW and kind == "bias"):
        return None
    units = case.kv_heads if layer in _BY_HEADS else shape[axis]
    each = shape[axis] // units
    return axis, [each * (units // tp + (rank < units % tp)) for rank in range(tp)]


def truth(engine: Any) -> dict[str, torch.Tensor]:
    """DeepSpeed's full weights, on every rank. Collective."""
    told = [consolidated(engine)]
    dist.broadcast_object_list(told, 0)
    assert told[0]
    return told[0]


def expected(case: Case, full: dict[str, torch.Tensor], tp: int, index: int) -> dict[str, torch.Tensor]:
    """The shards of tensor-parallel rank `index` of a copy."""
    shards = {}
    for name, tensor in full.items():
        where = cut(case, name, tensor.shape, tp)
        if where is None:
            shards[name] = tensor
        else:
            axis, widths = where
            shards[name] = tensor.narrow(axis, sum(widths[:index]), widths[index])
    return shards


def differing(held: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> list[str]:
    """Names of tensors that are not there, not wanted, or not the same bits."""
    names = held.keys() | wanted.keys()
    return sorted(name for name in names if not _is_same(held.get(name), wanted.get(name)))


def _is_same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    left, right = (tensor.detach().contiguous().view(torch.uint8) for tensor in (one, other))
    return torch.equal(left, right)
