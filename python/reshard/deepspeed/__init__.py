"""Live DeepSpeed engines (AutoTP x ZeRO) as layouts, and their own buffers as what is moved.

    trainer = reshard.deepspeed.parameter_layout(engine)           # once; on all ranks
    plan = reshard.plan(trainer, rollout_layout)
    ...
    with reshard.deepspeed.released(engine):                       # before each sync
        shards = reshard.deepspeed.parameter_shards(engine)
        ...                                                        # move: shards are the source

An engine is a target through `training_target`, which also writes its master weights. Stages 0 to 3, the bf16 optimizer,
engines without an optimizer, `zero.Init`, CPU offload; tied, frozen, empty and fused parameters. Refused by name: NVMe,
quantised weights, hpZ under tensor parallelism, expert and pipeline parallelism, and whatever DeepSpeed does not describe.
Written for and tested with DeepSpeed 0.19.8.
"""

from .errors import DetachedError, EngineError, GatheredError, InternalsError, StaleError
from .layouts import optimizer_layout, parameter_layout
from .release import release, released
from .shards import Shards, optimizer_shards, parameter_shards
from .training import TrainingTarget, training_target

__all__ = [
    "DetachedError",
    "EngineError",
    "GatheredError",
    "InternalsError",
    "Shards",
    "StaleError",
    "TrainingTarget",
    "optimizer_layout",
    "optimizer_shards",
    "parameter_layout",
    "parameter_shards",
    "release",
    "released",
    "training_target",
]
