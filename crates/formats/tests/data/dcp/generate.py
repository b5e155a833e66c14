"""Writes small checkpoints of torch.distributed.checkpoint, each by 4 processes.

    python3 generate.py          (torch 2.15.0, gloo)

Element i (row-major) of the k-th parameter is 100 k + i; its exp_avg is 0.25 more, its exp_avg_sq 0.5 more.

    uneven      10 and 6 rows over 4 ranks, columns, replicas, plain tensors, a scalar, and what is no tensor
    fsdp_tp     fully_shard x tensor parallel, 2 x 2, with Adam, as get_state_dict gives it
    flattened   fully_shard over 4 of the last layer, the optimizer's state dict flattened, inside a stateful application
    hub         the tensors of `uneven` that are sharded, as safetensors files of each rank
"""

import os
import pathlib
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

FOLDER = pathlib.Path(__file__).parent
WORLD = 4


def numbered(k, shape, add=0.0, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) + 100 * k + add).to(dtype).reshape(shape)


def uneven():
    mesh = init_device_mesh("cpu", (WORLD,))
    sharded = {
        "ten": distribute_tensor(numbered(0, (10, 3)), mesh, [Shard(0)]),
        "six": distribute_tensor(numbered(1, (6, 2)), mesh, [Shard(0)]),
        "columns": distribute_tensor(numbered(2, (4, 10)), mesh, [Shard(1)]),
        "half": distribute_tensor(numbered(3, (5, 2), dtype=torch.bfloat16), mesh, [Shard(0)]),
    }
    whole = {
        "replica": distribute_tensor(numbered(4, (3, 2)), mesh, [Replicate()]),
        "plain": numbered(5, (2, 2), dtype=torch.int64),
        "scalar": numbered(6, ()),
        "transposed": numbered(7, (3, 2)).t(),
        "empty": torch.empty(0, 4),
    }
    dcp.save({"model": {**sharded, **whole}, "epoch": 3, "note": {"text": "kept"}}, checkpoint_id="uneven")
    writer = HuggingFaceStorageWriter(path="hub", save_distributed=True)
    dcp.save(sharded, storage_writer=writer)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 6)
        self.down = torch.nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            for k, parameter in enumerate(self.parameters()):
                parameter.copy_(numbered(k, parameter.shape))

    def forward(self, value):
        return self.down(self.up(value))


def local(tensor):
    """What of a tensor lies on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trained(model, width):
    """An optimizer that took two steps without moving anything, and then got moments that say where they lie."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    for _ in range(2):
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            for name, more in (("exp_avg", 0.25), ("exp_avg_sq", 0.5)):
                local(optimizer.state[parameter][name]).copy_(local(parameter) + more)
    return optimizer


def fsdp_tp():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(Model(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # Both cut the rows of `up`: 6 over tp, then each 3 over dp as 2 and 1.
    fully_shard(model, mesh=mesh["dp"])
    optimizer = trained(model, 4)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id="fsdp_tp")


def flattened():
    model = Model().down
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    optimizer = trained(model, 6)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    dcp.save({"app": {"model": model_state, "optim": optimizer_state}}, checkpoint_id="flattened")


def main(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK=str(rank), WORLD_SIZE=str(WORLD))
    os.chdir(FOLDER)  # The metadata keeps the path that it was told.
    dist.init_process_group("gloo")
    for case in (uneven, fsdp_tp, flattened):
        case()
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in ("uneven", "fsdp_tp", "flattened", "hub"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    multiprocessing.spawn(main, nprocs=WORLD)
