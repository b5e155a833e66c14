"""ZeRO checkpoints that `reshard` writes for another topology, under real engines of that topology.

TP2 x DP2, stage 1, saved --reshard convert --to zero--> TP4 x DP1, stage 3 --load_checkpoint--> trains on
                                                                '--DeepSpeed's converter--> Universal
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engines import Case, qwen3_config
from program import chosen, reshard_convert
from resumed import TAG, Run, deepspeed_converts, differences, resume, save

WORLD = 4
QWEN3 = Case(model="qwen3", layers=2, heads=8, kv_heads=4)
SAVED = {1: QWEN3, 3: QWEN3.but(stage=3)}
TARGETS = chosen(
    [(source, tp, stage) for source in SAVED for tp in (1, 2, 4) for stage in (1, 2, 3)],
    [(1, 4, 3), (1, 2, 1), (3, 1, 2), (3, 4, 1)],
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="reshard-zero-"))
    (path / "config.json").write_text(json.dumps(qwen3_config(QWEN3).to_dict()))
    yield path
    shutil.rmtree(path)


@functools.cache
def saved(stage: int, folder: Path) -> Run:
    return save(SAVED[stage], WORLD, folder / f"saved {stage}")


def converted(source: Path, folder: Path, name: str, tp: int, stage: int) -> Path:
    layout = f"autotp:tp={tp},dp={WORLD // tp},zero={stage}"
    config = str(folder / "config.json")
    reshard_convert(source, folder / name, "--to", "zero", "--layout", layout, "--model", config)
    return folder / name


def assert_goes_on(loaded: Run, run: Run, same: bool) -> None:
    """From the same bits; the same sums in another order, rounded to bf16, unless tensor parallelism is the same."""
    assert loaded.steps == 2
    assert differences(loaded.states, run.states) == []
    if same:
        assert loaded.losses == run.losses
    else:
        torch.testing.assert_close(loaded.losses, run.losses, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(("source", "tp", "stage"), TARGETS)
def test_another_topology_resumes(source: int, tp: int, stage: int, folder: Path) -> None:
    run = saved(source, folder)
    target = converted(folder / f"saved {source}", folder, f"{source} to {tp} {stage}", tp, stage)
    loaded = resume(QWEN3.but(tp=tp, stage=stage), WORLD, target)
    assert_goes_on(loaded, run, tp == 2 and stage == source)


@pytest.mark.parametrize(("tp", "stage"), chosen([(4, 1), (2, 3)], [(2, 3)]))
def test_deepspeeds_own_converter_reads_it(tp: int, stage: int, folder: Path) -> None:
    run = saved(1, folder)
    target = converted(folder / "saved 1", folder, f"for the converter {tp} {stage}", tp, stage)
    universal = folder / f"universal {tp} {stage}"
    deepspeed_converts(target / TAG, universal / f"{TAG}_universal")
    loaded = resume(QWEN3.but(stage=stage, universal=True), WORLD, universal)
    assert_goes_on(loaded, run, stage == 1)


def test_from_a_universal_checkpoint(folder: Path) -> None:
    run = saved(3, folder)
    reshard_convert(folder / "saved 3", folder / "universal", "--to", "universal")
    target = converted(folder / "universal", folder, "from universal", 2, 1)
    assert_goes_on(resume(QWEN3, WORLD, target), run, False)
