"""Executes a plan over torch.distributed, in place, bit for bit, on any backend and device.

    plan ──► Synchroniser (collective, once) ──► sync(source tensors, target tensors, version) ──► Report
                                                   every rank, again and again

```python
from reshard.torch import Synchroniser

synchroniser = Synchroniser(plan, staging="256MiB", timeout=60.0)
report = synchroniser.sync(source={"weights": flat}, target={"rollout": shard}, version=step)
```

**Tensors** are given by the names of the plan's storages, anew at each call. They are checked before anything moves and
written in place, so that engines and CUDA graphs keep their pointers.

**Agreement.** Before a byte moves, and again before the version flips, all ranks tell the leader (the lowest rank) how
they stand and get one verdict. What fails on one rank is `SyncError` on every rank, with the rank and the stage.

**Messages** go in the rounds of the plan's schedule, two in flight in each direction, through staging that is allocated
once and bounded; a message that is one contiguous box goes straight from and into the tensors. They match by order.

**Time.** No wait outlives `timeout`, plus a grace of a quarter of it, 5 s at most. A rank that dies is seen at once.

**Tested** with gloo on the host. The path for CUDA and nccl is written and has not been run.
"""

from .binding import Shards
from .errors import BindError, BrokenError, Stage, SyncError
from .replicas import ReplicaCheck, ReplicaError
from .report import Report, State, Totals
from .synchroniser import Synchroniser

__all__ = [
    "BindError",
    "BrokenError",
    "ReplicaCheck",
    "ReplicaError",
    "Report",
    "Shards",
    "Stage",
    "State",
    "SyncError",
    "Synchroniser",
    "Totals",
]
