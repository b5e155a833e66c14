"""Tensors for storages: every one is checked before a byte moves.

    {"flat": tensor(float16, 96)} ──► storage "flat" of the plan, 192 bytes ──► buffer 5: bf16 from byte 64
      checked: there, known, plain, on the device, contiguous, 192 bytes, backed by memory, of a fitting type, aligned

A binding holds for one sync: tensors may have moved by the next one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from .dtypes import REAL, bits
from .errors import BindError

if TYPE_CHECKING:
    from reshard import Buffer, Storage


@runtime_checkable
class Shards(Protocol):
    """A mapping of storage names to tensors that can tell whether they still are what they were taken from.

    A second method, ``check_target()``, is asked of a target where it is there: it raises if these tensors must not be
    written.
    """

    def check(self) -> None:
        """Raises if a tensor no longer is the owner's memory. Called last before the ranks agree."""


@dataclass(frozen=True)
class Place:
    """A storage of this rank and the buffers in it."""

    storage: Storage
    buffers: tuple[Buffer, ...]


@dataclass
class Bound:
    """The tensors of one side, by buffer: as bits, and as the real type. `ranges` are bytes in memory."""

    bits: dict[int, torch.Tensor] = field(default_factory=dict)
    real: dict[int, torch.Tensor] = field(default_factory=dict)
    ranges: list[tuple[str, int, int, str]] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)

    def view(self, buffer: int, dtype: torch.dtype) -> torch.Tensor:
        """A buffer as a flat tensor of `dtype`: its bits, or its real type."""
        as_bits = self.bits[buffer]
        return as_bits if as_bits.dtype == dtype else self.real[buffer]


def places(storages: Iterable[Storage], buffers: Iterable[Buffer]) -> tuple[Place, ...]:
    """The storages of a rank, each with its buffers."""
    inside: dict[int, list[Buffer]] = {}
    for buffer in buffers:
        inside.setdefault(buffer.storage, []).append(buffer)
    return tuple(Place(storage, tuple(inside.get(storage.id, ()))) for storage in storages)


class Binder:
    """Binds one side of a plan on one rank. Tensors lie on `device`, or in the host's memory."""

    def __init__(self, side: str, rank: int, places: Sequence[Place], device: torch.device) -> None:
        self._side = side
        self._rank = rank
        self._places = {place.storage.name: place for place in places}
        self._device = device

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Bound:
        """Checks and binds a tensor per storage; a storage of no bytes needs none.

        Raises `BindError` for a storage that is missing or unknown, and for a tensor that is not a plain strided one,
        is on another device, not contiguous, of other bytes, freed, of a type that no buffer of the storage has
        (bytes fit all), or at an address that does not suit the type.
        """
        if not isinstance(tensors, Mapping):
            raise self._error(
                "*", expected="a mapping of storage names to tensors", found=type(tensors).__name__
            )
        unknown = next((name for name in tensors if name not in self._places), None)
        if unknown is not None:
            raise self._unknown(unknown)
        bound = Bound()
        for name, place in self._places.items():
            if name in tensors:
                self._bind_one(bound, name, place, tensors[name])
            elif place.storage.bytes:
                expected = f"a tensor of {place.storage.bytes} bytes"
                raise self._error(name, expected=expected, found="none under this name")
        return bound

    def _bind_one(self, bound: Bound, name: str, place: Place, given: Any) -> None:
        self._check_kind(name, given)
        tensor = given.detach()
        length = place.storage.bytes
        self._check_memory(name, tensor, place)
        self._check_dtype(name, tensor, place.buffers)
        if not length:
            return
        self._check_alignment(name, tensor, place.buffers)
        flat = tensor.reshape(-1).view(torch.uint8)
        for buffer in place.buffers:
            real = REAL[buffer.dtype]
            window = flat.narrow(0, buffer.offset, buffer.length * real.itemsize)
            bound.bits[buffer.id] = window.view(bits(real))
            bound.real[buffer.id] = window.view(real)
        start = tensor.data_ptr()
        bound.ranges.append((str(tensor.device), start, start + length, name))
        bound.tensors.append(given)

    def _check_kind(self, name: str, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise self._error(name, expected="a tensor", found=type(tensor).__name__)
        is_plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        if not is_plain or tensor.layout != torch.strided or tensor.is_quantized:
            found = type(tensor).__name__ if not is_plain else f"layout {tensor.layout}"
            hint = "give the local tensor of a distributed one (to_local())" if not is_plain else None
            raise self._error(name, expected="a plain strided tensor", found=found, hint=hint)
        if tensor.is_conj() or tensor.is_neg():
            raise self._error(name, expected="a tensor as it lies in memory", found="a lazily negated one")
        if tensor.device not in (self._device, torch.device("cpu")):
            expected = " or ".join(sorted({str(self._device), "cpu"}, reverse=True))
            hint = "a tensor on the meta device has no memory" if tensor.is_meta else None
            raise self._error(
                name, expected=f"a tensor on {expected}", found=f"one on {tensor.device}", hint=hint
            )

    def _check_memory(self, name: str, tensor: torch.Tensor, place: Place) -> None:
        length, found = place.storage.bytes, tensor.numel() * tensor.element_size()
        if found != length:
            of = " or ".join(sorted({str(REAL[buffer.dtype]) for buffer in place.buffers})) or "bytes"
            hint = f"it is {tensor.dtype} of shape {tuple(tensor.shape)}, the plan's is {of}"
            raise self._error(name, expected=f"{length} bytes", found=f"{found} bytes", hint=hint)
        if not tensor.is_contiguous():
            found_strides = f"strides {tuple(tensor.stride())} for shape {tuple(tensor.shape)}"
            hint = "a copy would not be written in place; lay the plan's strides out instead"
            raise self._error(name, expected="a contiguous tensor", found=found_strides, hint=hint)
        end = tensor.storage_offset() * tensor.element_size() + length
        backed = tensor.untyped_storage().nbytes()
        if length and backed < end:
            hint = "its memory was freed or moved: take the tensors again before this sync"
            raise self._error(name, expected=f"{end} bytes of memory", found=f"{backed} bytes", hint=hint)

    def _check_dtype(self, name: str, tensor: torch.Tensor, buffers: tuple[Buffer, ...]) -> None:
        fitting = {REAL[buffer.dtype] for buffer in buffers}
        if not fitting or tensor.dtype in fitting or tensor.dtype in (torch.uint8, torch.int8):
            return
        expected = " or ".join(sorted(str(dtype) for dtype in fitting))
        hint = "view(torch.uint8) gives bytes, which fit all types"
        raise self._error(name, expected=expected, found=str(tensor.dtype), hint=hint)

    def _check_alignment(self, name: str, tensor: torch.Tensor, buffers: tuple[Buffer, ...]) -> None:
        inside = tensor.storage_offset() * tensor.element_size()
        for buffer in buffers:
            size = REAL[buffer.dtype].itemsize
            excess = max((tensor.data_ptr() + buffer.offset) % size, (inside + buffer.offset) % size)
            if excess:
                expected = f"an address that is aligned for {buffer.dtype} at byte {buffer.offset}"
                raise self._error(name, expected=expected, found=f"one {excess} bytes past such an address")

    def _unknown(self, name: str) -> BindError:
        near = difflib.get_close_matches(str(name), self._places, n=1)
        some = ", ".join(map(repr, list(self._places)[:3])) + (", ..." if len(self._places) > 3 else "")
        hint = f"did you mean {near[0]!r}?" if near else f"they are {some}" if self._places else None
        expected = f"one of the plan's {len(self._places)} {self._side} storages of this rank"
        return self._error(name, expected=expected, found="a name that it does not have", hint=hint)

    def _error(self, name: str, *, expected: str, found: str, hint: str | None = None) -> BindError:
        return _bind_error(self._side, name, self._rank, expected, found, hint)


def _bind_error(
    side: str, storage: str, rank: int, expected: str, found: str, hint: str | None = None
) -> BindError:
    text = f"{side} storage {storage!r} of rank {rank}: expected {expected}, found {found}"
    return BindError(
        f"{text}; {hint}" if hint else text,
        side=side, storage=storage, rank=rank, expected=expected, found=found, hint=hint, kind="usage",
    )  # fmt: skip


def check_apart(source: Bound, target: Bound, rank: int) -> None:
    """Refuses a target that shares bytes with a source or with another target; sources may share theirs."""
    ranges = [(*span, False) for span in source.ranges] + [(*span, True) for span in target.ranges]
    last: dict[tuple[str, bool], tuple[int, str]] = {}
    for device, start, end, name, is_target in sorted(ranges):
        for other_is_target in (False, True):
            reached, other = last.get((device, other_is_target), (start, ""))
            if reached > start and (is_target or other_is_target):
                storage, shared = (name, other) if is_target else (other, name)
                side = "target" if is_target and other_is_target else "source"
                found = f"{min(reached, end) - start} bytes that are also {side} storage {shared!r}"
                raise _bind_error("target", storage, rank, "memory of its own", found)
        reached, _ = last.get((device, is_target), (start, name))
        if end >= reached:
            last[device, is_target] = (end, name)
