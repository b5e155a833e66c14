"""What describing an engine costs its peers: one all-gather in the tensor-parallel group. Time: benches/describe.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from engines import Case, make_engine
from ranks import run_ranks

import reshard.deepspeed

COLLECTIVES = [
    name
    for name in vars(torch.distributed)
    if name.startswith(
        ("all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "scatter", "reduce", "barrier")
    )
    and callable(getattr(torch.distributed, name))
]


def _counted(rank: int, case: Case) -> list[Any]:
    """Which collectives a description calls, in which group; nested calls are part of the outer one."""
    engine = make_engine(case)
    called: list[Any] = []
    depth = [0]

    def counting(name: str, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if depth[0] == 0:
                group = keywords.get("group")
                called.append((name, tuple(torch.distributed.get_process_group_ranks(group))))
            depth[0] += 1
            try:
                return function(*arguments, **keywords)
            finally:
                depth[0] -= 1

        return call

    for name in COLLECTIVES:
        setattr(torch.distributed, name, counting(name, getattr(torch.distributed, name)))
    reshard.deepspeed.parameter_layout(engine)
    first = list(called)
    reshard.deepspeed.optimizer_layout(engine, "fp32")
    second = called[len(first) :]
    with reshard.deepspeed.released(engine):
        reshard.deepspeed.parameter_shards(engine).check()
        reshard.deepspeed.optimizer_shards(engine, "fp32").check()
    return [first, second, called[len(first) + len(second) :]]


@pytest.mark.parametrize("case", [Case(), Case(stage=3, init="world")], ids=["stage 1", "stage 3"])
def test_one_all_gather_over_the_tensor_parallel_group(case: Case) -> None:
    for rank, (weights, masters, shards) in enumerate(run_ranks(4, _counted, case)):
        group = (0, 1) if rank < 2 else (2, 3)
        assert weights == masters == [("all_gather_object", group)]
        assert shards == []


def test_none_without_tensor_parallelism() -> None:
    assert run_ranks(2, _counted, Case(tp=1)) == [[[], [], []]] * 2
