"""A matrix that is cut into rows at the source and into columns, or other rows, at the target.

source: rank r holds rows          target "columns": a block of each source to each target, strided: staged
0  1  2  3   rank 0                target "shifted": the rows of the next rank, contiguous: direct
4  5  6  7   rank 1
"""

from __future__ import annotations

import torch

import reshard

COLUMNS = 8


def matrix_plan(world: int, target: str = "columns", rows: int = 12) -> reshard.Plan:
    """A plan of one f32 parameter, `rows` x (8 · world)."""
    width = COLUMNS * world
    layouts = {}
    for side in ("source", target):
        builder = reshard.LayoutBuilder()
        matrix = builder.parameter("matrix", [rows * world, width], "f32")
        for rank in range(world):
            buffer = builder.tensor(rank, "shard", "f32", rows * width)
            if side == "columns":
                builder.place(matrix, buffer, origin=[0, COLUMNS * rank], shape=[rows * world, COLUMNS])
            else:
                begin = rows * (rank if side == "source" else (rank + 1) % world)
                builder.place(matrix, buffer, origin=[begin, 0], shape=[rows, width])
        layouts[side] = builder.build()
    return reshard.plan(layouts["source"], layouts[target])


def whole(world: int, version: int = 0, rows: int = 12) -> torch.Tensor:
    """The matrix: every element is its flat index, and a half for every version."""
    width = COLUMNS * world
    return torch.arange(rows * world * width, dtype=torch.float32).reshape(rows * world, width) + version / 2


def source_shard(rank: int, world: int, version: int = 0, rows: int = 12) -> torch.Tensor:
    return whole(world, version, rows)[rows * rank : rows * (rank + 1)].clone()


def target_shard(
    rank: int, world: int, target: str = "columns", version: int = 0, rows: int = 12
) -> torch.Tensor:
    """What the target of a rank must hold."""
    matrix = whole(world, version, rows)
    if target == "columns":
        return matrix[:, COLUMNS * rank : COLUMNS * (rank + 1)].contiguous()
    begin = rows * ((rank + 1) % world)
    return matrix[begin : begin + rows].clone()


def born(rank: int, world: int, target: str = "columns", rows: int = 12) -> torch.Tensor:
    """A target that nobody wrote."""
    return torch.full_like(target_shard(rank, world, target, 0, rows), float("nan"))
