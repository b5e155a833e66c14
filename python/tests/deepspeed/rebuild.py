"""What a layout says, done element by element: the dumb side of every comparison.

    layout.pieces + every rank's shards --walked with as_strided--> full tensors, every element written, replicas equal
    full tensors + layout.pieces --scattered--> one rank's shards

Values travel as the bits of their type (numpy has no bfloat16), so equal means bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed
from engines import Case, consolidated, full_state
from numpy.lib.stride_tricks import as_strided

import reshard.deepspeed

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def bits(tensor: torch.Tensor) -> Any:
    """The tensor's elements as unsigned integers of their size, a copy."""
    data = tensor.detach().cpu().contiguous()
    flat = data.reshape(-1).view(torch.uint8).numpy().copy()
    return flat.view(BITS[data.element_size()]).reshape(tuple(data.shape))


def shard_bits(shards: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A rank's shards, ready to be sent to whoever rebuilds."""
    return {name: bits(tensor) for name, tensor in shards.items()}


def rebuilt(layout: Any, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every full parameter, from the bits of all ranks' shards (by rank). Fails on holes and on unequal replicas."""
    storages = {storage.id: storage for storage in layout.storages}
    buffers = {buffer.id: buffer for buffer in layout.buffers}
    full = {}
    for parameter in layout.parameters:
        result, written = None, np.zeros(parameter.shape, bool)
        for piece in layout.pieces(parameter.name):
            buffer = buffers[piece.buffer]
            storage = storages[buffer.storage]
            assert storage.rank == piece.rank and buffer.offset == 0
            memory = shards[piece.rank][storage.name]
            assert memory.nbytes == storage.bytes, f"rank {piece.rank} {storage.name}: {memory.nbytes} bytes"
            end = piece.offset + sum((n - 1) * s for n, s in zip(piece.shape, piece.strides, strict=True))
            assert end < memory.size, f"{parameter.name}: a piece of rank {piece.rank} ends outside {storage.name}"
            strides = tuple(stride * memory.itemsize for stride in piece.strides)
            held = as_strided(memory[piece.offset :], tuple(piece.shape), strides)
            if result is None:
                result = np.zeros(parameter.shape, memory.dtype)
            region = tuple(slice(o, o + n) for o, n in zip(piece.origin, piece.shape, strict=True))
            before = written[region]
            assert (result[region][before] == held[before]).all(), f"{parameter.name}: unequal replicas on {piece.rank}"
            result[region], written[region] = held, True
        assert written.all(), f"{parameter.name}: {int((~written).sum())} elements are nowhere"
        full[parameter.name] = np.zeros(parameter.shape, np.uint8) if result is None else result
    return full


def different(found: Mapping[str, Any], expected: Mapping[str, torch.Tensor]) -> list[str]:
    """The names whose bits or shapes differ, or that only one side has."""
    wrong = sorted(found.keys() ^ expected.keys())
    for name in sorted(found.keys() & expected.keys()):
        truth = bits(expected[name])
        same = truth.shape == found[name].shape and (truth == found[name]).all()
        if truth.size and not same:
            wrong.append(name)
    return wrong


def scattered(layout: Any, shards: Mapping[str, torch.Tensor], full: Mapping[str, torch.Tensor]) -> None:
    """Writes this rank's pieces of full tensors into its shards, in place."""
    storages = {storage.id: storage.name for storage in layout.storages}
    buffers = {buffer.id: storages[buffer.storage] for buffer in layout.buffers}
    for piece in layout.pieces():
        if piece.rank == torch.distributed.get_rank():
            region = tuple(slice(o, o + n) for o, n in zip(piece.origin, piece.shape, strict=True))
            target = shards[buffers[piece.buffer]]
            where = target.storage_offset() + piece.offset
            target.as_strided(tuple(piece.shape), tuple(piece.strides), where).copy_(full[piece.parameter][region])


def gathered(layout: Any, shards: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """The bits of every rank's shards, by rank, on every rank; all ranks must have described the same. Collective."""
    told: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(told, (shard_bits(shards), layout))
    assert all(one == layout for _, one in told), "ranks describe different layouts"
    return [mine for mine, _ in told]


def wrong_weights(engine: Any) -> list[str]:
    """The parameters of which layout and shards say something else than DeepSpeed's own gather. Collective."""
    layout = reshard.deepspeed.parameter_layout(engine)
    with reshard.deepspeed.released(engine):
        shards = reshard.deepspeed.parameter_shards(engine)
        shards.check()
        told = gathered(layout, shards)
    truth = consolidated(engine)
    return agreed(lambda: different(rebuilt(layout, told), truth or {}))


def wrong_state(engine: Any, case: Case, state: str) -> list[str]:
    """The same of an optimizer state, against DeepSpeed's accessors. Collective."""
    layout = reshard.deepspeed.optimizer_layout(engine, state)
    told = gathered(layout, reshard.deepspeed.optimizer_shards(engine, state))
    truth = full_state(engine, case, state)
    return agreed(lambda: different(rebuilt(layout, told), truth))


def agreed(compare: Any) -> list[str]:
    """What rank 0 finds, on every rank: nobody is left waiting for one that has failed."""
    found: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        try:
            found = [compare()]
        except AssertionError as error:
            found = [[str(error)]]
    torch.distributed.broadcast_object_list(found)
    result: list[str] = found[0]
    return result
