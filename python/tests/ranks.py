"""Ranks for tests: forked processes in one gloo world.

    parent (has imported torch, deepspeed once)
      |-- fork --> rank 0 -- function(rank, ...) --> pickled result or exception --.
      '-- fork --> rank 1 -- ...                                                  '--> [result 0, result 1, ...]

A fork costs milliseconds where a fresh interpreter costs seconds of imports.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Died:
    """What stands for the result of a rank that was killed, by a signal if `code` is negative."""

    rank: int
    code: int


class RankError(AssertionError):
    """One or more ranks raised; the message holds each one's traceback."""


def run_ranks(
    world: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float = 120.0,
    may_die: Sequence[int] = (),
    init: bool = True,
) -> list[Any]:
    """Runs ``function(rank, *arguments)`` in `world` forked processes and returns what each returned, by rank.

    With `init` every rank has joined a gloo world over a file store. Ranks in `may_die` may be killed: `Died` stands
    for their result. Anything raised in a rank, a death or `timeout` seconds without an end raise `RankError` here,
    with every rank's traceback; nothing is left running.
    """
    try:
        return _run(world, function, arguments, timeout, may_die, init)
    except RankError as error:
        # A port that another process took meanwhile: gloo's world was never made, and nothing was tested.
        if not init or "connectFullMesh" not in str(error):
            raise
        return _run(world, function, arguments, timeout, may_die, init)


def _run(
    world: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    timeout: float,
    may_die: Sequence[int],
    init: bool,
) -> list[Any]:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="reshard-ranks-") as folder:
        pipes, children = [], []
        for rank in range(world):
            reader, writer = context.Pipe(duplex=False)
            child = context.Process(
                target=_child, args=(rank, world, folder, init, writer, function, arguments), daemon=False
            )
            child.start()
            writer.close()
            pipes.append(reader)
            children.append(child)
        try:
            return _collect(children, pipes, timeout, set(may_die))
        finally:
            for child in children:
                if child.is_alive():
                    child.kill()
                child.join()


def _collect(children: list[Any], pipes: list[Any], timeout: float, may_die: set[int]) -> list[Any]:
    deadline = time.monotonic() + timeout
    results: list[Any] = []
    faults: list[str] = []
    for rank, (child, pipe) in enumerate(zip(children, pipes, strict=True)):
        outcome: Any = None
        try:
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                faults.append(f"rank {rank}: no result within {timeout} s")
            else:
                ok, outcome = pickle.loads(pipe.recv_bytes())
                if not ok:
                    faults.append(f"rank {rank}: {outcome}")
        except EOFError:
            child.join()
            outcome = Died(rank, child.exitcode)
            if rank not in may_die:
                faults.append(f"rank {rank}: died with exit code {child.exitcode}")
        results.append(outcome)
    if faults:
        raise RankError("\n".join(faults))
    return results


def _child(
    rank: int,
    world: int,
    folder: str,
    init: bool,
    writer: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        OMP_NUM_THREADS="1",
    )
    try:
        if init:
            import torch

            torch.set_num_threads(1)
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
            )
        message = pickle.dumps((True, function(rank, *arguments)))
    except BaseException:
        message = pickle.dumps((False, traceback.format_exc()))
    writer.send_bytes(message)
    writer.close()
    # Interpreter shutdown would join threads of a world that may be broken.
    os._exit(0)
