"""Describing a live engine of Qwen3-8B's 399 parameters on 8 ranks: the median of five, the slowest rank.

    PYTHONPATH=tests:tests/deepspeed python benches/describe.py

The model is thin: only names and shapes cost. Ranks share this machine's cores, so both times are told: elapsed, from a
barrier on, and the processor time of a rank, which is what it would take on a core of its own.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch.distributed
from engines import Case, make_engine
from ranks import run_ranks

import reshard.deepspeed

RANKS = 8
THIN = Case(model="qwen3", layers=36, bias=False, tp=2)


def seconds(rank: int, case: Case) -> tuple[int, float, float]:
    engine = make_engine(case)
    elapsed, spent = [], []
    for _ in range(5):
        torch.distributed.barrier()
        begin = time.perf_counter(), time.process_time()
        layout = reshard.deepspeed.parameter_layout(engine)
        elapsed.append(time.perf_counter() - begin[0])
        spent.append(time.process_time() - begin[1])
    return len(layout.parameters), statistics.median(elapsed), statistics.median(spent)


def main() -> None:
    for stage in (0, 1, 3):
        found: list[Any] = run_ranks(RANKS, seconds, THIN.but(stage=stage))
        parameters, elapsed, spent = (max(column) for column in zip(*found, strict=True))
        print(
            f"stage {stage}: {parameters} parameters on {RANKS} ranks, "
            f"elapsed {elapsed * 1e3:.0f} ms, processor time {spent * 1e3:.0f} ms a rank"
        )


if __name__ == "__main__":
    main()
