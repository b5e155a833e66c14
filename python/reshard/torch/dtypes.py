"""Element types: the short names of a plan, the types of torch, and the integers that carry their bits.

    plan    torch             carried as
    bf16    torch.bfloat16    torch.int16     a copy of integers keeps every bit, the payload of a NaN too
    f8e4m3  torch.float8_...  torch.uint8

Only a copy that casts looks at the real type.
"""

from __future__ import annotations

import torch

REAL: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
}
"""The torch type of each short name."""

SHORT: dict[torch.dtype, str] = {dtype: name for name, dtype in REAL.items()}
"""The short name of each torch type."""

_BITS: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(dtype: torch.dtype) -> torch.dtype:
    """The integer type that carries the bits of `dtype`."""
    return _BITS[dtype.itemsize]
