"""Small inputs distilled from public bug reports, as a caller of the Python package meets them.

One test for each case of tests/cases.txt that has something to do here, named after its number; why
the others have not, ELSEWHERE says.
"""

import mmap
import re
from pathlib import Path

import kvcanary
import numpy as np
import pytest
from cases_world import BF16, WRITABLE, Can, X, ids, raw, refused
from frameworks import label
from kvcanary import Cause, Reason, sglang
from ml_dtypes import float8_e4m3fn, float8_e5m2
from oracle import rotate, tolerance
from test_guard import Engine
from test_sglang import world as sglang_world

TOKEN, POS = Reason.VERIFY_TOKEN, Reason.VERIFY_POSITION
CHAIN, KVHASH, NEVER = Reason.VERIFY_CHAIN_HASH, Reason.VERIFY_REAL_KV_HASH, Reason.NEVER_STAMPED
A, B = 1, 2
CAN_SLOTS, CAN_TOKENS = [4, 5, 6, 7, 12, 13], [11, 12, 13, 14, 15, 16]
EIGHT_SLOTS, EIGHT_TOKENS = [4, 5, 6, 7, 12, 13, 14, 15], list(range(11, 19))

ELSEWHERE = {
    "B95": "saved caches are read and compared by the command, not by the package",
}

frameworks = pytest.mark.parametrize("framework", WRITABLE, ids=label)


@pytest.fixture(params=WRITABLE, ids=label)
def can(request):
    return Can(request.param)


def test_every_case_has_a_test_or_a_reason():
    lines = (Path(__file__).parents[1] / "cases.txt").read_text().splitlines()
    listed = {line.split()[0] for line in lines if not line.startswith("#")}
    tested = {m[1].upper() for m in (re.match(r"test_(b\d+)_", name) for name in globals()) if m}
    assert listed == tested | set(ELSEWHERE)
    assert not tested & set(ELSEWHERE)


# ---- the write path: padding, widths, shapes ----


@frameworks
def test_b01_negative_slots_write_nothing(framework):
    x = X(tokens=8)
    untouched = x.k_pool[31].tobytes()
    for width in (np.int32, np.int64):
        for tail in ([-1, -1, -1, -1], [-2, -1, np.iinfo(width).min, -1]):
            report = kvcanary.Report()
            slots = np.array([4, 5, 6, 7, *tail], width)
            _, k_rot, k_pool, v_pool = x.run(framework, slots=slots, report=report)
            assert (report.rows_written, report.rows_skipped) == (4, 4)
            assert k_pool[4:8].tobytes() == k_rot[:4].tobytes()
            assert v_pool[4:8].tobytes() == x.v[:4].tobytes()
            for pool in (k_pool, v_pool):
                assert {row.tobytes() for row in np.delete(pool, range(4, 8), 0)} == {untouched}


@frameworks
def test_b03_padding_rows_may_share_the_reserved_slot(framework):
    x = X()
    x.k[1] = x.k[3] = np.nan
    for width in (np.int32, np.int64):
        slots = np.array([4, 0, 5, 0], width)
        options = {"slots": slots, "check_duplicates": True, "check_finite": True}
        _, k_rot, k_pool, v_pool = x.run(framework, reserved_slot=0, **options)
        assert k_pool[[4, 5]].tobytes() == k_rot[[0, 2]].tobytes()
        assert v_pool[0].tobytes() == x.v_pool[0].tobytes()
        assert k_pool[0].tobytes() == x.k_pool[0].tobytes()
        x.refused("pool-slot-duplicate", "E_SLOT_DUPLICATE", 3, "Look at the allocator",
                  slots=slots, check_duplicates=True)  # fmt: skip


@frameworks
def test_b05_fewer_slots_than_rows(framework):
    x = X(tokens=8)
    slots = np.arange(5) + 4
    x.refused("positions-slots-one-entry-per-token", "E_LENGTH", slots=slots,
              hint="positions has 8 entries, slots 5, the call needs 8; with padded rows pass n_valid.")  # fmt: skip
    _, k_rot, k_pool, _ = x.run(framework, slots=slots, n_valid=5)
    assert k_pool[4:9].tobytes() == k_rot[:5].tobytes()
    assert k_pool[9:].tobytes() == x.k_pool[9:].tobytes()


def test_b07_a_reserved_slot_in_a_live_request_is_slot_range():
    can = Can(reserved_slot=0)
    can.stamp(A, [0, 4, 5], CAN_TOKENS[:3], clean=False)
    assert not can.records[0].any()
    assert can.verify(A, 3) == {0: Reason.SLOT_RANGE}
    assert can.found[0].slot == 0
    # SGLang's kernels pass over slot 0 without a word, and so do those that stand in for them.
    context, write, verify = sglang_world(np.array)
    write["out_cache_loc"][0] = 0
    verify["plan"].verify_slot_indices[0] = 0
    sglang.launch_canary_write_kernel(**write)
    sglang.launch_canary_verify_kernel(**verify)
    assert 0 not in context.violation_ring[: context.violation_write_index[0], 1].tolist()


def test_b09_a_latent_row_beyond_two_gigabytes():
    rows = 3728272
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, rows * 576, flags)  # only what is written becomes memory
    pool = np.frombuffer(memory, np.uint8).view(float8_e4m3fn).reshape(rows, 1, 576)
    x = X(tokens=2, hq=1, dim=576)
    x.v = x.v_pool = None
    x.give = lambda array: array
    small = np.zeros((2, 1, 576), float8_e4m3fn)
    options = {"rotary_dim": 64, "rotary_offset": 512, "q_rotary_offset": 512}
    x(slots=np.arange(2), k_pool=small, **options)
    x(slots=ids(rows - 2, rows - 1), k_pool=pool, **options)
    assert pool[-2:].tobytes() == small.tobytes() and not pool[:2].view(np.uint8).any()
    with refused("pool-slot-out-of-range", "E_SLOT_RANGE", 1, "this pool's numbering",
                 [small], IndexError):  # fmt: skip
        x(slots=ids(rows - 2, rows - 1), k_pool=pool[:-1], **options)


@frameworks
def test_b13_slots_are_read_in_the_width_they_have(framework):
    x = X()
    wide = ids(5, 9, 13, 17)
    outs = [x.run(framework, slots=wide.astype(width)) for width in (np.int64, np.int32)]
    assert [a.tobytes() for a in outs[0]] == [a.tobytes() for a in outs[1]]
    assert outs[0][2][[5, 9, 13, 17]].tobytes() == outs[0][1].tobytes()
    # Read in the other width they are too many, too few, or no slots.
    for wrong in (wide.view(np.int32), wide.astype(np.int32).view(np.int64)):
        x.refused("positions-slots-one-entry-per-token", "E_LENGTH", hint="the call needs 4",
                  slots=wrong)  # fmt: skip
    x.refused("pool-slot-out-of-range", "E_SLOT_RANGE", 0, builtin=IndexError,
              slots=ids(38654705669, 5, 6, 7))  # fmt: skip
    x.refused("index-dtype-unsupported", "E_DTYPE", builtin=TypeError, slots=wide.astype(float),
              hint="Describe slots with the type it really has")  # fmt: skip


@frameworks
def test_b14_widths_of_positions_and_slots_are_independent(framework):
    x = X()
    outs = {
        tuple(a.tobytes() for a in x.run(
            framework, positions=ids(3, 4, 5, 6).astype(one), slots=x.slots.astype(other)))
        for one in (np.int32, np.int64)
        for other in (np.int32, np.int64)
    }  # fmt: skip
    assert len(outs) == 1


@frameworks
def test_b18_pools_that_interleave_k_and_v(framework):
    x = X()
    plain = x.run(framework)
    both = framework.give(np.full((32, 2, 1, 16), 0xA5, np.uint8).view(BF16))
    x.give = lambda array: (
        array if array is halves[0] or array is halves[1] else framework.give(array)
    )
    halves = both[:, 0], both[:, 1]
    x(k_pool=halves[0], v_pool=halves[1])
    both = framework.back(both)
    assert both[:, 0].tobytes() == plain[2].tobytes()
    assert both[:, 1].tobytes() == plain[3].tobytes()
    x.refused("last-dimension-not-contiguous", "E_STRIDE", hint="Transpose back or copy k_pool",
              k_pool=np.zeros((32, 8, 1), BF16).transpose(0, 2, 1)[:, :, ::2].repeat(2, 2)[:, :, ::-1])  # fmt: skip


@frameworks
@pytest.mark.parametrize("dim", [80, 96, 112])
@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_b22_head_sizes_that_are_no_power_of_two(framework, dim, style):
    x = X(tokens=3, dim=dim, pool=8)
    x.positions = ids(1, 100, 3000)
    x.slots = ids(5, 6, 7)
    q_rot, k_rot, k_pool, v_pool = x.run(framework, style=style)
    for given, got in ((x.q, q_rot), (x.k, k_rot)):
        exact, norm = rotate(given, x.positions, dim, 1e4, style)
        assert (np.abs(got.astype(float) - exact) <= tolerance(exact, norm, "bfloat16")).all()
    assert k_pool[5:].tobytes() == k_rot.tobytes() and v_pool[5:].tobytes() == x.v.tobytes()
    assert k_pool[:5].tobytes() == x.k_pool[:5].tobytes()


def test_b23_a_pool_of_another_layer():
    x = X(hq=4, hkv=4)
    pools = X(hq=3, hkv=3)
    x.refused("k-pool-incompatible-shape", "E_SHAPE", k_pool=pools.k_pool, v_pool=pools.v_pool,
              hint="k has 4 heads of 8 elements, k_pool has 3 heads of 8")  # fmt: skip


@frameworks
@pytest.mark.parametrize("hq", [2, 1])
def test_b24_a_single_kv_head_is_rotated(framework, hq, rng):
    x = X(tokens=2, hq=hq, dim=128, dtype=np.dtype(np.float32))
    angles = rng.uniform(0, 6, (16, 64))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    x.positions = ids(3, 9)
    rope = kvcanary.rope_init(128, cos_sin_cache=framework.give(np.concatenate([cos, sin], 1)))
    _, k_rot, k_pool, _ = x.run(framework, rope=rope)
    first, second = x.k[..., :64], x.k[..., 64:]
    c, s = (t[x.positions][:, None].astype(float) for t in (cos, sin))
    exact = np.concatenate([first * c - second * s, first * s + second * c], 2)
    norm = np.tile(np.hypot(first, second).astype(float), 2)
    assert (np.abs(k_rot - exact) <= tolerance(exact, norm, "float32")).all()
    assert k_pool[4:6].tobytes() == k_rot.tobytes() != x.k.tobytes()


@frameworks
def test_b26_two_slots_packed_to_a_row(framework):
    pages = framework.give(np.zeros((16, 2, 8), np.float32))
    records = framework.give(np.zeros((32, 4), np.int64))
    with refused("source-too-few-slots", "E_CONFIG", 0, "record_count"):
        kvcanary.Group(records, sources=[kvcanary.Source(pages, id=0)])
    kvcanary.Group(records, sources=[kvcanary.Source(pages, id=0, page_size=2)])


@frameworks
@pytest.mark.parametrize(
    ("dtype", "codes"),
    [
        (float8_e4m3fn, [0x7F, 0xFF, 0x7E, 0xFE, 0x7E, 0x7E, 0x7E, 0x80, 0x00, 0x01, 0x02, 0x38]),
        (float8_e5m2, [0x7F, 0xFF, 0x7B, 0xFB, 0x5F, 0x5F, 0x5F, 0x80, 0x14, 0x18, 0x1A, 0x3C]),
    ],
)
def test_b30_float8_keeps_nan_and_saturates(framework, dtype, codes):
    if framework.name == "torch" and not hasattr(framework.torch, np.dtype(dtype).name):
        pytest.skip("torch before 2.1 has no float8")
    nan, inf = np.float32(np.nan), np.inf
    values = [nan, -nan, inf, -inf, 448, 464, 465, -0.0, 2.0**-10, 2.0**-9, 2.0**-9 * 1.5, 1.0]
    x = X(tokens=1, dim=12, dtype=np.dtype(np.float32))
    x.k[0, 0] = values
    pool = np.zeros((32, 1, 12), dtype)
    _, _, k_pool, _ = x.run(framework, k_pool=pool, v_pool=pool.copy(), rotary_dim=0)
    got = k_pool[4, 0].view(np.uint8).tolist()
    assert [c & 0x7F if i < 2 else c for i, c in enumerate(got)] == [
        c & 0x7F if i < 2 else c for i, c in enumerate(codes)]  # fmt: skip


# ---- the write path: positions and frequencies ----


@frameworks
def test_b35_positions_beyond_the_table(framework):
    x = X()
    rope = kvcanary.rope_init(8, cos_sin_cache=np.ones((4096, 8), np.float32))
    hint = "a cos_sin_cache must have a row for every position"
    x.refused("position-out-of-range", "E_POSITION_RANGE", 2, hint, IndexError,
              positions=ids(4094, 4095, 4096, -1), rope=rope)  # fmt: skip
    x.refused("position-out-of-range", "E_POSITION_RANGE", 3, hint, IndexError,
              positions=ids(4094, 4095, 0, -1), rope=rope)  # fmt: skip
    seven = np.full_like(x.q, 7), np.full_like(x.k, 7)
    outs = [framework.give(array) for array in seven]
    x.run(framework, positions=ids(0, 1, 10**9, 2), slots=ids(4, 5, -1, 6), rope=rope,
          q_out=outs[0], k_out=outs[1])  # fmt: skip
    for out, plain in zip(outs, seven, strict=True):
        assert framework.back(out)[2].tobytes() == plain[2].tobytes()


@frameworks
def test_b37_pairs_of_each_style(framework):
    x = X(tokens=1, dtype=np.dtype(np.float32))
    x.k[:] = [1, 0, 0, 0, 0, 0, 0, 0]
    for style, turned in (("neox", [0, 4]), ("interleaved", [0, 1])):
        _, k_rot, _, _ = x.run(framework, positions=ids(1), style=style)
        assert np.flatnonzero(k_rot).tolist() == turned
    x.refused("option-unknown", "E_CONFIG", hint="Spell it as listed", style="gptj")
    x.refused("rope-style-unknown", "E_CONFIG", hint="KVC_ROPE_INTERLEAVED (1)", style=2)


@frameworks
def test_b38_what_does_not_rotate_is_copied(framework):
    x = X(dim=16)
    x.positions = ids(1, 2, 3, 4)
    for rotary in (4, 0, 16):
        _, k_rot, k_pool, _ = x.run(framework, rotary_dim=rotary)
        exact, norm = rotate(x.k, x.positions, rotary, 1e4, "neox")
        assert k_pool[4:8, :, rotary:].tobytes() == x.k[..., rotary:].tobytes()
        assert (np.abs(k_rot.astype(float) - exact) <= tolerance(exact, norm, "bfloat16")).all()
        assert k_pool[4:8].tobytes() == k_rot.tobytes()
    x.refused("rotary-dim-invalid", "E_SHAPE", hint="rotary_dim", rotary_dim=3)
    x.refused("rotary-dim-invalid", "E_SHAPE", hint="rotary_dim", rotary_dim=-2)
    x.refused("rotary-range-exceeds-head", "E_SHAPE", hint="inside the head", rotary_dim=18)


@frameworks
def test_b39_k_in_place_is_what_the_pool_holds(framework):
    x = X()
    x.give = framework.give
    q, k, v = (framework.give(a) for a in (x.q, x.k, x.v))
    x.give = lambda array: (
        array if array is q or array is k or array is v else framework.give(array)
    )
    positions, slots = ids(1, 2, 3, 4), ids(4, 5, -1, 7)
    out = x(q=q, k=k, v=v, q_out=q, k_out=k, positions=positions, slots=slots)
    assert out[0] is q and out[1] is k
    k_pool = framework.back(out[2])
    assert k_pool[[4, 5, 7]].tobytes() == framework.back(k)[[0, 1, 3]].tobytes()
    for given, array in ((x.q, q), (x.k, k)):
        turned = framework.back(array)
        assert all(given[t].tobytes() != turned[t].tobytes() for t in (0, 1, 3))
    assert framework.back(v).tobytes() == x.v.tobytes()


@frameworks
def test_b40_phases_are_exact_far_out(framework):
    positions = ids(255, 257, 4095, 15962, 131071, 1048575)
    for dtype, ulp in ((np.dtype(np.float32), 2.0**-23), (BF16, 2.0**-7)):
        x = X(tokens=6, dim=128, dtype=dtype)
        x.k[:] = np.eye(1, 128).astype(dtype)
        _, k_rot, _, _ = x.run(framework, positions=positions)
        wrong = np.abs(k_rot[:, 0, 0].astype(float) - np.cos(positions.astype(float)))
        assert (wrong <= positions * 2.0**-23 + ulp).all()
        assert (wrong <= 4 * ulp).all()  # what this library promises: no worse at 1048575


@frameworks
def test_b41_the_caller_s_table_is_only_read(framework):
    x = X()
    table = framework.give(np.ones((16, 8), np.float32))
    rope = kvcanary.rope_init(8, cos_sin_cache=table)
    outs = [[a.tobytes() for a in x.run(framework, rope=rope)] for _ in range(2)]
    assert outs[0] == outs[1] and (framework.back(table) == 1).all()
    with refused("cos-sin-cache-must-be-float32", "E_DTYPE", -1, "2e-3", builtin=TypeError):
        kvcanary.rope_init(8, cos_sin_cache=framework.give(np.ones((16, 8), BF16)))


@pytest.mark.parametrize("style", ["neox", "interleaved"])
@pytest.mark.parametrize("heads", [(1, 1), (8, 1), (32, 8), (7, 7)])
def test_b42_every_shape_is_right_however_it_is_split(heads, style):
    for tokens, dim in ((1, 64), (2, 128), (33, 256), (33, 64), (300, 64)):
        x = X(tokens=tokens, hq=heads[0], hkv=heads[1], dim=dim, pool=tokens + 4)
        options = {"style": style, "positions": x.positions * 37}
        kvcanary.set_num_threads(1)
        alone = x(**options)
        for given, got in ((x.q, alone[0]), (x.k, alone[1])):
            exact, norm = rotate(given, x.positions * 37, dim, 1e4, style)
            assert (np.abs(got.astype(float) - exact) <= tolerance(exact, norm, "bfloat16")).all()
        kvcanary.set_num_threads(3)
        assert [a.tobytes() for a in x(**options)] == [a.tobytes() for a in alone]
        one_by_one = [x(**{n: getattr(x, n)[t : t + 1] for n in ("q", "k", "v", "slots")},
                        style=style, positions=x.positions[t : t + 1] * 37)
                      for t in range(min(tokens, 3))]  # fmt: skip
        for t, out in enumerate(one_by_one):
            assert out[0].tobytes() == alone[0][t].tobytes()
            assert out[2][4 + t].tobytes() == alone[2][4 + t].tobytes()


@frameworks
def test_b82_a_slot_above_the_pool(framework):
    x = X()
    x.refused("pool-slot-out-of-range", "E_SLOT_RANGE", 2, "larger ones are errors", IndexError,
              slots=ids(4, 31, 32, 2**31 - 1))  # fmt: skip
    _, k_rot, k_pool, _ = x.run(framework, slots=ids(4, 31, 5, 6))
    assert k_pool[31].tobytes() == k_rot[1].tobytes()


# ---- records: positions ----


def test_b32_draft_positions_one_too_far(can):
    slots, tokens = list(range(4, 13)), list(range(1, 10))
    can.stamp(A, slots[:7], tokens[:7])
    can.stamp(A, slots[7:], tokens[7:], prefix=7, positions=[8, 9])
    assert can.verify(A, 9) == {7: POS, 8: POS}


def test_b33_a_chunk_at_the_wrong_offset(can):
    for wrong in ([0, 1, 2, 3], [8, 9, 10, 11]):
        can.stamp(A, EIGHT_SLOTS[:4], EIGHT_TOKENS[:4])
        can.stamp(A, EIGHT_SLOTS[4:], EIGHT_TOKENS[4:], prefix=4, positions=wrong)
        assert can.verify(A, 8) == dict.fromkeys(range(4, 8), POS)
    x = X(tokens=8)
    whole = x()[2]
    half = X(tokens=8)
    for part in (slice(0, 4), slice(4, 8)):
        half(**{n: getattr(half, n)[part] for n in ("q", "k", "v", "positions", "slots")},
             k_pool=half.k_pool, v_pool=half.v_pool)  # fmt: skip
    half.give = lambda array: array
    for part in (slice(0, 4), slice(4, 8)):
        half(**{n: getattr(half, n)[part] for n in ("q", "k", "v", "positions", "slots")})
    assert half.k_pool.tobytes() == whole.tobytes()


# ---- records: NaN ----


@frameworks
def test_b44_nan_in_slots_that_were_never_written(framework):
    x = X(tokens=13)
    nans = np.full_like(x.k_pool, np.nan)
    x.give = framework.give
    _, _, k_pool, v_pool = x(slots=np.arange(13), k_pool=nans, v_pool=nans)
    assert np.isnan(framework.back(k_pool)[13:].astype(float)).all()
    sources = [kvcanary.Source.from_pool(p, i) for i, p in enumerate((k_pool, v_pool))]
    can = Can(framework, slots=32, sources=sources)
    can.stamp(A, list(range(13)), list(range(50, 63)))
    assert can.verify(A, 13, check_finite=True) == {}
    scan = kvcanary.scan_finite(can.group, framework.give(ids(13, 14, 15)))
    assert (scan.nonfinite_count, scan.first_slot) == (2 * 3 * 8, 13)
    k_pool[5, 0, 3] = np.nan
    can.stamp(A, list(range(13)), list(range(50, 63)))  # even stamped so
    assert can.verify(A, 13, check_finite=True) == {5: Reason.NONFINITE}
    scan = kvcanary.scan_finite(can.group, framework.give(np.arange(13)))
    assert (scan.first_slot, scan.first_source_id, scan.first_head, scan.first_dim) == (5, 0, 0, 3)


# ---- records: the life of a slot ----


def test_b47_late_bytes_of_the_old_owner(can):
    can.stamp(B, CAN_SLOTS[:4], CAN_TOKENS[:4])
    can.pools[0][5] += 1
    assert can.verify(B, 4) == {1: KVHASH}
    assert can.found[0].owner_request == 100 + B and can.valid_prefix == 1
    engine = Engine()
    engine.table[2, :4] = CAN_SLOTS[:4]
    engine.step(2, 200, 0, CAN_TOKENS[:4])
    engine.pools[0][0][5] += 1
    found = engine.step(2, 200, 4, [])
    assert [(f.violation.slot, f.cause, f.victim_request) for f in found] == [
        (5, Cause.BYTES_DAMAGED, 200)]  # fmt: skip


def test_b48_a_stale_stamped_write(can):
    can.stamp(B, CAN_SLOTS[:4], CAN_TOKENS[:4])
    can.stamp(A, [5], [77], prefix=9, write_chain_in=4711)
    assert can.verify(B, 4) == {1: TOKEN | POS | CHAIN, 2: CHAIN}
    assert (can.found[0].owner_request, can.found[0].owner_step) == (100 + A, 2)


def test_b53_a_page_with_two_owners(can):
    can.stamp(A, [4, 5, 6], [1, 2, 3])
    can.stamp(B, [10, 5], [1, 9])
    assert can.verify(A, 3) == {1: TOKEN, 2: CHAIN}
    assert can.verify(B, 2) == {}
    both = kvcanary.Requests(
        req_pool_indices=can.give(ids(A, B)), prefix_lens=can.give(ids(3, 2)),
        extend_seq_lens=can.give(ids(0, 0)),
    )  # fmt: skip
    compare = {"expected_tokens": can.give(can.expected), "valid_lens": can.give(ids(3, 2))}
    kvcanary.plan(can.plan, requests=both, req_to_token=can.give(can.table), **compare)
    with refused("check-plan-slot-claimed-twice", "E_SLOT_DUPLICATE", 4, "requests 0 and 1"):
        kvcanary.check_plan(can.plan, can.group)
    engine = Engine()
    engine.table[1, :3], engine.table[2, :2] = [4, 5, 6], [10, 5]
    engine.step(1, 100, 0, [1, 2, 3])
    engine.step(2, 200, 0, [1, 9])
    found = engine.step(1, 100, 3, [])
    # Without expected tokens the victim's next slot tells: its chain does not follow from 9.
    assert [(f.violation.slot, f.victim_request) for f in found] == [(6, 100)]


def test_b54_a_stale_mapping_names_a_live_window_slot(can):
    mapping = np.zeros(32, np.int64)
    mapping[9] = mapping[20] = 3
    can.table[A, :1], can.table[B, :2] = [9], [21, 20]
    mapping[21] = 4
    owner = can.requests(B, 2, 0)
    kvcanary.plan(can.plan, requests=owner, req_to_token=can.give(can.table),
                  full_to_swa_index_mapping=can.give(mapping))  # fmt: skip
    with refused("check-plan-window-slot-claimed-twice", "E_SLOT_DUPLICATE", 20, "to 0 when"):
        kvcanary.check_plan(can.plan, can.group, mapping=can.give(mapping))
    # Had nobody looked: the slot is given away, and who owns 20 sees it.
    can.stamp(B, [4, 3], [21, 22])
    can.stamp(A, [3], [31])
    assert can.verify(B, 2) == {1: TOKEN | POS | CHAIN}


def test_b56_a_slot_handed_on_without_being_written(can):
    can.stamp(A, [4], [11])
    can.table[B, :2], can.expected[B, :2] = [4, 5], [11, 12]
    assert can.verify(B, 2) == {1: NEVER}
    assert can.valid_prefix == 1


def test_b67_a_load_that_failed_voids_its_slot(can):
    can.stamp(B, [4, 5, 6], CAN_TOKENS[:3])
    can.stamp(A, [4, 5, 6], CAN_TOKENS[:3])
    kvcanary.void(can.group, can.give(ids(5)))
    assert can.verify(A, 3) == {1: NEVER, 2: CHAIN}
    assert can.found[0].owner_request == 100 + A


def test_b73_a_prefill_cut_short(can):
    can.stamp(A, EIGHT_SLOTS[:5], EIGHT_TOKENS[:5])
    can.table[A, :8], can.expected[A, :8] = EIGHT_SLOTS, EIGHT_TOKENS
    assert can.verify(A, 8) == {5: NEVER, 6: NEVER, 7: NEVER}
    assert can.valid_prefix == 5


# ---- records: identity ----


def test_b59_an_adapter_s_prefix_is_not_the_base_model_s(can):
    lora, salt = 0x6C6F7261580001, 0x73616C74580001
    can.stamp(A, [4, 5, 6], [5, 6, 7], namespaces=lora)
    assert can.verify(A, 3, namespaces=lora) == {}
    assert can.verify(A, 3, namespaces=salt) == {0: CHAIN}
    assert can.verify(A, 3) == {0: CHAIN}
    can.stamp(A, [4, 5, 6], [5, 6, 7])
    assert can.verify(A, 3) == {}  # out of reach: no namespace on either side


def test_b60_images_with_equal_low_bits(can):
    slots = [4, 5, 6, 7, 12]
    can.stamp(A, slots, [1, 32000, 32000, 32000, 2], namespaces=0x0001ABCD)
    assert can.verify(A, 5, namespaces=0x0001ABCD) == {}
    assert can.verify(A, 5, namespaces=0x0002ABCD) == {0: CHAIN}
    can.stamp(A, slots, [1, *[0x1ABCD] * 3, 2], expect=[1, *[0x2ABCD] * 3, 2])
    assert can.verify(A, 5) == dict.fromkeys((1, 2, 3), TOKEN)


def test_b61_tokens_are_compared_although_the_chain_agrees(can):
    can.stamp(A, [4, 5], [1, 2])
    can.records[4, 0], can.records[5, 0] = 3, 4
    after = kvcanary.chain_extend(kvcanary.chain_start(), [3])
    can.records[5, 2] = after - 2**64 if after >= 2**63 else after
    assert can.verify(A, 2) == {0: TOKEN, 1: TOKEN}


# ---- records: copies and translation ----


def test_b68_every_registered_source_is_covered():
    index = np.arange(64 * 8, dtype=np.uint8).reshape(64, 8)
    apart, together = 1 << 32, -1
    for sources, reasons, source_id in (
        ("kv", {}, None),
        ("i", KVHASH, apart),
        ("kvi", KVHASH, together),
    ):
        can = Can()
        made = {
            "k": kvcanary.Source.from_pool(can.pools[0], 0),
            "v": kvcanary.Source.from_pool(can.pools[1], 1),
            "i": kvcanary.Source(index, id=apart),
        }
        can.group = kvcanary.Group(can.records, sources=[made[name] for name in sources])
        can.stamp(A, [4, 5, 6, 7], CAN_TOKENS[:4])
        for pool in can.pools:  # K and V move, the index is forgotten
            pool[20:24] = pool[4:8]
        kvcanary.copy(can.group, np.arange(4, 8), np.arange(20, 24))
        can.table[A, :4] = [20, 21, 22, 23]
        assert can.verify(A, 4) == (dict.fromkeys(range(4), reasons) if reasons else {})
        assert {v.source_id for v in can.found} == ({source_id} if reasons else set())


def test_b75_draft_slots_are_not_consecutive(can):
    can.stamp(A, [10, 11], CAN_TOKENS[:2])
    can.stamp(B, [12, 13], [21, 22])
    can.stamp(A, [12, 13], CAN_TOKENS[2:4], prefix=2)
    can.table[A, :4] = [10, 11, 40, 41]
    assert can.verify(A, 4) == {2: NEVER, 3: NEVER}
    assert can.verify(B, 2)[0] == TOKEN | POS | CHAIN


def test_b76_a_slot_map_that_is_shifted_or_short(can):
    can.stamp(A, EIGHT_SLOTS[:4], EIGHT_TOKENS[:4])
    can.stamp(A, [14, 15, -1, -1], EIGHT_TOKENS[4:], prefix=4)
    can.table[A, :8] = EIGHT_SLOTS
    assert can.verify(A, 8) == {4: NEVER, 5: NEVER, 6: TOKEN | POS | CHAIN, 7: TOKEN | POS}
    four = can.give(ids(*EIGHT_TOKENS[:4]))
    with refused("canary-tensor-length", "E_LENGTH", -1, "Pass slots with 4 entries",
                 [can.records]):  # fmt: skip
        kvcanary.write(can.group, can.plan, four, four, can.give(ids(14, 15)))


def test_b78_scheduler_blocks_taken_for_kernel_blocks(can):
    can.stamp(B, list(range(8, 16)), list(range(21, 29)))  # logical block 1
    can.stamp(A, list(range(24, 28)), CAN_TOKENS[:4])  # logical block 3 = kernel blocks 6 and 7
    assert can.verify(A, 4) == {}
    can.table[A, :4] = range(12, 16)  # kernel block 3
    assert can.verify(A, 4)[0] == TOKEN | POS | CHAIN


def test_b80_a_chunk_in_the_first_pages(can):
    can.stamp(A, EIGHT_SLOTS[:4], EIGHT_TOKENS[:4])
    can.stamp(A, EIGHT_SLOTS[:4], EIGHT_TOKENS[4:], prefix=4)
    can.table[A, :8], can.expected[A, :8] = EIGHT_SLOTS, EIGHT_TOKENS
    found = can.verify(A, 8)
    assert found[0] == TOKEN | POS | CHAIN
    assert [found[i] for i in range(4, 8)] == [NEVER] * 4


# ---- records: windows ----


def test_b84_a_ring_of_slots_around_the_window(can):
    for steps in ([3, 1, 1], [3, 3]):
        length = 0
        for count in steps:
            slots = [4 + (length + i) % 4 for i in range(count)]
            can.stamp(A, slots, [11 + length + i for i in range(count)], prefix=length)
            length += count
            before = can.ring.totals().slots_run
            assert can.verify(A, length, window=4) == {}
            assert can.ring.totals().slots_run - before == min(length, 4)


def test_b86_only_the_window_is_looked_at(can):
    can.stamp(A, CAN_SLOTS, CAN_TOKENS)
    can.stamp(B, [4], [31])  # position 0 of A: outside
    assert can.verify(A, 6, window=4) == {}
    can.stamp(B, [7], [31])  # position 3: inside
    assert can.verify(A, 6, window=4) == {3: TOKEN | POS | CHAIN, 4: CHAIN}
    assert can.valid_prefix == 3


def test_b87_released_window_slots_offered_for_reuse(can):
    can.stamp(A, EIGHT_SLOTS, EIGHT_TOKENS)
    kvcanary.void(can.group, can.give(ids(4, 5, 6, 7)))
    assert can.verify(A, 8) == {0: NEVER, 1: NEVER, 2: NEVER, 3: NEVER, 4: CHAIN}
    chain = kvcanary.chain_extend(kvcanary.chain_start(), EIGHT_TOKENS[:4])
    chain = chain - 2**64 if chain >= 2**63 else chain
    assert can.verify(A, 8, start=4, verify_chain_in=chain) == {}
    assert can.verify(A, 8, start=4, verify_chain_in=chain + 1) == {4: CHAIN}


# ---- tokens ----


@frameworks
@pytest.mark.parametrize("bs", [0, 1, 511, 512, 513, 4096])
def test_b88_scatter_takes_any_batch(framework, bs):
    lengths = np.full(bs, 2)
    lengths[:1], lengths[2:3], lengths[3:4] = 0, 4, 5  # none, a full row, one too many
    flat = np.arange(lengths.sum()) + 2**31 - 1 - lengths.sum()
    offsets, rows = np.concatenate([[0], lengths.cumsum()]).astype(np.int64), np.arange(bs) + 1
    report = kvcanary.Report()
    given = {"flat_in": flat, "offsets": offsets, "req_pool_indices": rows}
    arrays = {name: framework.give(array) for name, array in given.items()}
    before = np.full((bs + 2, 4), -7, np.int32)
    table = framework.give(before)
    out = framework.back(
        kvcanary.scatter_req_token_ids(**arrays, pool_out=table, report=report))  # fmt: skip
    wanted = before.copy()
    for row in range(1, bs + 1):
        tokens = flat[offsets[row - 1] : offsets[row]][:4]
        wanted[row, : len(tokens)] = tokens
    assert out.tolist() == wanted.tolist()
    assert report.tokens_truncated == (1 if bs > 3 else 0)
    if bs >= 512:
        with refused("sglang-scatter-batch-max", "E_LENGTH", -1, "at most 511 requests"):
            sglang.launch_scatter_req_token_ids_kernel(**arrays, pool_out=table)
    if len(flat):
        flat[-1] = 2**31
        arrays["flat_in"] = framework.give(flat)
        with refused("scatter-token-out-of-range", "E_TOKEN_RANGE", len(flat) - 1, "'narrow'",
                     [table]):  # fmt: skip
            kvcanary.scatter_req_token_ids(**arrays, pool_out=table)


def test_b90_a_wrong_token_shows_against_an_independent_source(can):
    can.stamp(A, [4, 5, 6], [11, 99, 13], expect=[11, 12, 13])
    assert can.verify(A, 3) == {1: TOKEN}
    can.expected[A, :3] = [11, 99, 13]  # from the same ring: of no use
    assert can.verify(A, 3) == {}
    assert can.verify(A, 3, check_tokens=False) == {}


@frameworks
def test_b91_placeholders(framework):
    can = Can(framework)
    can.stamp(A, [4, 5, 6], [101, -1, -1], expect=[101, 102, -1])
    assert can.verify(A, 3) == {1: TOKEN}
    assert (can.found[0].stored_token, can.found[0].expected_token) == (-1, 102)
    table = framework.give(np.zeros((2, 4), np.int32))
    arrays = {
        "flat_in": framework.give(ids(101, -1, -1)),
        "offsets": framework.give(ids(0, 3)),
        "req_pool_indices": framework.give(ids(1)),
        "pool_out": table,
    }
    with refused("scatter-token-placeholder", "E_TOKEN_RANGE", 1, "allow_placeholder",
                 [table]):  # fmt: skip
        kvcanary.scatter_req_token_ids(**arrays)
    kvcanary.scatter_req_token_ids(**arrays, allow_placeholder=True)
    assert table[1].tolist() == [101, -1, -1, 0]


def test_b92_empty_batches(can):
    give, none = can.give, ids()
    can.stamp(A, CAN_SLOTS, CAN_TOKENS)
    before = raw(can.records)
    empty = kvcanary.Requests(
        req_pool_indices=give(none), prefix_lens=give(none), extend_seq_lens=give(none))  # fmt: skip
    can.planned(empty, False)
    assert (int(can.plan.verify_num_valid[0]), int(can.plan.write_num_valid_reqs[0])) == (0, 0)
    kvcanary.check_plan(can.plan, can.group)
    kvcanary.write(can.group, can.plan, give(none), give(none), give(none), requests=empty)
    kvcanary.verify(can.group, can.plan, requests=empty, ring=can.ring, valid_prefix=give(none))
    kvcanary.void(can.group, give(none))
    kvcanary.copy(can.group, give(none), give(none))
    assert len(kvcanary.fingerprint(can.group, give(none))) == 0
    assert kvcanary.scan_finite(can.group, give(none)).slots_scanned == 0
    assert raw(can.records) == before and can.verify(A, 0) == {}
    x = X(tokens=0)
    x.give = give
    report = kvcanary.Report()
    assert tuple(x(report=report)[0].shape) == (0, 2, 8) and report.rows_written == 0
    x = X()
    x.give = give
    x(n_valid=0, report=report)
    assert report.rows_written == 0


# ---- the detector itself ----


def test_b99_a_row_narrower_than_its_page():
    rows = np.zeros((8, 100), np.uint8)
    options = {"page_size": 4, "slot_stride_bytes": 32, "head_bytes": 32}
    with refused("source-slot-leaves-row", "E_CONFIG", 0, "Check row_stride_bytes (100)"):
        kvcanary.Group(np.zeros((8, 4), np.int64),
                       sources=[kvcanary.Source(rows, id=0, **options)])  # fmt: skip
    can = Can(sources=[])
    can.stamp(A, [4], [11])
    can.verify(A, 1)
    assert can.ring.totals().bytes_hashed == 0  # and the totals say so
    with refused("sglang-source-row-width", "E_SHAPE", -1):
        sglang.RealKvSource(
            tensor=np.zeros((8, 96), np.uint8), page_size=4, num_bytes_per_token=32, read_bytes=32
        )


@frameworks
def test_b103_no_single_bit_flip_goes_unseen(framework):
    rows = framework.give((np.arange(64 * 128) % 251).astype(np.uint8).reshape(64, 128))
    can = Can(framework, sources=[kvcanary.Source(rows, id=0)])
    can.stamp(A, CAN_SLOTS, CAN_TOKENS)
    assert can.verify(A, 6) == {}

    def found():  # the plan of the verify above stands
        kvcanary.verify(can.group, can.plan, ring=can.ring)
        return {v.expected_position: v.reasons for v in can.ring.poll()}

    for bit in range(1024):
        at, mask = (6, bit // 8), 1 << bit % 8
        rows[at] ^= mask
        assert found() == {2: KVHASH}, bit
        rows[at] ^= mask
    for column, reason in enumerate((TOKEN, POS, CHAIN, KVHASH)):
        for bit in range(64):
            mask = 1 << bit if bit < 63 else -(2**63)
            can.records[6, column] ^= mask
            assert found() == {2: reason} | ({3: CHAIN} if column < 3 else {}), (column, bit)
            can.records[6, column] ^= mask
    # Of the last slot a flipped token shows only if it is expected, or the chain's end is.
    can.records[13, 0] ^= 4
    assert can.verify(A, 6, check_tokens=False) == {}
    end = kvcanary.chain_extend(kvcanary.chain_start(), CAN_TOKENS)
    end = end - 2**64 if end >= 2**63 else end
    assert can.verify(A, 6, check_tokens=False, chain_end=end) == {5: Reason.CHAIN_END}
