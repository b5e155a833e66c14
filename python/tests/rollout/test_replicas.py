"""Replicas compared: every single bit is seen, whatever the strides; the ranks are named, on every rank."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from ranks import run_ranks

from reshard import Layout, LayoutBuilder, ReshardError
from reshard.torch.replicas import ReplicaCheck, ReplicaError, check_replicas, hash_box, replicated_regions


def layout_of(placed: dict[str, Any]) -> Layout:
    """`placed`: name -> (shape, [(rank, row origin, rows)])."""
    builder = LayoutBuilder()
    for name, (shape, holders) in placed.items():
        number = builder.parameter(name, shape, "f32")
        for rank, first, rows in holders:
            buffer = builder.tensor(rank, name, "f32", rows * shape[1])
            builder.place(number, buffer, origin=(first, 0), shape=(rows, shape[1]))
    return builder.build()


PLACED = {
    "norm": ((2, 3), [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 2)]),
    "up": ((6, 3), [(0, 0, 3), (1, 3, 3), (2, 0, 3), (3, 3, 3)]),
    "alone": ((4, 3), [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1)]),
    "uneven": ((6, 3), [(0, 0, 6), (1, 0, 2), (2, 2, 4), (3, 1, 3)]),
}


def values(name: str, rank: int) -> torch.Tensor:
    """The rows that a rank holds: each element is its own position in the parameter."""
    (rows, width), holders = PLACED[name]
    whole = torch.arange(rows * width, dtype=torch.float32).view(rows, width)
    return next(whole[first : first + count].clone() for one, first, count in holders if one == rank)


def test_regions_are_all_that_several_ranks_hold() -> None:
    counts: dict[tuple[str, int], set[tuple[int, ...]]] = {}
    layout = layout_of(PLACED)
    for region in replicated_regions(layout):
        for row in range(region.origin[0], region.origin[0] + region.shape[0]):
            assert region.origin[1] == 0 and region.shape[1] == 3
            counts.setdefault((region.parameter, row), set()).add(region.ranks)
    expected = {}
    for name, ((rows, _), holders) in PLACED.items():
        for row in range(rows):
            ranks = tuple(rank for rank, first, count in holders if first <= row < first + count)
            if len(ranks) > 1:
                expected[name, row] = {ranks}
    assert counts == expected


def _run(rank: int, changes: list[tuple[int, str, int]]) -> Any:
    """What the check says on this rank, with an element's lowest bit flipped on some ranks."""
    layout = layout_of(PLACED)
    shards = {name: values(name, rank) for name in PLACED}
    for at, name, element in changes:
        if at == rank:
            shards[name].view(torch.int32).view(-1)[element] ^= 1
    try:
        check_replicas(layout, shards)
    except ReplicaError as error:
        return [str(difference) for difference in error.differences], error.parameter, error.rank, str(error)
    return None


def test_equal_replicas_pass() -> None:
    assert run_ranks(4, _run, []) == [None] * 4


def test_parameters_that_no_one_shares_may_hold_anything() -> None:
    assert run_ranks(4, _run, [(1, "alone", 2)]) == [None] * 4


@pytest.mark.parametrize(
    ("changes", "differences", "parameter", "rank"),
    [
        ([(2, "norm", 4)], ["norm[0:2, 0:3] on ranks 0, 1, 3 | 2"], "norm", 2),
        ([(1, "norm", 0), (3, "norm", 0)], ["norm[0:2, 0:3] on ranks 0, 2 | 1, 3"], "norm", 1),
        ([(0, "up", 8)], ["up[0:3, 0:3] on ranks 0 | 2"], "up", 2),
        ([(3, "uneven", 3)], ["uneven[2:4, 0:3] on ranks 0, 2 | 3"], "uneven", 3),
        (
            [(3, "up", 0), (1, "uneven", 0)],
            ["up[3:6, 0:3] on ranks 1 | 3", "uneven[0:1, 0:3] on ranks 0 | 1"],
            "up",
            3,
        ),
    ],
)
def test_a_flipped_bit_is_named_on_every_rank(
    changes: list[tuple[int, str, int]], differences: list[str], parameter: str, rank: int
) -> None:
    for found in run_ranks(4, _run, changes):
        assert found[:3] == (differences, parameter, rank)
        assert all(difference in found[3] for difference in differences)


def _short(rank: int) -> str:
    check = ReplicaCheck(layout_of(PLACED))
    shards = {name: values(name, rank) for name in PLACED}
    if rank == 2:
        del shards["up"]
    with pytest.raises(ReshardError, match="rank 2 could not hash its replicas: KeyError: 'up'") as caught:
        check.run(shards)
    shards["up"] = values("up", rank)
    check.run(shards)
    return type(caught.value).__name__


def test_a_rank_that_lacks_a_shard_is_named_and_the_check_goes_on_working() -> None:
    assert run_ranks(4, _short) == ["ReshardError"] * 4


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_every_single_bit_changes_the_hash(dtype: torch.dtype) -> None:
    box = torch.arange(15, dtype=dtype).view(3, 5)
    seen = {hash_box(box)}
    bits = 8 * dtype.itemsize
    for element in range(15):
        for bit in range(bits):
            changed = box.clone()
            flat = changed.view(torch.uint8).view(-1)
            flat[element * dtype.itemsize + bit // 8] ^= 1 << (bit % 8)
            seen.add(hash_box(changed))
    assert len(seen) == 1 + 15 * bits


def test_signs_that_flip_in_two_places_do_not_cancel() -> None:
    box = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).view(torch.int64)
    seen = {hash_box(box)}
    for one in range(64):
        for other in range(one):
            changed = box.clone()
            changed[one] ^= -(1 << 63)
            changed[other] ^= -(1 << 63)
            seen.add(hash_box(changed))
    assert len(seen) == 1 + 64 * 63 // 2


def test_the_hash_is_of_values_in_order_whatever_the_strides() -> None:
    box = torch.randint(0, 1 << 15, (7, 6), dtype=torch.int16, generator=torch.Generator().manual_seed(1))
    transposed = box.t().contiguous().t()
    padded = torch.zeros((7, 9), dtype=torch.int16)
    padded[:, 1:7] = box
    assert hash_box(transposed) == hash_box(padded[:, 1:7]) == hash_box(box)
    assert hash_box(box) != hash_box(box.flip(0)) != hash_box(box.t())
    order = list(range(7))
    random.Random(0).shuffle(order)
    assert hash_box(box) != hash_box(box[order])
    assert hash_box(torch.tensor(3, dtype=torch.int16)) != hash_box(torch.tensor(4, dtype=torch.int16))


def test_large_boxes_are_hashed_slab_by_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshard.torch.replicas._SLAB_WORDS", 4)
    box = torch.randint(0, 255, (3, 5, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    seen = {hash_box(box)}
    for element in range(750):
        changed = box.clone()
        changed.view(-1)[element] ^= 4
        seen.add(hash_box(changed))
    assert len(seen) == 751
