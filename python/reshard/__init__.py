"""Moves sharded model weights into processes that shard them another way: bit for bit, no whole parameter anywhere.

A *layout* says which box of which parameter lies where in which storage of which rank. A *plan* is what two layouts
give when they are intersected. *Moving* is a loop over the plan, which `reshard.torch` does over torch.distributed.

    W (4x6): trainer TP2 cuts columns 3|3         rollout TP4 cuts columns 2|1|2|1
       rank 0    rank 1                              r0    r1   r2    r3
       0  1  2 |  3  4  5                            0  1 | 2 | 3  4 | 5
       6  7  8 |  9 10 11         plan:              6  7 | 8 | 9 10 | 11
       ...                        r0 <- rank 0 box(0:4, 0:2)   r1 <- rank 0 box(0:4, 2:3)   ...

Importing this module needs neither PyTorch nor DeepSpeed: those are for `reshard.torch`, `reshard.deepspeed` and
`reshard.rollout`.
"""

from reshard._reshard import (
    Box,
    Buffer,
    Copy,
    End,
    Layout,
    LayoutBuilder,
    Message,
    Parameter,
    Piece,
    Plan,
    Request,
    Schedule,
    Share,
    Statistics,
    Storage,
    Verified,
    __version__,
    plan,
    unused_parameters,
    verify,
)
from reshard.errors import (
    AffineMapError,
    LayoutError,
    PlanError,
    ReshardError,
    ScheduleError,
    UsageError,
    VerifyError,
)

__all__ = [
    "AffineMapError",
    "Box",
    "Buffer",
    "Copy",
    "End",
    "Layout",
    "LayoutBuilder",
    "LayoutError",
    "Message",
    "Parameter",
    "Piece",
    "Plan",
    "PlanError",
    "Request",
    "ReshardError",
    "Schedule",
    "ScheduleError",
    "Share",
    "Statistics",
    "Storage",
    "UsageError",
    "Verified",
    "VerifyError",
    "__version__",
    "plan",
    "unused_parameters",
    "verify",
]
