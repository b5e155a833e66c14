"""Writes small files of torch. Values say where they lie: element i of a storage is i, byte i of a typed one is i.

    python3 generate.py          (torch 2.15.0)
"""

import pathlib
import warnings
import zipfile

import torch

FOLDER = pathlib.Path(__file__).parent
DTYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint16", "uint32", "uint64",
]  # fmt: skip


def bytes_of(count):
    return torch.arange(count, dtype=torch.uint8)


def views():
    base = torch.arange(24, dtype=torch.float32)
    grid = base.reshape(4, 6)
    parameter = torch.nn.Parameter(base[:6].reshape(2, 3))
    decorated = torch.nn.Parameter(base[6:8])
    decorated.note = "kept"
    typed = base[20:22].clone().as_subclass(Typed)
    return {
        "whole": grid,
        "row": grid[2],
        "columns": grid[:, 1:3],
        "transposed": grid.t(),
        "stepped": base[3::5],
        "scalar": base[7],
        "empty": torch.empty(0, 3),
        "empty_at_end": base[24:],
        "repeated": base[9:10].expand(2, 3),
        "parameter": parameter,
        "decorated": decorated,
        "typed": typed,
        "nested": [{"step": torch.tensor(5), "lr": 0.5}, (grid[0, 0],)],
        "none": None,
    }


class Typed(torch.Tensor):
    pass


def refused():
    warnings.simplefilter("ignore")
    torch.save(torch.eye(2).to_sparse(), FOLDER / "refused_sparse.pt")
    torch.save(torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8), FOLDER / "refused_quantized.pt")
    torch.save(torch.empty(2, device="meta"), FOLDER / "refused_meta.pt")
    torch.save(torch.ones(2, dtype=torch.complex128), FOLDER / "refused_complex128.pt")
    torch.save(torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), FOLDER / "refused_float4.pt")
    torch.save(torch.ones(2), FOLDER / "refused_legacy.pt", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), FOLDER / "refused_program.pt")
    torch.save(torch.ones(2), FOLDER / "little.pt")
    with zipfile.ZipFile(FOLDER / "little.pt") as source:
        copy(source, "refused_big.pt", zipfile.ZIP_STORED, b"big")
        copy(source, "refused_compressed.pt", zipfile.ZIP_DEFLATED, b"little")
    (FOLDER / "little.pt").unlink()


def copy(source, name, compression, order):
    with zipfile.ZipFile(FOLDER / name, "w", compression) as target:
        for entry in source.namelist():
            target.writestr(entry, order if entry.endswith("/byteorder") else source.read(entry))


if __name__ == "__main__":
    torch.save({name: bytes_of(16).view(getattr(torch, name)) for name in DTYPES}, FOLDER / "dtypes.pt")
    torch.save(views(), FOLDER / "views.pt")
    refused()
