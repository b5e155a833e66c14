# Generated from python/src by scripts/stubs.
"""
Layouts, plans and schedules of `reshard`, as Rust made them.
"""

from _typeshed import SupportsGetItem
from typing import Any, Final, SupportsFloat, SupportsIndex, final
from collections.abc import Callable, Mapping
from numpy import int64
from numpy.typing import NDArray

__all__ = ["__version__", "Box", "Buffer", "Copy", "End", "Layout", "LayoutBuilder", "Message", "Parameter", "Piece", "Plan", "Request", "Schedule", "Share", "Statistics", "Storage", "Verified", "plan", "unused_parameters", "verify"]

__version__: Final[str]
"""
The version of this package.
"""

@final
class Box:
    """
    A box of a buffer. In a message it begins at byte ``position`` and its elements follow each other row-major as
    ``wire``; where that is not the buffer's own ``dtype``, the buffer's owner converts. A box that stays on its rank has
    position 0 and its own dtype as ``wire``.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def buffer(self, /) -> int: ...
    @property
    def dtype(self, /) -> str: ...
    @property
    def offset(self, /) -> int: ...
    @property
    def position(self, /) -> int: ...
    @property
    def shape(self, /) -> tuple[int, ...]: ...
    @property
    def strides(self, /) -> tuple[int, ...]: ...
    @property
    def wire(self, /) -> str: ...

@final
class Buffer:
    """
    A typed window of a storage: ``offset`` in bytes, ``length`` in elements of ``dtype``.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def dtype(self, /) -> str: ...
    @property
    def id(self, /) -> int: ...
    @property
    def length(self, /) -> int: ...
    @property
    def offset(self, /) -> int: ...
    @property
    def storage(self, /) -> int: ...

@final
class Copy:
    """
    One strided box copy: ``shape`` elements of ``parameter`` at ``origin``, from ``source`` to ``target``.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def origin(self, /) -> tuple[int, ...]: ...
    @property
    def parameter(self, /) -> str: ...
    @property
    def shape(self, /) -> tuple[int, ...]: ...
    @property
    def source(self, /) -> End: ...
    @property
    def target(self, /) -> End: ...

@final
class End:
    """
    One end of a copy: where a box lies in a storage of a rank. ``offset`` and ``strides`` count elements of ``dtype``
    in buffer number ``buffer``.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def buffer(self, /) -> int: ...
    @property
    def dtype(self, /) -> str: ...
    @property
    def offset(self, /) -> int: ...
    @property
    def rank(self, /) -> int: ...
    @property
    def storage(self, /) -> str: ...
    @property
    def strides(self, /) -> tuple[int, ...]: ...

@final
class Layout:
    """
    Which box of which parameter lies where in which buffer of which rank, for all ranks; immutable.

    Made by ``LayoutBuilder``, ``Layout.autotp``, ``Layout.from_affine_maps``, or from a live engine by
    ``reshard.deepspeed``. Two layouts are equal if they say the same of every parameter, storage, buffer and box.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __reduce__(self, /) -> "tuple[Any, ...]": ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def _from_bytes(bytes: bytes) -> Layout: ...
    @property
    def aliases(self, /) -> dict[str, str]:
        """
        Second names (tied weights): alias -> parameter.
        """
    @staticmethod
    def autotp(config: "str | Mapping[str, Any]", topology: str, *, state: str | None = None, **options: "bool | int") -> "Layout":
        """
        What a DeepSpeed engine stores, from the Hugging Face ``config`` (a dictionary or the text of config.json)
        and a topology such as ``"autotp:tp=2,dp=4,zero=3"``; of the weights, or of an optimizer ``state``
        (``"fp32"``, ``"exp_avg"``, ``"exp_avg_sq"``). ``options``: DeepSpeed's ``parameter_alignment``,
        ``round_robin_gradients``, ``tp_grain_size``, ``sub_group_size``; ``two_groups`` (matrices, then vectors);
        ``config_optimizer`` (made by DeepSpeed, not by the caller).

        Raises ``UsageError`` for a topology or option that cannot be read, ``LayoutError`` for a model that cannot be
        laid out.
        """
    @property
    def buffers(self, /) -> list[Buffer]:
        """
        Every buffer, by id.
        """
    @property
    def fingerprint(self, /) -> int:
        """
        A hash of all that the layout says, equal on every machine for layouts that were built alike.
        """
    @staticmethod
    def from_affine_maps(maps: "Mapping[str, Any]", dtype: "str | Mapping[str, str]") -> "Layout":
        """
        The layout of parameters given as affine maps, each rank's shard a storage of its own named after its parameter.

        ``maps``: name -> DeepSpeed ``ParamAffineMap``, or its dictionary form. ``dtype``: one for all, or name -> dtype.
        Raises ``AffineMapError`` naming parameter and rank if a map contradicts itself.
        """
    @staticmethod
    def from_json(text: str) -> Layout:
        """
        Reads a layout file: ``{"version": 1, "dtype": ..., "parameters": {name: affine map}}``.
        """
    @property
    def parameters(self, /) -> list[Parameter]:
        """
        The parameters, in order.
        """
    @property
    def piece_count(self, /) -> int:
        """
        How many pieces all ranks hold.
        """
    def pieces(self, /, parameter: str | None = None) -> list[Piece]:
        """
        The pieces of one parameter (a name or an alias), or of all, by rank, buffer and offset.
        """
    @property
    def storages(self, /) -> list[Storage]:
        """
        Every storage of every rank, by id.
        """
    def storages_of(self, /, rank: SupportsIndex) -> list[Storage]:
        """
        The storages of one rank.
        """
    def to_affine_maps(self, /) -> "dict[str, dict[str, Any]]":
        """
        Every parameter as an affine map in dictionary form, which ``ParamAffineMap.from_dict`` of DeepSpeed reads.

        Addresses count from the first element of a rank's shard. Raises ``LayoutError`` if a rank keeps pieces of one
        parameter with gaps between them: such a shard cannot be said in this form.
        """
    def to_json(self, /) -> str:
        """
        Writes a layout file, for parameters of one dtype; see ``to_affine_maps``.
        """
    @property
    def world(self, /) -> int:
        """
        One past the highest rank that owns a storage.
        """

@final
class LayoutBuilder:
    """
    Collects a layout, which ``build`` checks and returns.

    ```text
      builder = reshard.LayoutBuilder()
      up = builder.parameter("up.weight", (18, 4), "f32")
      for rank in range(2):                                        # two ranks hold nine rows each
          buffer = builder.tensor(rank, "up.weight", "f32", 36)
          builder.place(up, buffer, origin=(9 * rank, 0), shape=(9, 4))
      layout = builder.build()
    ```
    """
    def __new__(cls, /) -> LayoutBuilder: ...
    def __repr__(self, /) -> str: ...
    def alias(self, /, name: str, parameter: SupportsIndex) -> None:
        """
        Gives a parameter a second name, as tied weights have.
        """
    def buffer(self, /, storage: SupportsIndex, offset: SupportsIndex, dtype: str, length: SupportsIndex) -> int:
        """
        Adds a window of a storage, at a byte offset, of ``length`` elements; returns its number.
        """
    def build(self, /) -> Layout:
        """
        Checks everything and returns the layout. Raises ``LayoutError``, whose ``findings`` lists all that is wrong.
        """
    def fill(self, /, buffer: SupportsIndex, offset: SupportsIndex, shape: SupportsGetItem[int, SupportsIndex], value: bytes, strides: SupportsGetItem[int, SupportsIndex] | None = None) -> None:
        """
        Adds target padding: a box of a buffer whose elements must each hold ``value``, the bytes of one element.
        """
    def parameter(self, /, name: str, shape: SupportsGetItem[int, SupportsIndex], dtype: str) -> int:
        """
        Adds a logical tensor and returns its number.
        """
    def place(self, /, parameter: SupportsIndex, buffer: SupportsIndex, *, offset: SupportsIndex = 0, origin: SupportsGetItem[int, SupportsIndex] | None = None, shape: SupportsGetItem[int, SupportsIndex] | None = None, strides: SupportsGetItem[int, SupportsIndex] | None = None, scale: SupportsFloat | SupportsIndex = 1.0) -> None:
        """
        Says that a buffer holds a box of a parameter from element ``offset`` on. Without ``origin`` and ``shape`` the
        box is the whole parameter; without ``strides`` its elements lie one after another in row-major order. The
        stored value is the logical one times ``scale``.
        """
    def place_runs(self, /, runs: "NDArray[int64]") -> None:
        """
        Says what lies in buffers, a row a run: ``parameter, shard, buffer, offset, first, length``: elements ``first`` to
        ``first + length`` of the flattened row-major shard lie from element ``offset`` of the buffer on. Rows of
        length 0 say nothing. ``runs`` is an ``int64`` array of shape ``(n, 6)``.
        """
    def shard(self, /, parameter: SupportsGetItem[int, SupportsIndex], shape: SupportsGetItem[int, SupportsIndex], blocks: SupportsGetItem[int, tuple[SupportsGetItem[int, SupportsIndex], SupportsGetItem[int, SupportsIndex], SupportsIndex, SupportsGetItem[int, SupportsIndex] | None]]) -> int:
        """
        Adds a shard (what one rank of a tensor-parallel group computes with) of parameters of shape ``parameter``:
        ``blocks`` are tuples of origin and extent in the parameter, offset in the row-major shard, and strides there
        (``None``: the shard's own). ``shape`` is the shard's. Equal shards get one number.
        """
    def shard_shape(self, /, shard: SupportsIndex) -> list[int]:
        """
        The shape of a shard.
        """
    def shards(self, /, name: str, parameter: SupportsGetItem[int, SupportsIndex], affine_map: Any) -> dict[int, int]:
        """
        The shards that an affine map over a tensor-parallel group describes (a ``ParamAffineMap``, or its dictionary
        form): index in the group -> number of the shard. The map may be in a view of the parameter's shape.
        """
    def storage(self, /, rank: SupportsIndex, name: str, bytes: SupportsIndex) -> int:
        """
        Adds an allocation of ``bytes`` bytes that a rank owns, and returns its number. Names are unique on a rank.
        """
    def tensor(self, /, rank: SupportsIndex, name: str, dtype: str, length: SupportsIndex) -> int:
        """
        Adds a storage that is one tensor of ``length`` elements, and returns the number of its buffer.
        """

@final
class Message:
    """
    What goes to or comes from one ``peer`` in one round: ``boxes``, one after another, ``bytes`` in all.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def boxes(self, /) -> list[Box]: ...
    @property
    def bytes(self, /) -> int: ...
    @property
    def peer(self, /) -> int: ...

@final
class Parameter:
    """
    A logical tensor: its name, extents and element type, such as ``"bf16"``.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def dtype(self, /) -> str: ...
    @property
    def name(self, /) -> str: ...
    @property
    def shape(self, /) -> tuple[int, ...]: ...

@final
class Piece:
    """
    A box of a parameter and where it lies: ``offset`` and ``strides`` count elements of the buffer.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def buffer(self, /) -> int: ...
    @property
    def offset(self, /) -> int: ...
    @property
    def origin(self, /) -> tuple[int, ...]: ...
    @property
    def parameter(self, /) -> str: ...
    @property
    def rank(self, /) -> int: ...
    @property
    def scale(self, /) -> float: ...
    @property
    def shape(self, /) -> tuple[int, ...]: ...
    @property
    def strides(self, /) -> tuple[int, ...]: ...

@final
class Plan:
    """
    The copies that turn what a source layout holds into what a target layout holds; immutable, without any address.

    The same layouts and policy give the same plan on every rank: make it once, use it for every sync.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __reduce__(self, /) -> "tuple[Any, ...]": ...
    def __repr__(self, /) -> str: ...
    @staticmethod
    def _from_bytes(bytes: bytes) -> Plan: ...
    @property
    def cast(self, /) -> bool:
        """
        Whether copies may cast from one float dtype to another.
        """
    @property
    def copies(self, /) -> list[Copy]:
        """
        Every copy, by target buffer and offset. A list is made at each call.
        """
    @property
    def fingerprint(self, /) -> int:
        """
        Hash of both layouts, the policy and the copies: equal on every rank that planned from the same inputs.
        """
    @property
    def parameters(self, /) -> list[str]:
        """
        Names of the target's parameters.
        """
    @property
    def policy(self, /) -> str:
        """
        How sources were chosen.
        """
    def schedule(self, /, staging: SupportsIndex = ...) -> Schedule:
        """
        When each message goes, so that no rank needs more than ``staging`` bytes for what it sends and receives. Raises
        ``ScheduleError`` if that is too little.
        """
    @property
    def source_buffers(self, /) -> list[Buffer]:
        """
        Every buffer of the source, by number.
        """
    def source_storages(self, /, rank: SupportsIndex) -> list[Storage]:
        """
        The storages of one rank that are read.
        """
    @property
    def statistics(self, /) -> Statistics:
        """
        What it adds up to.
        """
    @property
    def target_buffers(self, /) -> list[Buffer]:
        """
        Every buffer of the target, by number.
        """
    def target_storages(self, /, rank: SupportsIndex) -> list[Storage]:
        """
        The storages of one rank that are written.
        """
    def to_json(self, /) -> str:
        """
        Writes the whole plan as JSON, for other programs to read.
        """
    def to_transfer_plans(self, /) -> "dict[str, dict[str, Any]]":
        """
        The plan in the form of DeepSpeed's ``TransferPlan.to_dict()``: parameter -> ``{"logical_shape": [...],
        "segments": [{"shape": [...], "source": [rank, offset, strides], "target": [rank, offset, strides]}]}``. Offsets
        count elements of the rank's shard where the layouts came from affine maps, of its buffer otherwise.
        """
    @property
    def version(self, /) -> int:
        """
        Version of the plan's form.
        """
    @property
    def world(self, /) -> int:
        """
        One past the highest rank that owns a storage on either side.
        """

@final
class Request:
    """
    One question to a policy of the caller's: which of ``candidates``, the ranks that hold all of the box, shall send
    it to ``target_rank``?
    """
    def __repr__(self, /) -> str: ...
    @property
    def bytes(self, /) -> int: ...
    @property
    def candidates(self, /) -> tuple[int, ...]: ...
    @property
    def origin(self, /) -> tuple[int, ...]: ...
    @property
    def parameter(self, /) -> str: ...
    @property
    def shape(self, /) -> tuple[int, ...]: ...
    @property
    def target_rank(self, /) -> int: ...

@final
class Schedule:
    """
    When each message of a plan goes: in ``rounds``, in each of which a rank sends at most one message and receives at
    most one, of at most ``chunk`` bytes. There are ``bound`` rounds, the fewest that are possible.
    """
    def __repr__(self, /) -> str: ...
    @property
    def bound(self, /) -> int:
        """
        The number that rounds cannot be below: the most messages that one rank sends, or receives.
        """
    @property
    def chunk(self, /) -> int:
        """
        The most bytes of a message: a quarter of the staging limit, as a multiple of 16.
        """
    @property
    def fingerprint(self, /) -> int:
        """
        Hash of the plan's fingerprint, the staging limit and every message's round.
        """
    @property
    def messages(self, /) -> int:
        """
        The number of messages, over all ranks.
        """
    @property
    def rounds(self, /) -> int:
        """
        The number of rounds.
        """
    def share(self, /, rank: SupportsIndex) -> Share:
        """
        What one rank does.
        """
    @property
    def staging(self, /) -> int:
        """
        The most bytes that a rank keeps for what it sends and receives.
        """

@final
class Share:
    """
    What one rank does: ``local`` pairs of a source and a target box of its own; ``fills`` of padding; and in each of ``rounds`` a message to send and one to receive, or ``None``.
    """
    def __repr__(self, /) -> str: ...
    @property
    def fills(self, /) -> list[tuple[Box, bytes]]:
        """
        Padding of this rank's target buffers: a box, and the bytes of one element.
        """
    @property
    def local(self, /) -> list[tuple[Box, Box]]: ...
    @property
    def rounds(self, /) -> list[tuple[Message | None, Message | None]]: ...

@final
class Statistics:
    """
    What a plan adds up to. Bytes are those that travel: local ones stay on their rank.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def bytes_local(self, /) -> int: ...
    @property
    def bytes_sent(self, /) -> int: ...
    @property
    def copies(self, /) -> int: ...
    @property
    def received_by_rank(self, /) -> list[int]: ...
    @property
    def sent_by_rank(self, /) -> list[int]: ...
    @property
    def source_pieces(self, /) -> int: ...
    @property
    def target_pieces(self, /) -> int: ...

@final
class Storage:
    """
    An allocation that one rank owns: what is bound to a tensor when a plan is executed. Names are unique on a rank.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def bytes(self, /) -> int: ...
    @property
    def id(self, /) -> int: ...
    @property
    def name(self, /) -> str: ...
    @property
    def rank(self, /) -> int: ...

@final
class Verified:
    """
    What was proved: so many elements are each written exactly once, by so many copies.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def copies(self, /) -> int: ...
    @property
    def elements(self, /) -> int: ...

def plan(source: Layout, target: Layout, policy: "str | Callable[[Request], int] | None" = None, *, cast: "bool" = False) -> "Plan":
    """
    Plans how every element of ``target`` is filled from ``source``; both layouts number the same processes.

    ``policy`` says who sends a box that several ranks hold: ``"lowest"`` (the lowest rank), ``"local"`` (the target rank
    itself if it holds the box, else the lowest), ``"balanced"`` (itself, else who sends least so far), or a function
    that answers a ``Request`` with one of its candidates, and must answer alike on every rank. With ``cast`` the two
    sides may have different float dtypes of a parameter, so that values are rounded to the target's.

    Raises ``PlanError`` naming the parameter and both sides if one is missing or its shape, dtype or scale disagrees.
    """

def unused_parameters(source: Layout, target: Layout) -> list[str]:
    """
    The parameters of ``source`` that ``target`` does not take: a plan leaves them out without an error.
    """

def verify(plan: Plan, source: Layout, target: Layout) -> Verified:
    """
    Proves that a plan writes every element that ``target`` wants exactly once, each from where ``source`` holds it, by
    code that shares nothing with the planner. Raises ``VerifyError`` naming parameter, rank and box if not.
    """
