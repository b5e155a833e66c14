"""Before a move every ZeRO-3 parameter lies in its partition, and only there.

    with released(engine):                    gathered and persistent parameters give up their full copies
        move(...)                             the partitions are read, or written
    engine(batch)                             the next forward gathers anew, so it sees what was written

After each step ZeRO-3 gathers small parameters again and the next forward reads that copy: a weight written into the
partition alone would be invisible. Below stage 3 there is nothing to release. Source: DeepSpeed 0.19.8
`runtime/zero/parameter_offload.py` (`partition_all_parameters`), `runtime/zero/stage3.py` (`_post_step`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import internal, refuse_unpartitioned

__all__ = ["release", "released"]


@contextmanager
def released(engine: Any) -> Iterator[Any]:
    """Keeps all ZeRO-3 parameters of `engine` released inside, and after it until the next forward.

    Releasing again at the end drops what was gathered inside, so that no copy from before a write survives it. Between
    steps only: not inside a forward or backward, nor inside `zero.GatheredParameters`. Local; nothing below stage 3.
    """
    release(engine)
    try:
        yield engine
    finally:
        release(engine)


def release(engine: Any) -> None:
    """Drops every full copy of a ZeRO-3 parameter, hpZ's secondary partitions included. Local."""
    if engine.zero_optimization_stage() < 3:
        return
    for name, parameter in engine.module.named_parameters():
        refuse_unpartitioned(name, parameter)
    internal(engine.optimizer, "empty_partition_cache")()
    for parameter in engine.module.parameters():
        if getattr(parameter, "ds_secondary_tensor", None) is not None:
            parameter.ds_secondary_tensor = None
