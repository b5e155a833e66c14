"""Against DeepSpeed's own planner: the same element from the same rank, whatever the copies look like.

Layouts are made by DeepSpeed's own builders; the two plans are compared element by element, by enumeration.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from deepspeed.checkpoint.affine import (
    ParamAffineMap,
    block_gather_map,
    contiguous_split_map,
    replicated_map,
    segmented_map,
    sub_param_map,
)
from deepspeed.checkpoint.affine_transfer import (
    AffineTransferError,
    InvalidMapError,
    TransferSegment,
    UnsupportedLayoutError,
    plan_transfer,
)

import reshard

RANDOM_PAIRS = 400


def widths(chance: random.Random, total: int, ranks: int) -> list[int]:
    """Widths that sum to `total`; zero is legal."""
    cuts = sorted(chance.randint(0, total) for _ in range(ranks - 1))
    return [end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True)]


def any_map(chance: random.Random, shape: tuple[int, ...]) -> ParamAffineMap:
    ranks = chance.randint(1, 4)
    axis = chance.randrange(len(shape))
    extent = shape[axis]
    kind = chance.choice(["split", "replicated", "parts", "segments", "blocks"])
    if kind == "replicated":
        return replicated_map(shape, ranks)
    if kind == "split":
        return contiguous_split_map(shape, widths(chance, extent, ranks), axis)
    sizes = [size for size in widths(chance, extent, chance.randint(1, 3)) if size]
    if kind == "parts":
        return sub_param_map(shape, sizes, [widths(chance, size, ranks) for size in sizes], axis)
    if kind == "segments":
        segments = [(size, chance.random() < 0.4) for size in sizes]
        split = [widths(chance, size, ranks) for size, whole in segments if not whole]
        return segmented_map(shape, segments, axis, ranks, split)
    block = chance.choice([size for size in range(1, extent + 1) if extent % size == 0])
    owners: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    for number in chance.sample(range(extent // block), extent // block):
        owners[chance.randrange(ranks)].append(number)
    return block_gather_map(shape, owners, block, axis)


def shapes(chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.randint(1, 9) for _ in range(chance.randint(1, 3)))


def elements(segment: dict[str, Any]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(target rank, address) and (source rank, address) of every element of a segment."""
    (source_rank, source, source_strides), (target_rank, target, target_strides) = (
        segment["source"],
        segment["target"],
    )

    def walk(axis: int, source: int, target: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if axis == len(segment["shape"]):
            yield (target_rank, target), (source_rank, source)
            return
        for index in range(segment["shape"][axis]):
            yield from walk(
                axis + 1, source + index * source_strides[axis], target + index * target_strides[axis]
            )

    yield from walk(0, source, target)


def moves(plan: dict[str, Any]) -> dict[tuple[int, int], tuple[int, int]]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for segment in plan["segments"]:
        for target, source in elements(segment):
            assert target not in found, f"{target} is written twice"
            found[target] = source
    return found


def ours(source: Any, target: Any, policy: Any = "lowest") -> dict[str, Any]:
    layouts = [reshard.Layout.from_affine_maps({"w": side}, "f32") for side in (source, target)]
    plan = reshard.plan(*layouts, policy)
    reshard.verify(plan, *layouts)
    return plan.to_transfer_plans()["w"]


@pytest.mark.parametrize("seed", range(10))
def test_random_layouts_take_each_element_from_the_same_place(seed: int) -> None:
    chance = random.Random(seed)
    planned = 0
    for _ in range(RANDOM_PAIRS // 10):
        shape = shapes(chance)
        source, target = any_map(chance, shape), any_map(chance, shape)
        try:
            theirs = plan_transfer(target, source)
        except UnsupportedLayoutError:
            # Replicas cut at different places: we refine, and must still be right, which `ours` proves.
            ours(source, target)
            continue
        planned += 1
        assert moves(ours(source, target)) == moves(theirs.to_dict()), (source.to_dict(), target.to_dict())
    assert planned >= RANDOM_PAIRS // 20


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_function_is_asked_alike(seed: int) -> None:
    """Their selector is asked only where there is a choice; the answers and the moves must agree."""
    chance = random.Random(1000 + seed)
    for _ in range(30):
        shape = shapes(chance)
        source, target = any_map(chance, shape), any_map(chance, shape)

        def highest(request: Any) -> int:
            return max(candidate[0] for candidate in request.candidates)

        try:
            theirs = plan_transfer(
                target,
                source,
                replica_selector=lambda request: max(c.source_rank for c in request.candidates),
            )
        except UnsupportedLayoutError:
            continue
        found = ours(source, target, lambda request: max(request.candidates))
        assert moves(found) == moves(theirs.to_dict())


def test_segments_are_theirs_to_read() -> None:
    source = contiguous_split_map((18, 4), [9, 9], 0)
    target = contiguous_split_map((18, 4), [5, 5, 4, 4], 0)
    plan = ours(source, target)
    assert plan["logical_shape"] == [18, 4]
    mine = sorted(str(TransferSegment.from_dict(segment).to_dict()) for segment in plan["segments"])
    assert len(mine) == 5
    expected = {(0, 0, 0, 0), (0, 20, 1, 0), (1, 0, 1, 16), (1, 4, 2, 0), (1, 20, 3, 0)}
    read = [TransferSegment.from_dict(segment) for segment in plan["segments"]]
    assert {(s.source_rank, s.source_offset, s.target_rank, s.target_offset) for s in read} == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: contiguous_split_map((4, 4), [3, 2], 0),
        lambda: contiguous_split_map((4, 4), [2, 1], 0),
        lambda: ParamAffineMap.from_dict(
            {
                "logical_shape": [4],
                "ranks": {0: {"shard_shape": [4], "pieces": []}},
            }
        ),
    ],
    ids=["too wide", "hole", "no pieces"],
)
def test_what_they_call_invalid_is_invalid(make: Any) -> None:
    wrong = make()
    whole = replicated_map(wrong.logical_shape, 1)
    with pytest.raises(InvalidMapError):
        plan_transfer(whole, wrong)
    with pytest.raises(reshard.LayoutError) as caught:
        ours(wrong, whole)
    assert caught.value.kind == "invalid"
    assert caught.value.parameter == "w"


def test_other_shapes_are_invalid() -> None:
    source, target = replicated_map((4, 4), 1), replicated_map((2, 8), 1)
    with pytest.raises(InvalidMapError):
        plan_transfer(target, source)
    with pytest.raises(reshard.PlanError, match="w: the source has shape") as caught:
        ours(source, target)
    assert (caught.value.kind, caught.value.expected, caught.value.found) == ("invalid", (2, 8), (4, 4))


def test_a_wrong_answer_is_refused() -> None:
    whole = replicated_map((4, 4), 2)
    for answer in (999, True, 1.5, None, -1):
        with pytest.raises(AffineTransferError):
            plan_transfer(whole, whole, replica_selector=lambda request, answer=answer: answer)
        with pytest.raises(reshard.ReshardError, match="w"):
            ours(whole, whole, lambda request, answer=answer: answer)


def test_maps_come_back_as_they_went_in() -> None:
    chance = random.Random(7)
    for _ in range(100):
        shape = shapes(chance)
        given = any_map(chance, shape)
        layout = reshard.Layout.from_affine_maps({"w": given}, "bf16")
        written = ParamAffineMap.from_dict(layout.to_affine_maps()["w"])
        written.validate_coverage()
        again = reshard.Layout.from_affine_maps({"w": written}, "bf16")
        same = reshard.plan(layout, again, "local").statistics
        # Every rank finds all that it wants on itself: the two say the same of each rank.
        assert same.bytes_sent == 0
        assert same.bytes_local == sum(piece_bytes(piece) for piece in layout.pieces())


def piece_bytes(piece: reshard.Piece) -> int:
    count = 2
    for extent in piece.shape:
        count *= extent
    return count
