"""The groups of a synchroniser: two of gloo for agreement, one of the device's backend for data.

    every rank of the world (or of `group`) ──► control groups ──► agree ──► data group        one collective each

Groups of its own: the messages of others cannot come between. A first collective connects everyone; without it a
backend may want all ranks in the first message of any two.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from reshard import UsageError

from .deadline import Deadline


@dataclass
class Membership:
    """Who this process is among the ranks of a plan. `ranks` are their numbers in the world, None: all of it."""

    rank: int
    world: int
    ranks: list[int] | None

    @staticmethod
    def of(group: dist.ProcessGroup | None) -> Membership:
        """The membership in `group`, in the world if that is None; alone where torch.distributed is not in use."""
        if not dist.is_available() or not dist.is_initialized():
            return Membership(0, 1, None)
        if dist.get_rank(group) < 0:
            raise UsageError(
                f"rank {dist.get_rank()} of the world is no member of the group", rank=dist.get_rank()
            )
        ranks = dist.get_process_group_ranks(group) if group is not None else None
        return Membership(dist.get_rank(group), dist.get_world_size(group), ranks)

    def new_group(self, backend: str, device: torch.device, timeout_seconds: float) -> dist.ProcessGroup:
        """A new group of these ranks, connected. All of them call it."""
        # With ranks given, only they call this.
        is_local = self.ranks is not None
        group = dist.new_group(
            self.ranks,
            timeout=timedelta(seconds=timeout_seconds),
            backend=backend,
            use_local_synchronization=is_local,
        )
        assert isinstance(group, dist.ProcessGroup), "this process is one of the ranks"
        work = dist.all_reduce(torch.zeros(1, device=device), group=group, async_op=True)
        assert work is not None, "this process is one of the ranks"
        work.wait(Deadline.after(timeout_seconds).left())
        return group


def default_device(group: dist.ProcessGroup | None) -> torch.device:
    """The current CUDA device where the group speaks nccl, the host otherwise."""
    is_distributed = dist.is_available() and dist.is_initialized()
    if is_distributed and torch.cuda.is_available() and "nccl" in str(dist.get_backend_config(group)):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def resolved_device(device: torch.device | str) -> torch.device:
    """A device with its index, as tensors name theirs."""
    device = torch.device(device)
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.empty(0, device=device).device


def backend_for(device: torch.device) -> str:
    """The backend that torch uses for a device by default: gloo on the host, nccl on CUDA."""
    return dist.Backend.default_device_backend_map.get(device.type, "gloo")


def dissolve(group: dist.ProcessGroup | None) -> None:
    """Leaves a group at once. The caller drops its own references too: only then do the connections close."""
    if group is None or not dist.is_initialized():
        return
    try:
        if hasattr(group, "abort") and dist.get_backend(group) != "gloo":
            group.abort()
        dist.destroy_process_group(group)
    except (RuntimeError, ValueError, AssertionError):
        # Already gone with its world.
        pass


def synchronise_host(device: torch.device) -> None:
    """Waits until the device has done all that the current stream was given."""
    if device.type != "cpu":
        getattr(torch, device.type).current_stream(device).synchronize()
