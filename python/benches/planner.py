"""Planning through Python against DeepSpeed's planner, in one process: medians, and their ratio.

    python benches/planner.py [config.json]

The model is Qwen3-8B's shapes unless a config is given; DeepSpeed plans the affine maps that our layouts write.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepspeed.checkpoint.affine import ParamAffineMap
from deepspeed.checkpoint.affine_transfer import plan_transfer

import reshard

QWEN3_8B = Path(__file__).parents[2] / "crates/parallel/tests/data/Qwen3-8B.json"
CASES = [("autotp:tp=2", "autotp:tp=4"), ("autotp:tp=4", "autotp:tp=2"), ("autotp:tp=2", "autotp:tp=8")]


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def compare(config: dict[str, Any], source: str, target: str) -> None:
    layouts = [reshard.Layout.autotp(config, topology) for topology in (source, target)]
    maps = [
        {name: ParamAffineMap.from_dict(entry) for name, entry in layout.to_affine_maps().items()}
        for layout in layouts
    ]
    theirs = median_seconds(lambda: [plan_transfer(maps[1][name], maps[0][name]) for name in maps[1]], 5)
    ours = median_seconds(lambda: reshard.plan(*layouts, "lowest"), 21)
    read = median_seconds(lambda: [reshard.Layout.from_affine_maps(side, "bf16") for side in maps], 5)
    copies = reshard.plan(*layouts, "lowest").statistics.copies
    print(
        f"{source} -> {target}: {copies} copies, DeepSpeed {theirs * 1e3:.1f} ms, reshard {ours * 1e3:.3f} ms, "
        f"ratio {theirs / ours:.0f}; reading both sides from DeepSpeed's objects {read * 1e3:.1f} ms"
    )


def main() -> None:
    config = json.loads((Path(sys.argv[1]) if len(sys.argv) > 1 else QWEN3_8B).read_text())
    for source, target in CASES:
        compare(config, source, target)


if __name__ == "__main__":
    main()
