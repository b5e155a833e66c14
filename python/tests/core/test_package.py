"""The package itself: what importing it needs, values that travel, errors that say what is wrong."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest

import reshard

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 144,
    "vocab_size": 257,
    "torch_dtype": "bfloat16",
}


def rows(cuts: list[int], columns: int = 4, dtype: str = "f32") -> reshard.Layout:
    """`w`, cut by rows: rank r holds cuts[r] of them."""
    builder = reshard.LayoutBuilder()
    w = builder.parameter("w", (sum(cuts), columns), dtype)
    first = 0
    for rank, count in enumerate(cuts):
        buffer = builder.tensor(rank, "w", dtype, count * columns)
        if count:
            builder.place(w, buffer, origin=(first, 0), shape=(count, columns))
        first += count
    return builder.build()


def test_importing_needs_neither_torch_nor_deepspeed() -> None:
    code = (
        "import sys, reshard; loaded = {name.split('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'torch', 'deepspeed', 'transformers'}))"
    )
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_package_is_typed() -> None:
    folder = Path(reshard.__file__).parent
    assert (folder / "py.typed").exists()
    stubs = (folder / "_reshard.pyi").read_text()
    for name in dir(sys.modules["reshard._reshard"]):
        if not name.startswith("_"):
            assert name in stubs, f"{name} has no stub"
        if name[0].isupper() or name in {"plan", "verify"}:
            assert getattr(reshard, name).__doc__, f"{name} has no documentation"


def test_layouts_and_plans_travel() -> None:
    source, target = rows([9, 9]), rows([5, 5, 4, 4])
    plan = reshard.plan(source, target)
    for value in (source, target, plan, plan.statistics, plan.copies):
        if isinstance(value, (reshard.Layout, reshard.Plan)):
            assert pickle.loads(pickle.dumps(value)) == value
            assert copy.deepcopy(value) == value
    assert hash(pickle.loads(pickle.dumps(plan))) == hash(plan)
    assert source != target
    assert reshard.Layout.from_json(source.to_json()).fingerprint == source.fingerprint
    assert json.loads(plan.to_json())["version"] == plan.version


@pytest.mark.parametrize("what", ["layout", "plan"])
def test_a_damaged_pickle_is_an_error(what: str) -> None:
    source = rows([9, 9])
    value = source if what == "layout" else reshard.plan(source, rows([5, 5, 4, 4]))
    function, (data,) = value.__reduce__()
    assert function(data) == value
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]):
            with pytest.raises(reshard.UsageError, match=what):
                function(damaged)


def test_a_damaged_plan_is_never_taken_for_another() -> None:
    function, (data,) = reshard.plan(rows([9, 9]), rows([5, 5, 4, 4])).__reduce__()
    for at in range(len(data)):
        with pytest.raises(reshard.UsageError, match="no plan of this version"):
            function(data[:at] + bytes([data[at] ^ 0x05]) + data[at + 1 :])


def test_a_box_whose_corner_is_past_64_bits_is_an_error() -> None:
    builder = reshard.LayoutBuilder()
    w = builder.parameter("w", (4,), "f32")
    buffer = builder.tensor(0, "w", "f32", 4)
    with pytest.raises(reshard.UsageError, match=r"w: box \[18446744073709551615\]\+\[4\]"):
        builder.place(w, buffer, origin=(2**64 - 1,))
    with pytest.raises(reshard.UsageError, match="does not fit in 64 bits"):
        builder.shard((4,), (4,), [((2**63,), (2**63,), 0, None)])


def test_a_buffer_that_was_refused_has_no_number() -> None:
    builder = reshard.LayoutBuilder()
    w = builder.parameter("w", (4,), "f32")
    storage = builder.storage(0, "w", 16)
    with pytest.raises(reshard.UsageError, match="bogus"):
        builder.buffer(storage, 0, "bogus", 4)
    with pytest.raises(reshard.UsageError, match="there is no buffer 0"):
        builder.place(w, 0)
    builder.place(w, builder.buffer(storage, 0, "f32", 4))
    assert builder.build().piece_count == 1


def test_values_say_what_they_are() -> None:
    source, target = rows([9, 9]), rows([5, 5, 4, 4])
    plan = reshard.plan(source, target)
    assert repr(source) == "<Layout: 1 parameters, 2 pieces on 2 ranks>"
    assert repr(source.parameters) == '[Parameter("w", (18, 4), "f32")]'
    assert repr(source.storages[1]) == 'Storage(1, rank=1, name="w", bytes=144)'
    # Rows 0 to 4 stay on rank 0, row 9 stays on rank 1.
    assert "5 copies, 96 bytes local, 192 bytes sent" in repr(plan)
    copy_of_row = plan.copies[1]
    assert (copy_of_row.source.rank, copy_of_row.target.rank) == (0, 1)
    assert (copy_of_row.origin, copy_of_row.shape, copy_of_row.source.offset) == ((5, 0), (4, 4), 20)
    assert repr(reshard.verify(plan, source, target)) == "Verified(elements=72, copies=5)"


def test_everything_wrong_with_a_layout_is_listed() -> None:
    builder = reshard.LayoutBuilder()
    w = builder.parameter("w", (4, 4), "f32")
    builder.parameter("w", (4, 4), "f32")
    small = builder.tensor(0, "small", "f32", 3)
    builder.place(w, small)
    with pytest.raises(reshard.LayoutError) as caught:
        builder.build()
    assert caught.value.kind == "invalid"
    assert any("w is given twice" in finding for finding in caught.value.findings)
    with pytest.raises(reshard.LayoutError, match="w") as caught:
        holed = reshard.LayoutBuilder()
        w = holed.parameter("w", (4, 4), "f32")
        holed.place(w, holed.tensor(0, "w", "f32", 8), shape=(2, 4))
        holed.build()
    assert caught.value.parameter == "w"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda b: b.parameter("w", (4,), "float99"), "'float99'|\"float99\""),
        (lambda b: b.place(7, 0), "no parameter 7"),
        (lambda b: b.alias("v", 7), "no parameter 7"),
        (lambda b: b.buffer(3, 0, "f32", 1), "no storage 3"),
        (lambda b: b.place_runs(numpy.zeros((1, 5), dtype=numpy.int64)), "5 columns"),
        (lambda b: b.place_runs(numpy.full((1, 6), -1, dtype=numpy.int64)), "negative number -1"),
        (lambda b: b.place_runs(numpy.zeros((1, 6), dtype=numpy.int64)), "no parameter 0"),
        (lambda b: b.tensor(0, "w", "f64", 2**62), "do not fit"),
        (lambda b: b.shard((4, 4), (4, 4), [((0,), (4,), 0, None)]), "axes"),
        (lambda b: b.shard_shape(3), "no shard 3"),
    ],
)
def test_wrong_arguments_are_usage_errors(call, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(reshard.UsageError, match=says) as caught:
        call(reshard.LayoutBuilder())
    assert caught.value.kind == "usage"
    assert isinstance(caught.value, ValueError)


def test_runs_of_shards_are_boxes() -> None:
    """W (3, 6), row-parallel over two, ZeRO-3 over two: the worked example of the reference."""
    builder = reshard.LayoutBuilder()
    w = builder.parameter("w", (3, 6), "f32")
    shards = [builder.shard((3, 6), (3, 3), [((0, 3 * tp), (3, 3), 0, None)]) for tp in range(2)]
    runs = []
    for dp in range(2):
        for tp in range(2):
            buffer = builder.tensor(dp * 2 + tp, "flat", "f32", 5)
            runs.append((w, shards[tp], buffer, 0, 5 * dp, min(9, 5 * dp + 5) - 5 * dp))
    builder.place_runs(numpy.array(runs, dtype=numpy.int64))
    layout = builder.build()
    found = [(piece.rank, piece.origin, piece.offset, piece.shape) for piece in layout.pieces()]
    assert found == [
        (0, (0, 0), 0, (1, 3)),
        (0, (1, 0), 3, (1, 2)),
        (1, (0, 3), 0, (1, 3)),
        (1, (1, 3), 3, (1, 2)),
        (2, (1, 2), 0, (1, 1)),
        (2, (2, 0), 1, (1, 3)),
        (3, (1, 5), 0, (1, 1)),
        (3, (2, 3), 1, (1, 3)),
    ]


def test_a_run_past_its_shard_is_named() -> None:
    builder = reshard.LayoutBuilder()
    w = builder.parameter("w", (4,), "f32")
    shard = builder.shard((4,), (4,), [((0,), (4,), 0, None)])
    buffer = builder.tensor(3, "w", "f32", 9)
    builder.place_runs(numpy.array([[w, shard, buffer, 0, 2, 3]], dtype=numpy.int64))
    with pytest.raises(reshard.LayoutError, match="elements 2 to 5") as caught:
        builder.build()
    assert (caught.value.parameter, caught.value.rank, caught.value.expected) == ("w", 3, (4,))


def test_maps_in_a_view_cut_the_parameter() -> None:
    """A fused weight that a layer cuts as (3, 4, 2): q, k and v of four rows, two a rank."""
    view = (3, 4, 2)
    strides = [8, 2, 1]
    piece = {"shape": [3, 2, 2], "dest": [0, [4, 2, 1]]}
    ranks = {
        tp: {
            "shard_shape": [3, 2, 2],
            "pieces": [{**piece, "source": [4 * tp, strides], "locations": [tp]}],
        }
        for tp in range(2)
    }
    builder = reshard.LayoutBuilder()
    qkv = builder.parameter("qkv", (12, 2), "f32")
    shards = builder.shards("qkv", (12, 2), {"logical_shape": list(view), "ranks": ranks})
    assert [builder.shard_shape(shards[tp]) for tp in range(2)] == [[6, 2], [6, 2]]
    runs = [(qkv, shards[tp], builder.tensor(tp, "qkv", "f32", 12), 0, 0, 12) for tp in range(2)]
    builder.place_runs(numpy.array(runs, dtype=numpy.int64))
    whole = numpy.arange(24).reshape(view)
    held = {tp: numpy.full(12, -1) for tp in range(2)}
    for part in builder.build().pieces():
        assert part.shape[1] == 2 and part.strides[1] == 1
        for row in range(part.shape[0]):
            at = part.offset + row * 2
            held[part.rank][at : at + 2] = (part.origin[0] + row) * 2 + numpy.arange(2)
    for tp in range(2):
        assert held[tp].tolist() == whole[:, 2 * tp : 2 * tp + 2].ravel().tolist()


def test_a_map_that_is_no_view_is_refused() -> None:
    entry = {
        "logical_shape": [3, 8],
        "ranks": {0: {"shard_shape": [3, 8], "pieces": []}},
    }
    with pytest.raises(reshard.AffineMapError, match="no view") as caught:
        reshard.LayoutBuilder().shards("qkv", (4, 6), entry)
    assert (caught.value.kind, caught.value.parameter) == ("unsupported", "qkv")


def test_a_failing_policy_raises_its_own_error() -> None:
    def policy(request: reshard.Request) -> int:
        raise KeyError(request.parameter)

    with pytest.raises(KeyError, match="w"):
        reshard.plan(rows([9, 9]), rows([5, 5, 4, 4]), policy)


def test_casts_need_permission() -> None:
    source, target = rows([9, 9]), rows([5, 5, 4, 4], dtype="bf16")
    with pytest.raises(reshard.PlanError, match="permission") as caught:
        reshard.plan(source, target)
    assert (caught.value.kind, caught.value.expected, caught.value.found) == ("unsupported", "bf16", "f32")
    assert "cast=True" in str(caught.value.hint)
    plan = reshard.plan(source, target, cast=True)
    assert plan.cast
    assert plan.statistics.bytes_sent + plan.statistics.bytes_local == 72 * 2


def test_missing_parameters_offer_the_nearest() -> None:
    builder = reshard.LayoutBuilder()
    v = builder.parameter("w2", (18, 4), "f32")
    builder.place(v, builder.tensor(0, "w2", "f32", 72))
    with pytest.raises(reshard.PlanError, match="w2") as caught:
        reshard.plan(rows([9, 9]), builder.build())
    assert (caught.value.parameter, caught.value.hint) == ("w2", "w")


def test_what_only_the_source_has_is_told() -> None:
    builder = reshard.LayoutBuilder()
    for name in ("v", "w"):
        builder.place(builder.parameter(name, (18, 4), "f32"), builder.tensor(0, name, "f32", 72))
    source = builder.build()
    assert reshard.unused_parameters(source, rows([9, 9])) == ["v"]
    assert reshard.unused_parameters(source, source) == []


def test_schedules_bound_staging() -> None:
    plan = reshard.plan(rows([9, 9]), rows([5, 5, 4, 4]))
    schedule = plan.schedule(staging=128)
    # Rank 0 sends 64 bytes to rank 1; rank 1 sends 64 each to ranks 2 and 3: four messages of 32 at the busiest.
    assert (schedule.chunk, schedule.rounds, schedule.bound, schedule.messages) == (32, 4, 4, 6)
    sent = [sent for sent, _ in schedule.share(1).rounds if sent]
    assert sorted((message.peer, message.bytes) for message in sent) == [(2, 32), (2, 32), (3, 32), (3, 32)]
    with pytest.raises(reshard.ScheduleError) as caught:
        plan.schedule(staging=63)
    assert (caught.value.expected, caught.value.found) == (64, 63)


def test_planning_lets_other_threads_run() -> None:
    config = {**QWEN3, "num_hidden_layers": 400}
    source = reshard.Layout.autotp(config, "autotp:tp=2,dp=16,zero=3")
    target = reshard.Layout.autotp(config, "autotp:tp=8,copies=4")
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    reshard.plan(source, target)
    during = ticks - before
    done.set()
    thread.join()
    assert during > 0, "no other thread ran while planning"


@pytest.mark.parametrize(
    ("topology", "policy", "sent", "local"),
    [
        # Worked numbers of a published run, to the byte.
        ("autotp:tp=2,dp=4,zero=2", "lowest", 35_205_273_600, 5_029_324_800),
        ("autotp:tp=2,dp=4,zero=2", "balanced", 15_136_194_560, 25_098_403_840),
        ("autotp:tp=2,dp=4,zero=3", "balanced", 33_959_997_440, 6_274_600_960),
    ],
)
def test_bytes_of_a_published_run(topology: str, policy: str, sent: int, local: int) -> None:
    text = (Path(__file__).parents[3] / "crates/parallel/tests/data/Qwen3-8B.json").read_text()
    config = json.loads(text)
    source = reshard.Layout.autotp(config, topology)
    target = reshard.Layout.autotp(text, "autotp:tp=4,copies=2")
    assert (len(source.parameters), source.world) == (399, 8)
    plan = reshard.plan(source, target, policy)
    assert (plan.statistics.bytes_sent, plan.statistics.bytes_local) == (sent, local)


def test_unknown_topologies_and_options() -> None:
    with pytest.raises(reshard.UsageError, match="speed"):
        reshard.Layout.autotp(QWEN3, "autotp:tp=2,speed=9")
    with pytest.raises(reshard.UsageError, match="speed"):
        reshard.Layout.autotp(QWEN3, "autotp:tp=2", speed=9)
    with pytest.raises(reshard.UsageError, match="momentum"):
        reshard.Layout.autotp(QWEN3, "autotp:tp=2", state="momentum")
    with pytest.raises(reshard.ReshardError):
        reshard.Layout.autotp("{", "autotp:tp=2")
