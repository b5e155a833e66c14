"""Target layouts against regions worked by hand, and every element of them against the others."""

from __future__ import annotations

from math import prod

import pytest
import tiny

from reshard import UsageError
from reshard.rollout import Placement, linear_cuts, model_cuts, near_even, rollout_layout


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_every_parameter_of_a_model_is_cut_as_worked_by_hand(kind: str, tied: bool, tp: int) -> None:
    config = tiny.config(kind, tied=tied)
    layout = rollout_layout(config, Placement(tp))
    whole = dict(tiny.model(config).named_parameters())
    assert {parameter.name for parameter in layout.parameters} == set(whole)
    sizes = {(storage.rank, storage.name): storage.bytes for storage in layout.storages}
    assert len(sizes) == tp * len(whole)
    for name, tensor in whole.items():
        cut = tiny.cut_of(name, tp, tied)
        pieces = {piece.rank: piece for piece in layout.pieces(name)}
        for rank in range(tp):
            shape, origin = list(tensor.shape), [0] * tensor.dim()
            if cut is not None:
                axis, widths = cut
                shape[axis], origin[axis] = widths[rank], sum(widths[:rank])
            assert sizes[rank, name] == 4 * prod(shape), (name, rank)
            if prod(shape):
                piece = pieces.pop(rank)
                assert (list(piece.origin), list(piece.shape), piece.offset) == (origin, shape, 0), (
                    name,
                    rank,
                )
        assert not pieces, name


def test_a_tied_head_is_a_second_name() -> None:
    assert rollout_layout(tiny.config(tied=True), Placement(2)).aliases == {
        "lm_head.weight": "model.embed_tokens.weight"
    }


def test_copies_lie_on_the_ranks_that_were_named() -> None:
    layout = rollout_layout(tiny.config(), Placement(2, copies=2, ranks=(7, 3, 2, 5)))
    head = {piece.rank: (piece.origin[0], piece.shape[0]) for piece in layout.pieces("lm_head.weight")}
    assert head == {7: (0, 17), 3: (17, 16), 2: (0, 17), 5: (17, 16)}
    assert Placement(2, copies=2, ranks=(7, 3, 2, 5)).slot(5) == (1, 1)
    assert Placement(2, copies=2, ranks=(7, 3, 2, 5)).slot(4) is None


def test_a_copy_may_have_a_type_of_its_own() -> None:
    layout = rollout_layout(tiny.config(), Placement(2), "bf16")
    assert {parameter.dtype for parameter in layout.parameters} == {"bf16"}
    assert {parameter.dtype for parameter in rollout_layout(tiny.config(), Placement(2)).parameters} == {
        "f32"
    }


def test_a_configuration_may_come_as_text_or_dictionary() -> None:
    config = tiny.config()
    expected = rollout_layout(config, Placement(2))
    assert rollout_layout(config.to_json_string(use_diff=False), Placement(2)) == expected
    assert rollout_layout({**config.to_dict(), "dtype": "float32"}, Placement(2)) == expected


SHAPES = {
    "norm.weight": (7,),
    "up.weight": (18, 7),
    "up.bias": (18,),
    "down.weight": (7, 18),
    "down.bias": (7,),
}


def test_linears_are_cut_by_hand() -> None:
    widths = near_even(18, 4)
    assert widths == [5, 5, 4, 4]
    cuts = {"up.weight": (0, widths), "up.bias": (0, widths), "down.weight": (1, widths), "down.bias": None}
    layout = linear_cuts(SHAPES, cuts, 4, "bf16").layout(Placement(4))
    rows = [(piece.origin, piece.shape) for piece in layout.pieces("up.weight")]
    assert rows == [((0, 0), (5, 7)), ((5, 0), (5, 7)), ((10, 0), (4, 7)), ((14, 0), (4, 7))]
    columns = [(piece.origin, piece.shape, piece.strides) for piece in layout.pieces("down.weight")]
    assert columns[2] == ((0, 10), (7, 4), (4, 1))
    assert [piece.shape for piece in layout.pieces("down.bias")] == [(7,)] * 4
    assert [piece.shape for piece in layout.pieces("norm.weight")] == [(7,)] * 4


def test_a_width_of_zero_is_a_storage_without_bytes() -> None:
    layout = linear_cuts(SHAPES, {"up.weight": (0, [9, 0, 9])}, 3, "f32").layout(Placement(3))
    assert {piece.rank for piece in layout.pieces("up.weight")} == {0, 2}
    assert [storage.bytes for storage in layout.storages if storage.name == "up.weight"] == [252, 0, 252]


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ({"up.wieght": None}, "no such parameter"),
        ({"up.weight": (2, [9, 9])}, "axis 2"),
        ({"up.weight": (0, [9, 8])}, "sum to 18"),
        ({"up.weight": (0, [18])}, "2 widths"),
        ({"up.weight": (0, [19, -1])}, "sum to 18"),
    ],
)
def test_wrong_cuts_are_refused_by_name(cuts: dict[str, tuple[int, list[int]] | None], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        linear_cuts(SHAPES, cuts, 2, "f32")
    assert caught.value.parameter == next(iter(cuts))


@pytest.mark.parametrize("ranks", [(0, 1, 2), (0, 1, 2, 2), (0, 1, 2, -1)])
def test_a_placement_needs_distinct_ranks(ranks: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="4 distinct ranks"):
        Placement(2, copies=2, ranks=ranks)


def test_cuts_of_another_tensor_parallel_size_are_refused() -> None:
    with pytest.raises(UsageError, match="cut over 2 ranks, the copies have 4"):
        model_cuts(tiny.config(), 2).layout(Placement(4))
