"""What real engines save, whatever their options, is what their own accessors say: converted by the program.

engine --save_checkpoint--> ZeRO folder --convert--> hf, Universal, Universal -> hf       all equal, bit for bit, to
       --accessors, plain collectives---------------------------------------------------> Truth
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from program import chosen, reshard_convert
from safetensors.torch import load_file
from saved import SETTINGS, Truth, save


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes: a NaN equals itself, and zero is not negative zero."""
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def compare(folder: Path, truth: Truth, what: str) -> None:
    """Every tensor of `truth` under `folder`, which has a folder for each thing kept."""
    for kept, expected in truth.kept.items():
        found = load_file(folder / kept / "model.safetensors")
        names = {name for name in expected if name not in truth.aliases}
        allowed = names | (set(truth.buffers) if kept == "weights" else set())
        assert names <= set(found) <= allowed, f"{what} {kept}"
        for name in names:
            assert found[name].shape == expected[name].shape, f"{what} {kept} {name}"
            assert found[name].dtype == expected[name].dtype, f"{what} {kept} {name}"
            assert torch.equal(bits(found[name]), bits(expected[name])), f"{what} {kept} {name}"
        if kept == "weights":
            for name, buffer in truth.buffers.items():
                assert name not in found or torch.equal(bits(found[name]), bits(buffer)), name


# The settings that no fixture of the Rust tests covers, and the nastiest that one does.
USUALLY = [
    "stage 0",
    "stage 1 fp16",
    "stage 1 frozen",
    "stage 2 frozen, tied, buffers",
    "stage 3 uneven",
    "zero.Init",
    "zero.Init over dp",
    "round robin, aligned",
    "bf16 optimizer",
    "more ranks than heads",
    "momentum, stage 3",
    "no tensor parallelism",
]


@pytest.mark.parametrize("name", chosen(list(SETTINGS), USUALLY))
def test_engines_of_every_option_are_read_right(name: str, tmp_path: Path) -> None:
    truth = save(name, tmp_path / "zero")
    several = ("--state", ",".join(truth.kept)) if len(truth.kept) > 1 else ("--state", "all")
    reshard_convert(tmp_path / "zero", tmp_path / "hf", "--to", "hf", *several)
    if len(truth.kept) == 1:
        (tmp_path / "one").mkdir()
        (tmp_path / "hf").rename(tmp_path / "one" / "weights")
        compare(tmp_path / "one", truth, name)
        return
    compare(tmp_path / "hf", truth, name)
    reshard_convert(tmp_path / "zero", tmp_path / "universal", "--to", "universal")
    reshard_convert(tmp_path / "universal", tmp_path / "again", "--to", "hf", *several)
    compare(tmp_path / "again", truth, f"{name}, through Universal")
