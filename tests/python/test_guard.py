"""The guard as an engine uses it: steps as context managers, stamps, findings, sweeps."""

import copy
import dataclasses
import gc
import pickle
import signal

import kvcanary
import numpy as np
import pytest
from frameworks import ALL, label
from kvcanary import Cause, SweepSlot

SLOTS, HEADS, DIM, LAYERS = 32, 1, 8, 2
NONE = np.zeros(0, np.int64)


class Engine:
    """A model of two layers whose requests have a row each; slots are given by the test."""

    def __init__(self, give=np.array, **options):
        self.give = give
        zeros = np.zeros((SLOTS, HEADS, DIM), np.float32)
        self.pools = [(give(zeros), give(zeros)) for _ in range(LAYERS)]
        self.guard = kvcanary.Guard(request_rows=4, **options)
        sources = [
            kvcanary.Source.from_pool(pool, 2 * layer + i)
            for layer, pair in enumerate(self.pools)
            for i, pool in enumerate(pair)
        ]
        self.group = self.guard.attach_group(slot_count=SLOTS, sources=sources)
        self.stamps = [self.guard.stamp(self.group, 2 * n, 2 * n + 1) for n in range(LAYERS)]
        self.table = np.zeros((4, 8), np.int32)
        self.rng = np.random.default_rng(5)
        self.number = 0

    def step(self, row, request, prefix, tokens, skip_layer=None):
        slots = self.table[row, prefix : prefix + len(tokens)].astype(np.int64)
        positions = np.arange(prefix, prefix + len(tokens))
        self.number += 1
        give = self.give
        requests = kvcanary.Requests(
            req_pool_indices=give(np.array([row])),
            prefix_lens=give(np.array([prefix])),
            extend_seq_lens=give(np.array([len(tokens)])),
            owner_request=give(np.array([request])),
        )
        with self.guard.step(
            self.number,
            requests=requests,
            req_to_token=give(self.table),
            tokens=give(np.array(tokens, np.int64)),
            positions=give(positions),
            slots=give(slots),
        ):
            for layer, (k_pool, v_pool) in enumerate(self.pools):
                if layer == skip_layer or not len(tokens):
                    continue
                x = give(self.rng.standard_normal((len(tokens), HEADS, DIM)).astype(np.float32))
                kvcanary.rope_pool_fused(
                    x, x, x, give(positions), give(slots), k_pool, v_pool, rope_base=1e4,
                    stamp=self.stamps[layer],
                )  # fmt: skip
        return self.guard.poll()


@pytest.mark.parametrize("framework", ALL, ids=label)
def test_clean_steps(framework):
    engine = Engine(framework.give)
    engine.table[1, :5] = [4, 5, 6, 7, 9]
    assert engine.step(1, 100, 0, [11, 22, 33, 44]) == []
    assert engine.step(1, 100, 4, [55]) == []
    assert engine.step(1, 100, 5, []) == []
    stats = engine.guard.stats()
    assert (stats.steps, stats.slots_stamped, stats.sources, stats.violations) == (3, 5, 4, 0)
    assert stats.slots_first_read == 5 and stats.bytes_verified > 0


def test_a_lost_write_is_seen():
    engine = Engine()
    engine.table[1, :4] = [4, 5, 6, 7]
    engine.step(1, 100, 0, [11, 22, 33, 44], skip_layer=1)
    found = engine.step(1, 100, 4, [])
    assert {(f.violation.slot, f.cause) for f in found} == {
        (slot, Cause.BYTES_DAMAGED) for slot in range(4, 8)}  # fmt: skip
    assert kvcanary.explain(found[0].slug).kind == "violation"


def test_the_other_request_is_named():
    engine = Engine()
    engine.table[1, :2] = [4, 5]
    engine.table[2, :2] = [6, 5]  # slot 5 belongs to request 100
    engine.step(1, 100, 0, [11, 22])
    engine.step(2, 200, 0, [33, 44])
    found = engine.step(1, 100, 2, [])
    assert [(f.violation.slot, f.victim_request, f.culprit_request) for f in found] == [
        (5, 100, 200)]  # fmt: skip
    lines = str(found[0]).splitlines()
    assert lines[0].startswith("kv_canary violation: ") and lines[1].startswith("  ")
    assert "1 violations" in engine.guard.report()


def test_a_step_that_fails_is_ended_all_the_same():
    engine = Engine()
    engine.table[1, :2] = [4, 5]
    engine.number += 1
    requests = kvcanary.Requests(
        req_pool_indices=np.array([1]), prefix_lens=np.array([0]),
        extend_seq_lens=np.array([2]), owner_request=np.array([100]),
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError), engine.guard.step(
        1, requests=requests, req_to_token=engine.table, tokens=np.array([1, 2]),
        positions=np.arange(2), slots=np.array([4, 5]),
    ):  # fmt: skip
        raise ZeroDivisionError
    with pytest.raises(RuntimeError) as caught:
        engine.guard.step_end()
    assert caught.value.slug == "guard-step-not-open"
    assert {f.cause for f in engine.step(1, 100, 2, [])} == {Cause.BYTES_DAMAGED}


def test_void_and_copy():
    engine = Engine()
    engine.table[1, :2] = [4, 5]
    engine.step(1, 100, 0, [11, 22])
    engine.guard.copy(engine.group, np.array([4, 5]), np.array([20, 21]))
    for pair in engine.pools:
        for pool in pair:
            pool[20:22] = pool[4:6]
    engine.guard.void(engine.group, np.array([4, 5]))
    engine.table[1, :2] = [20, 21]
    assert engine.step(1, 100, 2, []) == []
    engine.table[1, :2] = [4, 5]
    assert {f.cause for f in engine.step(1, 100, 2, [])} == {Cause.NEVER_WRITTEN}


def test_sweep_takes_a_generator():
    engine = Engine()
    engine.table[1, :4] = [4, 5, 6, 7]
    engine.step(1, 100, 0, [11, 22, 33, 44])
    engine.pools[0][0][6, 0, 0] += 1

    def cached():
        for position in range(4):
            previous = 3 + position if position else -1
            yield SweepSlot(4 + position, position, (position + 1) * 11, previous)

    assert engine.guard.sweep(engine.group, cached()) == 4
    assert [f.violation.slot for f in engine.guard.poll()] == [6]


def test_an_error_of_the_generator_comes_through():
    engine = Engine()
    engine.table[1, :2] = [4, 5]
    engine.step(1, 100, 0, [11, 22])

    def broken():
        yield SweepSlot(4, 0, prev_slot=-1)
        raise LookupError("tree changed")

    with pytest.raises(LookupError, match="tree changed"):
        engine.guard.sweep(engine.group, broken())


def test_what_lists_the_slots_may_use_the_guard():
    engine = Engine()
    engine.table[1, :4] = [4, 5, 6, 7]
    engine.step(1, 100, 0, [11, 22, 33, 44])

    def one(position):
        return SweepSlot(slot=4 + position, position=position, expected_token=[11, 22, 33, 44][position],
                         prev_slot=3 + position if position else -1)  # fmt: skip

    def busy():
        yield one(0)
        engine.guard.sweep(engine.group, [one(2), one(3)])
        engine.guard.void(engine.group, np.array([20]))
        assert engine.guard.poll() == []
        yield one(1)

    assert engine.guard.sweep(engine.group, busy()) == 2
    assert engine.guard.poll() == []

    def closing():
        yield one(0)
        engine.guard.close()
        engine.stamps.clear()
        gc.collect()
        yield one(1)

    with pytest.raises(kvcanary.KVCanaryError) as caught:
        engine.guard.sweep(engine.group, closing())
    assert caught.value.slug == "null-argument"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_of_a_sweep_arrives():
    """It was lost in a callback of ctypes, and the sweep failed over what that had returned."""
    guard = kvcanary.Guard(request_rows=4)
    group = guard.attach_group(slot_count=8)
    arrived = 0

    def interrupt(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(50):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0001 * (i % 10))
                guard.sweep(group, (SweepSlot(1, 0) for _ in range(50_000)))
            except KeyboardInterrupt:
                arrived += 1
        assert arrived > 25  # others' hooks into the garbage collector swallow some
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_errors_of_the_guard():
    with pytest.raises(ValueError) as caught:
        kvcanary.Guard(request_rows=0)
    assert caught.value.slug == "guard-value-out-of-range"
    engine = Engine()
    with pytest.raises(IndexError) as caught:
        engine.guard.stamp(7, 0, 1)
    assert caught.value.slug == "guard-group-unknown"
    engine.guard.close()
    with pytest.raises(ValueError) as caught:
        engine.guard.poll()
    assert caught.value.slug == "null-argument"
    with kvcanary.Guard(request_rows=4) as guard:
        assert guard.stats().steps == 0


def test_a_stamp_outlives_its_guard():
    """It leads into the guard's memory: that stays until the last stamp is gone."""
    engine = Engine()
    stamp, group = engine.stamps[0], engine.group
    engine.guard.close()
    del engine.guard, engine.stamps[:]
    gc.collect()
    junk = [np.full((SLOTS, 4), -1, np.int64) for _ in range(100)]
    x = np.ones((2, HEADS, DIM), np.float32)
    pools = engine.pools[0]
    for _ in range(10):
        kvcanary.rope_pool_fused(
            x, x, x, np.arange(2), np.array([4, 5]), *pools, rope_base=1e4, stamp=stamp)  # fmt: skip
    assert all((array == -1).all() for array in junk)
    with kvcanary.Guard(request_rows=4) as guard:
        stamp = guard.stamp(
            guard.attach_group(
                slot_count=SLOTS, sources=[kvcanary.Source.from_pool(np.zeros_like(pools[0]), 0)]
            ),
            0,
        )
    del guard
    gc.collect()
    kvcanary.rope_pool_fused(
        x, x, None, np.arange(2), np.array([4, 5]), pools[0], None, rope_base=1e4, stamp=stamp)  # fmt: skip
    assert group == 0


def test_what_holds_addresses_is_not_copied():
    engine = Engine()
    pool = engine.pools[0][0]
    holders = [
        engine.guard,
        engine.stamps[0],
        kvcanary.Source.from_pool(pool, 0),
        kvcanary.Group(np.zeros((4, 4), np.int64)),
        kvcanary.Plan.allocate(verify_capacity=4, write_req_capacity=1),
        kvcanary.Requests(req_pool_indices=np.arange(2)),
        kvcanary.Ring.allocate(4),
        kvcanary.Report(),
        kvcanary.rope_init(8),
    ]
    for holder in holders:
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"a kvcanary {type(holder).__name__} holds addr"):
                copied(holder)
    # A changed one is made anew.
    plan = dataclasses.replace(holders[4], enable=np.ones(1, np.int32))
    assert plan.address != holders[4].address
