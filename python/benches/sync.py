"""A sync of Qwen3-0.6B's weights, TP2 x DP2 under ZeRO-3 into one TP4 copy, four processes over gloo: medians.

    PYTHONPATH=tests python benches/sync.py [layers]

Beside it, in the same run: what it cannot beat (the bytes of the busiest rank sent and received by plain isend and
irecv in messages of the same size, and local bytes copied), and the way without a plan (every parameter gathered on
every rank, one after the other). Weights are bf16; the first sync touches fresh memory and is told apart.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks import run_ranks

import reshard
from reshard.rollout import Placement, rollout_layout
from reshard.torch import Synchroniser

WORLD, REPEATS = 4, 5
CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def timed(work: Callable[[], Any]) -> float:
    """Seconds until the slowest rank is done."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - begin


def tensors(layout: reshard.Layout, rank: int) -> dict[str, torch.Tensor]:
    return {one.name: torch.zeros(one.bytes // 2, dtype=torch.bfloat16) for one in layout.storages_of(rank)}


def plain_traffic(rank: int, sent: int, local: int, chunk: int) -> Callable[[], None]:
    """`sent` bytes to the next rank and as many from the last one, and `local` bytes copied."""
    message, arrived = torch.zeros(chunk, dtype=torch.uint8), torch.zeros(chunk, dtype=torch.uint8)
    source, target = torch.zeros(local, dtype=torch.uint8), torch.zeros(local, dtype=torch.uint8)

    def work() -> None:
        target.copy_(source)
        for start in range(0, sent, chunk):
            size = min(chunk, sent - start)
            going = dist.isend(message[:size], (rank + 1) % WORLD)
            dist.irecv(arrived[:size], (rank - 1) % WORLD).wait()
            going.wait()

    return work


def gathered(layout: reshard.Layout, rank: int, target: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Every parameter whole on every rank, one at a time, and this rank's part of it kept."""
    counts = []
    for parameter in layout.parameters:
        numel = 1
        for extent in parameter.shape:
            numel *= extent
        counts.append((parameter.name, -(-numel // WORLD)))

    def work() -> None:
        for name, count in counts:
            whole = torch.empty(count * WORLD, dtype=torch.bfloat16)
            dist.all_gather_into_tensor(whole, torch.zeros(count, dtype=torch.bfloat16))
            kept = target[name]
            kept.copy_(whole[: kept.numel()])

    return work


def measure(rank: int, config: dict[str, Any]) -> dict[str, Any]:
    source = reshard.Layout.autotp(config, f"autotp:tp=2,dp={WORLD // 2},zero=3")
    target = rollout_layout(config, Placement(tp=WORLD))
    begin = time.perf_counter()
    plan = reshard.plan(source, target)
    planned = time.perf_counter() - begin
    shards, wanted = tensors(source, rank), tensors(target, rank)
    with Synchroniser(plan) as synchroniser:
        syncs = [timed(lambda: synchroniser.sync(shards, wanted, version=1)) for _ in range(REPEATS + 1)]
        staging = synchroniser.staging_bytes
    busiest = max(max(plan.statistics.sent_by_rank), max(plan.statistics.received_by_rank))
    traffic = plain_traffic(rank, busiest, plan.statistics.bytes_local // WORLD, plan.schedule().chunk)
    bound = [timed(traffic) for _ in range(REPEATS)]
    gather = [timed(gathered(target, rank, wanted)) for _ in range(REPEATS)]
    return {
        "plan": planned, "first": syncs[0], "sync": statistics.median(syncs[1:]), "staging": staging,
        "bound": statistics.median(bound), "gather": statistics.median(gather), "busiest": busiest,
        "sent": plan.statistics.bytes_sent, "local": plan.statistics.bytes_local,
    }  # fmt: skip


def main() -> None:
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else CONFIG["num_hidden_layers"]
    found = run_ranks(WORLD, measure, {**CONFIG, "num_hidden_layers": layers}, timeout=600)[0]
    print(
        f"sent {found['sent'] / 1e9:.2f} GB, local {found['local'] / 1e9:.2f} GB, busiest rank "
        f"{found['busiest'] / 1e9:.2f} GB, staging {found['staging'] / 2**20:.0f} MiB, "
        f"plan {found['plan'] * 1e3:.1f} ms\n"
        f"first sync {found['first']:.2f} s, repeated {found['sync']:.2f} s; bound {found['bound']:.2f} s, "
        f"ratio {found['sync'] / found['bound']:.2f}; gathering every parameter {found['gather']:.2f} s, "
        f"ratio {found['gather'] / found['sync']:.2f}"
    )


if __name__ == "__main__":
    main()
