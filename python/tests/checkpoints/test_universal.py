"""Universal checkpoints under real engines: what `reshard` writes trains on as what DeepSpeed's converter writes.

engine, TP2 x DP2, 2 steps, saved --DeepSpeed's converter--> a    engines of TP1, TP2, TP4 load a and b, hold the
                                  --reshard convert--------> b    same bits and have the same losses afterwards
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engines import Case
from program import chosen, reshard_convert
from resumed import TAG, Run, deepspeed_converts, differences, resume, save

WORLD = 4
# The small model's fused layers are not cut where they meet: another degree is another function, and 6 rows do not
# divide by 4.
FUSED = Case(fused=True)
QWEN3 = Case(model="qwen3", layers=2, heads=8, kv_heads=4)
GROUPS = Case(two_groups=True, bias=False)
SAVED = {
    "fused 1": FUSED,
    "fused 3": FUSED.but(stage=3),
    "qwen3 1": QWEN3,
    "qwen3 2": QWEN3.but(stage=2),
    "qwen3 3": QWEN3.but(stage=3),
    "groups 2": GROUPS.but(stage=2),
    "groups 3": GROUPS.but(stage=3),
}
OWN = chosen(
    [(name, tp) for name, case in SAVED.items() for tp in ((1, 2) if case.fused else (1, 2, 4))],
    [(name, tp) for name in ("qwen3 1", "qwen3 3") for tp in (1, 2, 4)] + [("fused 1", 1), ("groups 2", 2)],
)
OTHER = chosen(
    [(name, tp) for name in ("qwen3 1", "qwen3 3", "groups 3") for tp in (1, 2, 4)],
    [("qwen3 1", 4), ("qwen3 3", 1)],
)


class Saved:
    """A checkpoint that a real engine of TP2 x DP2 saved, and what converters make of it."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        self.run = save(case, WORLD, folder / "zero")

    @functools.cached_property
    def deepspeeds(self) -> Path:
        deepspeed_converts(self.folder / "zero" / TAG, self.folder / "deepspeeds" / f"{TAG}_universal")
        return self.folder / "deepspeeds"

    @functools.cache  # noqa: B019 - as long as the module's tests
    def ours(self, stages: str) -> Path:
        target = self.folder / f"ours {stages}"
        reshard_convert(self.folder / "zero", target, "--to", "universal", "--for", stages)
        return target


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="reshard-universal-"))
    yield path
    shutil.rmtree(path)


@functools.cache
def saved(name: str, folder: Path) -> Saved:
    return Saved(SAVED[name], folder / name)


def assert_close(case: Case, run: Run, to: Run) -> None:
    """As close as a change of tensor parallelism allows: sums are made in another order, and rounded to bf16."""
    if not case.fused:
        torch.testing.assert_close(run.losses, to.losses, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(("name", "tp"), OWN)
def test_engines_train_on_as_from_deepspeeds_own(name: str, tp: int, folder: Path) -> None:
    source = saved(name, folder)
    case = source.case.but(tp=tp, universal=True)
    ours = resume(case, WORLD, source.ours("same"))
    assert ours.steps == source.run.steps == 2
    assert differences(ours.states, source.run.states) == []
    theirs = resume(case, WORLD, source.deepspeeds)
    assert ours.losses == theirs.losses
    assert differences(ours.after, theirs.after) == []
    assert_close(case, ours, source.run)
    # DeepSpeed's stage 3 gives every group the hyper-parameters of the first one.
    if tp == source.case.tp and not (case.stage == 3 and case.two_groups):
        assert ours.losses == source.run.losses
        assert differences(ours.after, source.run.after) == []


@pytest.mark.parametrize(("name", "tp"), OTHER)
def test_engines_of_the_other_family_of_stages_train_on(name: str, tp: int, folder: Path) -> None:
    """DeepSpeed's own converter writes for the stage that saved, and no other can load it."""
    source = saved(name, folder)
    stage = 1 if source.case.stage == 3 else 3
    case = source.case.but(tp=tp, stage=stage, universal=True)
    run = resume(case, WORLD, source.ours(f"zero={stage}"))
    assert run.steps == 2
    assert differences(run.states, source.run.states) == []
    assert_close(case, run, source.run)
    both = resume(case, WORLD, source.ours("both"))
    assert both.losses == run.losses
    assert differences(both.after, run.after) == []


@pytest.mark.parametrize("name", chosen(["qwen3 1", "qwen3 3"], ["qwen3 3"]))
def test_files_of_both_families_leave_the_own_one_as_it_was(name: str, folder: Path) -> None:
    source = saved(name, folder)
    run = resume(source.case.but(universal=True), WORLD, source.ours("both"))
    assert run.losses == source.run.losses
    assert differences(run.after, source.run.after) == []


def test_a_universal_checkpoint_is_rewritten_for_the_other_family(folder: Path) -> None:
    """There and back: DeepSpeed's own of stage 3, for stage 1, for stage 3."""
    source = saved("qwen3 3", folder)
    reshard_convert(source.deepspeeds, folder / "one", "--to", "universal", "--for", "zero=1")
    reshard_convert(folder / "one", folder / "three", "--to", "universal", "--for", "zero=3")
    for stage, made in ((1, "one"), (3, "three")):
        run = resume(source.case.but(stage=stage, universal=True), WORLD, folder / made)
        assert run.steps == 2
        assert differences(run.states, source.run.states) == []
        assert_close(source.case, run, source.run)
        assert stage == 1 or run.losses == source.run.losses


def test_flat_tensors_of_one_tensor_parallel_rank_are_given_their_shapes(folder: Path) -> None:
    """Without tensor parallelism DeepSpeed's stage 3 writes tensors without a shape, which TP2 cannot load."""
    case = QWEN3.but(tp=1, stage=3)
    run = save(case, WORLD, folder / "bare")
    deepspeed_converts(folder / "bare" / TAG, folder / "bare universal" / f"{TAG}_universal")
    reshard_convert(folder / "bare universal", folder / "shaped", "--to", "universal", "--for", "both")
    for tp, stage in ((1, 3), (2, 3), (2, 1)):
        loaded = resume(case.but(tp=tp, stage=stage, universal=True), WORLD, folder / "shaped")
        assert differences(loaded.states, run.states) == []
        assert_close(case, loaded, run)


def test_states_that_are_not_adams(folder: Path) -> None:
    """DeepSpeed's converter looks for exp_avg alone, and raises a KeyError; its stages 1 and 2 load any state."""
    case = Case(optimizer="momentum")
    run = save(case, WORLD, folder / "momentum")
    assert run.states["momentum_buffer"]
    reshard_convert(folder / "momentum", folder / "momentum universal", "--to", "universal")
    for tp in (1, 2, 4):
        loaded = resume(case.but(tp=tp, universal=True), WORLD, folder / "momentum universal")
        assert differences(loaded.states, run.states) == []
        assert_close(case, loaded, run)
        assert tp != 2 or loaded.losses == run.losses
