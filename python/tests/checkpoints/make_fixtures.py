"""Writes the checkpoints that the tests in Rust read: needs DeepSpeed, and this folder's siblings on the path.

    cd python/tests && PYTHONPATH=.:deepspeed python checkpoints/make_fixtures.py ../../crates/formats/tests/data/zero

    round_robin/latest, round_robin/step2/...pt      as DeepSpeed wrote them
    expected.json   {"round_robin": {"setting": .., "kept": {"fp32": {parameter: {shape, dtype, sha256}}}, ..}}

A digest is that of the whole tensor, row-major and little-endian.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from saved import TAG, Truth, save, setting_text

CHOSEN = {
    "zero_init": "zero.Init",
    "zero_init_frozen": "zero.Init, frozen",
    "round_robin": "round robin",
    "aligned": "aligned",
    "frozen_tied_buffers": "stage 3 frozen, tied, buffers",
    "uneven": "stage 2 uneven",
}


def digest(tensor: torch.Tensor) -> dict[str, Any]:
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def described(name: str, truth: Truth) -> dict[str, Any]:
    kept = {
        what: {parameter: digest(value) for parameter, value in tensors.items()}
        for what, tensors in truth.kept.items()
    }
    buffers = {parameter: digest(value) for parameter, value in truth.buffers.items()}
    return {"setting": setting_text(name), "kept": kept, "buffers": buffers, "aliases": truth.aliases}


def main(folder: Path) -> None:
    expected = {}
    for short, name in CHOSEN.items():
        target = folder / short
        shutil.rmtree(target, ignore_errors=True)
        expected[short] = described(name, save(name, target))
        for extra in target.iterdir():
            if extra.name not in ("latest", TAG):
                extra.unlink()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
