"""Tensor-parallel ranks that were seeded differently: their replicas are named on every rank, and nothing is moved."""

from __future__ import annotations

from functools import lru_cache

import pytest
from engines import Case
from ranks import run_ranks
from stories import Drift, drift

CASES = [Case(model=model, tp=2, stage=stage) for model in ("small", "qwen3") for stage in (1, 2, 3)]
WHOLE = {"small": "down.bias", "qwen3": "model.embed_tokens.weight"}


@lru_cache(maxsize=1)
def told() -> list[list[Drift | None]]:
    return run_ranks(4, drift, CASES)


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda number: f"{CASES[number].model}-{CASES[number].stage}"
)
def test_the_drifted_replica_is_named_on_every_rank(number: int) -> None:
    for rank in told():
        seen = rank[number]
        assert seen is not None
        assert seen.parameters == (WHOLE[CASES[number].model],)
        assert (seen.state, seen.is_untouched) == ("new", True)
        # Below stage 3 ranks 0 and 2 are replicas of the same trainer shard; at stage 3 each pair shares a partition.
        assert seen.camps in [((0, 2), (1, 3)), ((0,), (1,))]
        assert len(seen.camps[0]) == (1 if CASES[number].stage == 3 else 2)
