"""Real DeepSpeed engines into copies of another tensor-parallel size, bit for bit, before and after a training step."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import pytest
from engines import Case
from ranks import run_ranks
from stories import Seen, Story, tell

from reshard.rollout import Placement

ZERO = [(1, None), (2, None), (3, None), (3, "world"), (3, "dp")]
SEEDS = [
    Story(Case(model=model, tp=2, stage=stage, dtype=dtype, init=init), Placement(4))
    for model, dtype, (stage, init) in product(("small", "qwen3"), ("bf16", "fp32"), ZERO)
]
SMALL = [story for story in SEEDS if story.case.model == "small"]
QWEN3 = [story for story in SEEDS if story.case.model == "qwen3"]

FROZEN = ("norm.weight", "up.bias", "down.weight")
SHAPES = [
    Story(Case(model="qwen3", tp=1, stage=1), Placement(4)),
    Story(Case(model="qwen3", tp=1, stage=3), Placement(4)),
    Story(Case(model="qwen3", tp=4, stage=1), Placement(2, copies=2)),
    Story(Case(model="qwen3", tp=4, stage=3, kv_heads=4), Placement(2)),
    Story(Case(model="qwen3", tp=2, stage=2), Placement(2, copies=2, ranks=(3, 0, 1, 2))),
    Story(Case(model="qwen3", tp=2, stage=1, tied=True), Placement(4)),
    Story(
        Case(model="qwen3", tp=2, stage=3, tied=True, persistence_elements=0), Placement(3, ranks=(3, 1, 0))
    ),
    Story(Case(model="small", tp=2, stage=3, two_groups=True, sub_group_elements=40), Placement(4)),
    Story(Case(model="qwen3", tp=2, stage=1, bf16_optimizer=True, two_groups=True), Placement(4)),
    Story(Case(model="small", tp=2, stage=3, offload="both"), Placement(4)),
    Story(Case(model="qwen3", tp=2, stage=1, offload="optimizer"), Placement(4)),
    Story(Case(model="qwen3", tp=2, stage=2, offload="optimizer", two_groups=True), Placement(4)),
    Story(Case(model="qwen3", tp=2, stage=3, offload="both", sub_group_elements=300), Placement(4)),
    Story(Case(model="small", tp=2, stage=1, frozen=FROZEN), Placement(4)),
    Story(Case(model="small", tp=2, stage=3, frozen=FROZEN, persistence_elements=20), Placement(4)),
    Story(Case(model="small", tp=2, stage=2, bf16_optimizer=True, frozen=FROZEN), Placement(4)),
    Story(Case(model="qwen3", tp=2, stage=2, round_robin=True, alignment=True), Placement(4)),
]
SIX = [
    Story(Case(model="qwen3", tp=2, stage=1), Placement(4, ranks=(5, 4, 1, 0))),
    Story(Case(model="qwen3", tp=2, stage=3), Placement(3, copies=2)),
    Story(Case(model="qwen3", tp=3, stage=2, kv_heads=4), Placement(4)),
    Story(Case(model="small", tp=3, stage=3), Placement(2, copies=3)),
]


@lru_cache(maxsize=1)
def told(world: int, name: str) -> list[list[Seen]]:
    """What each rank saw of each story of a group: the ranks are forked once for all of them."""
    return run_ranks(
        world, tell, {"small": SMALL, "qwen3": QWEN3, "shapes": SHAPES, "six": SIX}[name], timeout=300
    )


def check(story: Story, seen: list[Seen]) -> None:
    assert [one.before for one in seen] == [[]] * len(seen)
    assert [one.after for one in seen] == [[]] * len(seen)
    assert [one.moved for one in seen] == [[]] * len(seen)
    assert all(one.born_as_nan and one.versions == [0, 5] and one.plans_made == 1 for one in seen)
    for rank, one in enumerate(seen):
        # A step that changed nothing would make the second comparison the first again.
        assert bool(one.trained) == (rank in story.placement.ranks)


@pytest.mark.parametrize("number", range(len(SMALL)), ids=lambda number: str(SMALL[number]))
def test_the_small_module(number: int) -> None:
    seen = [rank[number] for rank in told(4, "small")]
    check(SMALL[number], seen)
    # Rows 5, 5, 4, 4 of `up` (7 wide, and a bias), the same columns of `down`, and the whole of 7 + 7 + 7.
    size = 2 if SMALL[number].case.dtype == "bf16" else 4
    assert [one.bytes_held for one in seen] == [size * (width * (7 + 1 + 7) + 21) for width in (5, 5, 4, 4)]


@pytest.mark.parametrize("number", range(len(SMALL)), ids=lambda number: str(SMALL[number]))
def test_swapped_storage_is_seen(number: int) -> None:
    for rank in told(4, "small"):
        # Plain zero.Init cuts what AutoTP leaves alone over the whole world: there the norms are swapped too.
        norms = ["norm.bias", "norm.weight"] if SMALL[number].case.init == "world" else []
        assert rank[number].swapped == sorted(["down.weight", "up.bias", "up.weight", *norms])


@pytest.mark.parametrize("number", range(len(QWEN3)), ids=lambda number: str(QWEN3[number]))
def test_a_qwen3_with_biases(number: int) -> None:
    check(QWEN3[number], [rank[number] for rank in told(4, "qwen3")])


@pytest.mark.parametrize("number", range(len(SHAPES)), ids=lambda number: str(SHAPES[number]))
def test_other_worlds_of_four(number: int) -> None:
    check(SHAPES[number], [rank[number] for rank in told(4, "shapes")])


@pytest.mark.parametrize("number", range(len(SIX)), ids=lambda number: str(SIX[number]))
def test_worlds_of_six(number: int) -> None:
    check(SIX[number], [rank[number] for rank in told(6, "six")])
