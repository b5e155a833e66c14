"""The tensor-parallel copy against the whole model of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from ranks import run_ranks

from reshard import UsageError
from reshard.rollout import Generator, Placement, Sampling, TensorParallelModel, make_team


def loaded(whole: Any, tp: int, copies: int = 1, dtype: str | None = None) -> TensorParallelModel | None:
    """A copy with the shards of a whole model in it, sliced by hand."""
    team = make_team(Placement(tp, copies))
    if team is None:
        return None
    copy = TensorParallelModel(whole.config, team, dtype=dtype)
    addresses = {name: tensor.data_ptr() for name, tensor in copy.tensors().items()}
    assert all(bool(tensor.isnan().all()) for tensor in copy.tensors().values())
    for name, tensor in whole.named_parameters():
        shard = tiny.shard_of(name, tensor, tp, team.index, whole.config.tie_word_embeddings)
        assert copy.tensors()[name].shape == shard.shape, name
        copy.tensors()[name].copy_(shard)
    assert addresses == {name: tensor.data_ptr() for name, tensor in copy.tensors().items()}
    return copy


CASES = [
    ("qwen3", {"bias": True, "tied": False}),
    ("qwen3", {"bias": True, "tied": True}),
    ("llama", {"bias": True, "tied": False}),
    ("llama", {"bias": False, "tied": True}),
]


def _logits_of_all(rank: int, tp: int) -> list[tuple[float, float]]:
    found = []
    ids, mask = tiny.tokens()
    for kind, options in CASES:
        whole = tiny.model(tiny.config(kind, **options))
        copy = loaded(whole, tp)
        if copy is None:
            continue
        with torch.no_grad():
            expected = whole(input_ids=ids, attention_mask=mask).logits
            logits = copy.module(input_ids=ids, attention_mask=mask).logits
        seen = mask.bool()
        found.append((float((logits - expected)[seen].abs().max()), float(expected[seen].abs().max())))
    return found


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_logits_are_those_of_the_whole_model(tp: int) -> None:
    for rank, cases in enumerate(run_ranks(4, _logits_of_all, tp)):
        assert len(cases) == (len(CASES) if rank < tp else 0)
        for difference, scale in cases:
            assert scale > 0.5
            assert difference < 1e-5 * max(1.0, scale)


def _bf16(rank: int) -> tuple[float, float, set[str]]:
    whole = tiny.model(tiny.config())
    copy = loaded(whole, 2, dtype="bf16")
    assert copy is not None
    ids, mask = tiny.tokens()
    with torch.no_grad():
        expected = whole(input_ids=ids, attention_mask=mask).logits
        difference = (copy.module(input_ids=ids, attention_mask=mask).logits.float() - expected)[mask.bool()]
    types = {str(tensor.dtype) for tensor in copy.tensors().values()}
    return float(difference.abs().max()), float(expected.abs().max()), types


def test_a_copy_may_be_of_another_type() -> None:
    for difference, scale, types in run_ranks(2, _bf16):
        assert types == {"torch.bfloat16"}
        assert difference < 0.05 * scale


def _greedy(rank: int, tp: int, copies: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    whole = tiny.model(tiny.config())
    copy = loaded(whole, tp, copies)
    assert copy is not None
    ids, mask = tiny.tokens()
    result = Generator(copy, end=[], padding=0).generate(ids, mask, Sampling(tokens=9, temperature=0))
    expected = whole.generate(
        ids, attention_mask=mask, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return result.ids, result.mask, expected


@pytest.mark.parametrize(("tp", "copies"), [(4, 1), (2, 2), (3, 1), (1, 2)])
def test_greedy_generation_is_that_of_transformers(tp: int, copies: int) -> None:
    for ids, mask, expected in run_ranks(tp * copies, _greedy, tp, copies):
        assert torch.equal(ids, expected)
        assert mask[:, 7:].all() and torch.equal(mask[:, :7], tiny.tokens()[1])


def _ended(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    copy = loaded(tiny.model(tiny.config()), 2)
    assert copy is not None
    ids, mask = tiny.tokens()
    free = Generator(copy, end=[], padding=0).generate(ids, mask, Sampling(tokens=9, temperature=0))
    # The third token of row 0 is made the one that ends.
    end = int(free.ids[0, 9])
    ended = Generator(copy, end=[end], padding=0).generate(ids, mask, Sampling(tokens=9, temperature=0))
    response, responses = free.ids[:, 7:], ended.ids[:, 7:]
    for row in range(3):
        at = (response[row] == end).nonzero().flatten().tolist()
        length = at[0] + 1 if at else 9
        assert torch.equal(responses[row, :length], response[row, :length])
        assert ended.mask[row, 7:].tolist() == [1] * length + [0] * (responses.shape[1] - length)
        assert not responses[row, length:].any()
    return free.ids, ended.ids


def test_a_row_ends_with_its_token() -> None:
    for free, ended in run_ranks(2, _ended):
        assert 10 <= ended.shape[1] <= free.shape[1]


def _sampled(rank: int) -> list[torch.Tensor]:
    copy = loaded(tiny.model(tiny.config()), 4)
    assert copy is not None
    ids, mask = tiny.tokens()
    # Ranks whose own random states differ must still agree.
    generator = Generator(copy, end=[], padding=0, seed=100 + rank)
    return [
        generator.generate(ids, mask, sampling).ids
        for sampling in (
            Sampling(9, samples=5),
            Sampling(9, top_k=1),
            Sampling(9, top_p=1e-6),
            Sampling(9, temperature=0),
        )
    ]


def test_samples_are_alike_on_all_ranks_and_differ_among_themselves() -> None:
    results = run_ranks(4, _sampled)
    for drawn, *narrow, greedy in results:
        assert drawn.shape == (15, 16)
        assert torch.equal(drawn[:5, :7], tiny.tokens()[0][:1].expand(5, 7))
        assert len({tuple(row) for row in drawn[:5].tolist()}) > 1
        assert all(torch.equal(one, greedy) for one in narrow)
        assert torch.equal(drawn, results[0][0])


def _each(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    copy = loaded(tiny.model(tiny.config()), 4)
    assert copy is not None
    # Ranks 0 and 1 bring one request, 2 and 3 another of another length.
    ids, mask = tiny.tokens(rows=2 + rank // 2, length=5 + rank // 2, seed=rank // 2)
    own = Generator(copy, end=[], padding=0).generate_each(ids, mask, Sampling(4, temperature=0, samples=2))
    alone = tiny.model(tiny.config()).generate(
        ids.repeat_interleave(2, 0), attention_mask=mask.repeat_interleave(2, 0),
        max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert own.start == 5 + rank // 2
    return own.ids, own.mask, alone


def test_ranks_with_requests_of_their_own_get_their_own_answers() -> None:
    for rank, (ids, mask, alone) in enumerate(run_ranks(4, _each)):
        assert torch.equal(ids, alone), rank
        assert mask.shape == ids.shape


def test_a_rank_that_the_world_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 3 is to run a copy, the world has 1 ranks") as caught:
        make_team(Placement(2, ranks=(0, 3)))
    assert caught.value.rank == 3


def test_a_type_that_no_module_computes_in_is_refused_by_name() -> None:
    team = make_team(Placement(1))
    assert team is not None
    with pytest.raises(UsageError, match=r"model.embed_tokens.weight cannot be i64"):
        TensorParallelModel(tiny.config(), team, dtype="i64")


def test_no_token_is_no_request() -> None:
    copy = loaded(tiny.model(tiny.config()), 1)
    assert copy is not None
    with pytest.raises(UsageError, match="at least one token"):
        Generator(copy, end=[], padding=0).generate(*tiny.tokens(), Sampling(tokens=0))
