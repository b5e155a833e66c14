"""Random layouts and, beside them, what every byte must be: the oracle of the executor's tests.

    Case ──► build(side) ──► reshard.Layout                  through the package
         └─► source_bytes(rank), expected_bytes(rank)        by enumeration of every element, without it

Every element's bits come from its parameter and its flat index. Targets are born as 0xff bytes: NaN in every float.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field

import numpy
import torch

import reshard

DTYPES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4, "u8": 1}
FILL = 0x5A
BORN = 0xFF


@dataclass
class Block:
    parameter: int
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass
class Window:
    """A typed window of a storage: its blocks, and padding boxes (offset, length) that are filled."""

    dtype: str
    start: int
    length: int = 0
    blocks: list[Block] = field(default_factory=list)
    fills: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Store:
    rank: int
    name: str
    bytes: int
    windows: list[Window]


@dataclass
class Case:
    """Two sides of the same parameters; `cast` if the sides differ in type."""

    world: int
    shapes: list[tuple[int, ...]]
    dtypes: dict[str, list[str]]
    sides: dict[str, list[Store]]
    cast: bool

    def layout(self, side: str) -> reshard.Layout:
        builder = reshard.LayoutBuilder()
        for index, shape in enumerate(self.shapes):
            builder.parameter(f"p{index}", list(shape), self.dtypes[side][index])
        for store in self.sides[side]:
            storage = builder.storage(store.rank, store.name, store.bytes)
            for window in store.windows:
                buffer = builder.buffer(storage, window.start, window.dtype, window.length)
                for block in window.blocks:
                    builder.place(
                        block.parameter, buffer, offset=block.offset, origin=list(block.origin),
                        shape=list(block.shape), strides=list(block.strides),
                    )  # fmt: skip
                for offset, length in window.fills:
                    builder.fill(buffer, offset, [length], bytes([FILL] * DTYPES[window.dtype]))
        return builder.build()

    def plan(self) -> reshard.Plan:
        return reshard.plan(self.layout("source"), self.layout("target"), cast=self.cast)

    def source_bytes(self, rank: int) -> dict[str, torch.Tensor]:
        """The sources of a rank: every element coded, what lies between is 0xee."""
        return {
            store.name: self._written(store, 0xEE, "source")
            for store in self.sides["source"]
            if store.rank == rank
        }

    def born_bytes(self, rank: int) -> dict[str, torch.Tensor]:
        stores = (store for store in self.sides["target"] if store.rank == rank)
        return {store.name: torch.full((store.bytes,), BORN, dtype=torch.uint8) for store in stores}

    def expected_bytes(self, rank: int) -> dict[str, torch.Tensor]:
        """The targets of a rank after a sync, with the bytes that nobody may touch."""
        return {
            store.name: self._written(store, BORN, "target")
            for store in self.sides["target"]
            if store.rank == rank
        }

    def _written(self, store: Store, born: int, side: str) -> torch.Tensor:
        data = numpy.full(store.bytes, born, dtype=numpy.uint8)
        for window in store.windows:
            size = DTYPES[window.dtype]
            for block in window.blocks:
                values = self._elements(block.parameter, side)
                shape = self.shapes[block.parameter]
                for index in itertools.product(*(range(length) for length in block.shape)):
                    logical = [origin + at for origin, at in zip(block.origin, index, strict=True)]
                    flat = sum(at * math.prod(shape[axis + 1 :]) for axis, at in enumerate(logical))
                    place = block.offset + sum(
                        at * stride for at, stride in zip(index, block.strides, strict=True)
                    )
                    start = window.start + place * size
                    data[start : start + size] = values[flat]
            for offset, length in window.fills if side == "target" else ():
                data[window.start + offset * size : window.start + (offset + length) * size] = FILL
        return torch.from_numpy(data)

    def _elements(self, parameter: int, side: str) -> numpy.ndarray:
        """The bytes of every element, by flat index: (numel, size)."""
        from reshard.torch.dtypes import REAL

        count = math.prod(self.shapes[parameter])
        dtype = self.dtypes["source"][parameter]
        if not self.cast:
            generator = numpy.random.default_rng(parameter + 1)
            size = DTYPES[dtype]
            code = numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
            code = (code >> numpy.uint64(64 - 8 * size)) + numpy.uint64(generator.integers(1, 255))
            return code.astype("<u8").view(numpy.uint8).reshape(count, 8)[:, :size]
        real = (torch.arange(count, dtype=torch.float64) * 1.00390625 + 17 * parameter + 1 / 3).to(
            REAL[dtype]
        )
        for name in (self.dtypes[side][parameter],) if side == "target" else ():
            real = real.to(REAL[name])
        return real.contiguous().view(torch.uint8).reshape(count, -1).numpy()


def random_case(seed: int, *, cast: bool = False, parameters: int = 5) -> Case:
    """A case of two to four ranks."""
    choice = random.Random(seed)
    world = choice.choice([2, 3, 4])
    shapes = [
        tuple(choice.choice([1, 2, 3, 4, 5, 7]) for _ in range(choice.randint(0, 3)))
        for _ in range(parameters)
    ]
    if choice.random() < 0.5:
        shapes.append((0, 3))
    if cast:
        pairs = [
            ("f32", "bf16"),
            ("bf16", "f32"),
            ("f32", "f16"),
            ("f64", "f32"),
            ("f32", "f32"),
            ("f64", "bf16"),
        ]
        chosen = [choice.choice(pairs) for _ in shapes]
        dtypes = {"source": [one for one, _ in chosen], "target": [other for _, other in chosen]}
    else:
        same = [choice.choice(list(DTYPES)) for _ in shapes]
        dtypes = {"source": same, "target": same}
    sides = {side: _side(choice, side, world, shapes, dtypes[side]) for side in ("source", "target")}
    return Case(world, shapes, dtypes, sides, cast)


def _side(
    choice: random.Random, side: str, world: int, shapes: list[tuple[int, ...]], dtypes: list[str]
) -> list[Store]:
    windows: dict[tuple[int, str], Window] = {}
    for parameter, shape in enumerate(shapes):
        ranks = list(range(world))
        choice.shuffle(ranks)
        cut = choice.randint(1, world)
        # Each team holds one whole copy, cut its own way.
        teams = [ranks[:cut]] + ([ranks[cut:]] if cut < world and choice.random() < 0.6 else [])
        for team in teams:
            for box, (origin, extent) in enumerate(_grid(choice, shape, len(team))):
                window = windows.setdefault(
                    (team[box % len(team)], dtypes[parameter]), Window(dtypes[parameter], 0)
                )
                _lay(choice, window, parameter, origin, extent)
    return [
        store
        for rank in range(world)
        for store in _stores(
            choice, side, rank, [window for (at, _), window in windows.items() if at == rank]
        )
    ]


def _grid(
    choice: random.Random, shape: tuple[int, ...], parts: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The boxes of a random grid over a shape."""
    if math.prod(shape) == 0:
        return []
    axes = []
    for length in shape:
        cuts = sorted({0, length, *(choice.randint(0, length) for _ in range(choice.randint(0, parts)))})
        axes.append(list(itertools.pairwise(cuts)))
    return [
        (tuple(start for start, _ in box), tuple(end - start for start, end in box))
        for box in itertools.product(*axes)
    ]


def _lay(
    choice: random.Random, window: Window, parameter: int, origin: tuple[int, ...], extent: tuple[int, ...]
) -> None:
    """Appends a block: row-major, transposed or with padded rows; what lies before it may be a fill."""
    gap = choice.choice([0, 0, 1, 3])
    if gap and choice.random() < 0.5:
        window.fills.append((window.length, gap))
    order = list(range(len(extent)))
    if choice.random() < 0.4:
        choice.shuffle(order)
    strides, step = [0] * len(extent), 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * extent[axis] + (choice.choice([0, 0, 2]))
    offset = window.length + gap
    window.blocks.append(Block(parameter, origin, extent, tuple(strides), offset))
    window.length = (
        offset + 1 + sum((length - 1) * stride for length, stride in zip(extent, strides, strict=True))
    )


def _stores(choice: random.Random, side: str, rank: int, windows: list[Window]) -> list[Store]:
    """Spreads the windows of a rank over one or two storages, aligned."""
    stores = [Store(rank, f"{side} {index}", 0, []) for index in range(choice.randint(1, 2))]
    for window in windows:
        store = choice.choice(stores)
        size = DTYPES[window.dtype]
        window.start = -(-store.bytes // size) * size
        store.bytes = window.start + window.length * size
        store.windows.append(window)
    return stores
