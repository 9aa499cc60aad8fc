"""Records, plan, write, verify, rings and the guard, against hashes in Python integers."""

import kvcanary
import numpy as np
import pytest
from frameworks import ALL, label
from hypothesis import given, settings
from hypothesis import strategies as st
from kvcanary import Reason
from oracle import chain, chain_start, signed, splitmix

frameworks = pytest.mark.parametrize("framework", ALL, ids=label)
SLOTS, HEADS, DIM = 32, 2, 8


def ids(*values):
    return np.array(values, np.int64)


class World:
    """One request on row 1 with 4 tokens at slots 4..7, over a K and a V pool."""

    def __init__(self, give=np.array, **options):
        rng = np.random.default_rng(7)
        self.give = give
        self.pools = [
            give(rng.standard_normal((SLOTS, HEADS, DIM)).astype(np.float32)) for _ in range(2)
        ]
        self.records = give(np.zeros((SLOTS, 4), np.int64))
        self.owners = give(np.tile(np.array([-1, 0], np.int64), (SLOTS, 1)))
        self.group = kvcanary.Group(
            self.records,
            sources=[kvcanary.Source.from_pool(p, i) for i, p in enumerate(self.pools)],
            owners=self.owners,
            **options,
        )
        self.ring = kvcanary.Ring.allocate(16)
        self.plan = kvcanary.Plan.allocate(verify_capacity=16, write_req_capacity=4)
        table = np.zeros((4, 8), np.int32)
        table[1, :4] = [4, 5, 6, 7]
        self.table = table
        self.tokens, self.positions, self.slots = ids(11, 22, 33, 44), np.arange(4), np.arange(4, 8)

    def requests(self, prefix, extend, **more):
        return kvcanary.Requests(
            req_pool_indices=self.give(ids(1)),
            prefix_lens=self.give(ids(prefix)),
            extend_seq_lens=self.give(ids(extend)),
            owner_request=self.give(ids(100)),
            **more,
        )

    def stamp(self, **more):
        requests = self.requests(0, 4)
        kvcanary.plan(self.plan, requests=requests, req_to_token=self.give(self.table))
        kvcanary.write(
            self.group, self.plan, self.give(self.tokens), self.give(self.positions),
            self.give(self.slots), requests=requests, ring=self.ring, **more,
        )  # fmt: skip

    def verify(self, prefix=4, expected=None, **more):
        requests = self.requests(prefix, 0)
        valid = None if expected is None else ids(expected.shape[1])
        kvcanary.plan(
            self.plan, requests=requests, req_to_token=self.give(self.table),
            expected_tokens=expected, valid_lens=valid,
        )  # fmt: skip
        kvcanary.verify(self.group, self.plan, requests=requests, ring=self.ring, **more)
        return self.ring.poll()


@frameworks
def test_a_step_of_every_framework(framework):
    world = World(framework.give, fingerprint="splitmix")
    world.stamp()
    pools = [framework.back(pool) for pool in world.pools]
    records = framework.back(world.records)
    hashes = chain([11, 22, 33, 44])
    for i, slot in enumerate(range(4, 8)):
        strips = [pool[slot].tobytes() for pool in pools]
        assert records[slot].tolist() == [
            (i + 1) * 11, i, signed(hashes[i]), signed(splitmix(strips))]  # fmt: skip
    assert not records[:4].any() and not records[8:].any()
    assert framework.back(world.owners)[4:8, 0].tolist() == [100] * 4
    assert world.verify() == []
    totals = world.ring.totals()
    assert (totals.violations, totals.slots_run, totals.bytes_hashed) == (0, 8, 2 * 4 * 2 * 64)


def test_golden_values():
    assert kvcanary.chain_start() == 0xDE7FAE23A9A1B716
    assert kvcanary.chain_start(1) == 0x2006E5E8A9B8A1C5
    assert kvcanary.chain_extend(kvcanary.chain_start(), [11, 22, 33, 44]) == 0x5FAE4135D917CB64
    rows = np.arange(32, dtype=np.uint8).reshape(1, 32)

    def one(**options):
        sources = [kvcanary.Source(rows[:, :16], id=0), kvcanary.Source(rows[:, 16:], id=1)]
        group = kvcanary.Group(np.zeros((1, 4), np.int64), sources=sources, **options)
        return kvcanary.fingerprint(group, ids(0))[0]

    assert one(fingerprint="splitmix") == signed(0xB6209A488C3F52B0)
    assert one() == signed(0x056CB6ACFFD078A1)
    long = (np.arange(2048) % 251).astype(np.uint8).reshape(1, 2048)
    for coverage, value in (("all", 0xF1FD2B38A4270EC3), ("partial", 0x97E314E69EEC73BD)):
        source = kvcanary.Source(long, id=0, head_count=8, head_bytes=256)
        group = kvcanary.Group(np.zeros((1, 4), np.int64), sources=[source], coverage=coverage)
        assert kvcanary.fingerprint(group, ids(0)).tolist() == [signed(value)]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
)
def test_chains(tokens, namespace, first):
    wanted = chain(tokens, namespace, first)
    assert kvcanary.chain_start(namespace) == chain_start(namespace) == wanted[0]
    assert kvcanary.chain_extend(wanted[0], tokens, first) == wanted[-1]
    array = np.array(tokens, np.int64)
    assert kvcanary.chain_extend(wanted[0], array, first) == wanted[-1]


def test_a_damaged_byte():
    world = World()
    world.stamp()
    world.pools[1].view(np.uint8)[5, 1, 3] ^= 0x40
    (found,) = world.verify()
    assert (found.slot, found.reasons, found.owner_request) == (
        5, Reason.VERIFY_REAL_KV_HASH, 100)  # fmt: skip
    first = found.text().splitlines()[0]
    assert first.startswith("kv_canary violation: launch_tag=STEP_READ ")
    parsed = kvcanary.Violation.parse("a log prefix " + first)
    assert (parsed.slot, parsed.reasons) == (5, found.reasons)
    assert found.slug == "violation-verify-real-kv-hash"
    assert kvcanary.explain(found.slug).kind == "violation"
    assert kvcanary.Violation.parse("nothing of the kind") is None


@pytest.mark.parametrize(
    ("column", "reasons"),
    [
        (0, {5: Reason.VERIFY_TOKEN, 6: Reason.VERIFY_CHAIN_HASH}),
        (1, {5: Reason.VERIFY_POSITION, 6: Reason.VERIFY_CHAIN_HASH}),
        (2, {5: Reason.VERIFY_CHAIN_HASH, 6: Reason.VERIFY_CHAIN_HASH}),
        (3, {5: Reason.VERIFY_REAL_KV_HASH}),
    ],
)
def test_bit_flips_in_a_record(column, reasons):
    """B103: no flip of a record is silent."""
    world = World()
    world.stamp()
    expected = np.zeros((4, 8), np.int32)
    expected[1, :4] = world.tokens
    for bit in range(0, 64, 7):
        world.records.view(np.uint64)[5, column] ^= np.uint64(1 << bit)
        assert {v.slot: v.reasons for v in world.verify(expected=expected)} == reasons
        world.records.view(np.uint64)[5, column] ^= np.uint64(1 << bit)
    assert world.verify(expected=expected) == []


def test_a_foreign_namespace():
    """B59: another adapter's cache is seen at its first slot."""
    world = World()
    requests = world.requests(0, 4, namespaces=ids(77))
    kvcanary.plan(world.plan, requests=requests, req_to_token=world.table)
    kvcanary.write(
        world.group, world.plan, world.tokens, world.positions, world.slots, requests=requests
    )
    assert [(v.slot, v.reasons) for v in world.verify()] == [(4, Reason.VERIFY_CHAIN_HASH)]


def test_partly_written():
    """B73: what was never written is named as that, and the valid prefix says how far it goes."""
    world = World()
    world.stamp()
    kvcanary.void(world.group, ids(6, 7))
    prefix = ids(0)
    found = world.verify(valid_prefix=prefix)
    assert [(v.slot, v.reasons) for v in found] == [
        (6, Reason.NEVER_STAMPED), (7, Reason.NEVER_STAMPED)]  # fmt: skip
    assert prefix.tolist() == [2]


def test_two_owners_of_a_slot():
    """B53: check_plan sees it before a byte is written."""
    world = World()
    world.stamp()
    world.table[2, :2] = [10, 5]
    requests = kvcanary.Requests(
        req_pool_indices=ids(1, 2), prefix_lens=ids(4, 2), extend_seq_lens=ids(0, 0)
    )
    kvcanary.plan(world.plan, requests=requests, req_to_token=world.table)
    with pytest.raises(ValueError) as caught:
        kvcanary.check_plan(world.plan, world.group)
    assert caught.value.status == kvcanary.Status.E_SLOT_DUPLICATE
    kvcanary.check_plan(world.plan, world.group, ring=world.ring)
    assert [(v.slot, v.reasons) for v in world.ring.poll()] == [(5, Reason.SLOT_ALIASED)]


def test_moved_rows():
    world = World()
    world.stamp()
    kvcanary.copy(world.group, ids(4, 5, 6, 7), ids(7, 6, 5, 4))
    for pool in world.pools:
        pool[4:8] = pool[4:8][::-1].copy()
    world.table[1, :4] = [7, 6, 5, 4]
    assert world.verify() == []


def test_nonfinite():
    world = World()
    world.pools[0][6, 1, 3] = np.nan
    found = kvcanary.scan_finite(world.group, np.arange(SLOTS))
    assert (found.slots_scanned, found.nonfinite_count) == (SLOTS, 1)
    assert (found.first_slot, found.first_source_id, found.first_head, found.first_dim) == (
        6, 0, 1, 3)  # fmt: skip
    world.stamp()
    assert [v.reasons for v in world.verify(check_finite=True)] == [Reason.NONFINITE]


def test_a_full_ring_drops_and_counts():
    world = World()
    world.ring = kvcanary.Ring.allocate(2)
    assert len(world.verify()) == 2
    totals = world.ring.totals()
    assert (totals.violations, totals.dropped) == (4, 2)
    assert world.ring.poll() == []


def test_rings_of_sglang():
    world = World(fingerprint="splitmix")
    world.stamp()
    world.records[5, 1] = 9
    ring = kvcanary.Ring(rows=np.zeros((4, 8), np.int64), write_index=np.zeros(1, np.int32))
    kvcanary.plan(world.plan, requests=world.requests(4, 0), req_to_token=world.table)
    kvcanary.verify(world.group, world.plan, ring=ring, rules="sglang", launch_tag=0)
    assert ring.write_index.tolist() == [2]
    found = kvcanary.Violation.from_row(ring.rows[0])
    assert (found.slot, found.position, found.reasons) == (5, 9, Reason.VERIFY_POSITION)
    text = found.text("sglang", violations=2, step=3)
    assert "launch_tag=HEAD_K_FULL fail_reason=verify_position" in text
    with pytest.raises(ValueError) as caught:
        ring.poll()
    assert caught.value.slug == "ring-not-circular"
    with pytest.raises(ValueError) as caught:
        ring.totals()
    assert caught.value.slug == "ring-not-circular"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_scatter(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    rows, columns = int(rng.integers(1, 40)), int(rng.integers(1, 20))
    count = int(rng.integers(0, rows + 1))
    lengths = rng.integers(0, columns + 4, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    flat = rng.integers(0, 2**31, offsets[-1])
    chosen = rng.permutation(rows)[:count].astype(np.int64)
    wide = np.full((rows, columns + 3), -5, np.int32)
    table = wide[:, :columns]
    wanted = table.copy()
    for row, begin, length in zip(chosen, offsets, lengths, strict=False):
        kept = min(length, columns)
        wanted[row, :kept] = flat[begin : begin + kept]
    report = kvcanary.Report()
    out = kvcanary.scatter_req_token_ids(
        flat_in=flat, offsets=offsets, req_pool_indices=chosen, pool_out=table, report=report
    )
    assert out is table
    assert (table == wanted).all() and (wide[:, columns:] == -5).all()
    assert report.tokens_truncated == np.maximum(lengths - columns, 0).sum()


def test_scatter_refuses_and_writes_nothing():
    table = np.zeros((4, 8), np.int32)
    arrays = {"flat_in": ids(1, 2**31), "offsets": ids(0, 2), "req_pool_indices": ids(1)}
    with pytest.raises(ValueError) as caught:
        kvcanary.scatter_req_token_ids(**arrays, pool_out=table)
    assert caught.value.status == kvcanary.Status.E_TOKEN_RANGE and not table.any()
    kvcanary.scatter_req_token_ids(**arrays, pool_out=table, narrow=True)
    assert table[1, :2].tolist() == [1, -(2**31)]
    with pytest.raises(TypeError, match="pool_out must be int32, got int64"):
        kvcanary.scatter_req_token_ids(**arrays, pool_out=table.astype(np.int64))


def test_a_source_of_pages():
    """Pages with heads outside (HND) fingerprint as the same K in (slot, head, dim) order does."""
    rng = np.random.default_rng(3)
    flat = rng.standard_normal((12, HEADS, DIM)).astype(np.float32)
    pages = np.ascontiguousarray(flat.reshape(3, 4, HEADS, DIM).transpose(0, 2, 1, 3))
    hnd = kvcanary.Source(
        pages, id=4, page_size=4, slot_stride_bytes=DIM * 4, head_count=HEADS,
        head_bytes=DIM * 4, head_stride_bytes=4 * DIM * 4,
    )  # fmt: skip
    units = np.zeros((4, HEADS * 2), np.int32)
    for slot in range(4):
        units[slot] = [h * 4 * DIM * 4 + slot * DIM * 4 + u * 16 for h in range(HEADS)
                       for u in range(2)]  # fmt: skip
    gathered = kvcanary.Source(
        pages, id=4, page_size=4, head_count=HEADS, head_bytes=DIM * 4, gather=units, unit_bytes=16
    )
    values = []
    for source in (kvcanary.Source.from_pool(flat, 4), hnd, gathered):
        group = kvcanary.Group(np.zeros((12, 4), np.int64), sources=[source])
        values.append(kvcanary.fingerprint(group, np.arange(12)).tolist())
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize(
    ("make", "slug"),
    [
        (lambda: kvcanary.Group(np.zeros(4, np.int64)), "canary-tensor-must-be-2-d"),
        (lambda: kvcanary.Group(np.zeros((4, 3), np.int64)), "group-record-stride"),
        (lambda: kvcanary.Group(np.zeros((4, 4), np.int64), coverage="some"), "option-unknown"),
        (
            lambda: kvcanary.Group(np.zeros((4, 4), np.int64), owners=np.zeros((4, 2), np.int32)),
            "canary-tensor-dtype",
        ),
        (
            lambda: kvcanary.Group(np.zeros((4, 4), np.int64), owners=np.zeros((3, 2), np.int64)),
            "canary-tensor-length",
        ),
        (
            lambda: kvcanary.Ring(rows=np.zeros((16, 4), np.int64).T),
            "canary-tensor-must-be-contiguous",
        ),
        (lambda: kvcanary.Ring.allocate(-1), "ring-capacity-negative"),
        (
            lambda: kvcanary.Plan.allocate(verify_capacity=-1, write_req_capacity=1),
            "plan-capacity-out-of-range",
        ),
        (lambda: kvcanary.Source.from_pool(np.zeros((4, 8)), 0), "source-pool-must-be-3-d"),
        (
            lambda: kvcanary.Group(
                np.zeros((4, 4), np.int64),
                sources=[kvcanary.Source(np.zeros((3, 8), np.float32), id=0)],
            ),
            "source-too-few-slots",
        ),
    ],
)
def test_what_does_not_hold_together(make, slug):
    with pytest.raises(kvcanary.KVCanaryError) as caught:
        make()
    assert caught.value.slug == slug and "{" not in str(caught.value) + caught.value.hint
