"""What the cases from the field are told with: a write input (X), and requests with records (Can)."""

from contextlib import contextmanager

import kvcanary
import ml_dtypes
import numpy as np
import pytest
from frameworks import ALL

BF16 = np.dtype(ml_dtypes.bfloat16)
# Those whose arrays a test can also damage in place, as engines' faults do.
WRITABLE = [f for f in ALL if getattr(f, "name", "") in ("numpy", "torch")]


def ids(*values):
    return np.array(values, np.int64)


def raw(array):
    """The bytes of an array of either framework."""
    if hasattr(array, "data_ptr"):
        array = WRITABLE[-1].back(array)
    return np.asarray(array).tobytes()


@contextmanager
def refused(slug, status, where=-1, hint="", unchanged=(), builtin=ValueError):
    """The body raises this error of the catalogue, and leaves the arrays as they were."""
    before = [raw(array) for array in unchanged]
    with pytest.raises(kvcanary.KVCanaryError) as caught:
        yield
    error = caught.value
    assert (error.slug, error.status.name, error.where) == (slug, status, where)
    assert isinstance(error, builtin)
    assert hint in error.hint
    assert kvcanary.explain(str(error)).slug == slug
    assert [raw(array) for array in unchanged] == before


class X:
    """T tokens for slots 4, 5, ... of pools that hold 0xA5 throughout."""

    def __init__(self, give=np.array, tokens=4, hq=2, hkv=1, dim=8, pool=32, dtype=BF16):
        rng = np.random.default_rng(11)
        self.dim, self.give = dim, give

        def normal(heads):
            return rng.standard_normal((tokens, heads, dim)).astype(np.float32).astype(dtype)

        self.q, self.k, self.v = normal(hq), normal(hkv), normal(hkv)
        self.positions = np.arange(tokens)
        self.slots = np.arange(tokens) + 4
        fill = np.full((pool, hkv, dim * dtype.itemsize), 0xA5, np.uint8).view(dtype)
        self.k_pool, self.v_pool = fill.copy(), fill.copy()

    def __call__(self, **options):
        names = ("q", "k", "v", "positions", "slots", "k_pool", "v_pool")
        options = {"head_dim": self.dim, "rope_base": 1e4} | options
        arrays = {name: self.give(options.pop(name, getattr(self, name))) for name in names}
        return kvcanary.rope_pool_fused(**arrays, **options)

    def run(self, framework, **options):
        """q_rot, k_rot, k_pool, v_pool as NumPy arrays."""
        self.give = framework.give
        return [framework.back(array) for array in self(**options)]

    def refused(self, slug, status, where=-1, hint="", builtin=ValueError, **options):
        """The call with these arguments is refused, and wrote nothing."""
        self.give = lambda array: array
        kept = (self.q, self.k, self.v, self.k_pool, self.v_pool)
        with refused(slug, status, where, hint, kept, builtin):
            self(q_out=self.q, k_out=self.k, **options)


class Can:
    """Requests on rows of a table, with records over a K and a V pool. Row 1 is A, row 2 is B."""

    def __init__(self, framework=None, slots=64, sources=None, **options):
        give = np.array if framework is None else framework.give
        rng = np.random.default_rng(3)
        self.give = give
        self.pools = [give(rng.standard_normal((slots, 2, 8)).astype(np.float16)) for _ in "kv"]
        self.records = give(np.zeros((slots, 4), np.int64))
        if sources is None:
            sources = [kvcanary.Source.from_pool(p, i) for i, p in enumerate(self.pools)]
        self.group = kvcanary.Group(
            self.records, sources=sources, owners=give(np.tile(ids(-1, 0), (slots, 1))), **options
        )
        self.ring = kvcanary.Ring.allocate(64)
        self.plan = kvcanary.Plan.allocate(verify_capacity=64, write_req_capacity=4)
        self.table = np.full((4, 16), -1, np.int32)
        self.expected = np.full((4, 16), -1, np.int32)
        self.steps = 0

    def requests(self, row, prefix, extend, **more):
        values = {"owner_request": 100 + row, **more}
        named = {name: self.give(ids(value)) for name, value in values.items() if value}
        return kvcanary.Requests(
            req_pool_indices=self.give(ids(row)),
            prefix_lens=self.give(ids(prefix)),
            extend_seq_lens=self.give(ids(extend)),
            **named,
        )

    def planned(self, requests, check_tokens, window=0):
        compare = {}
        if check_tokens:
            compare = {
                "expected_tokens": self.give(self.expected),
                "valid_lens": self.give(ids(16)),
            }
        kvcanary.plan(
            self.plan, requests=requests, req_to_token=self.give(self.table), window=window,
            **compare,
        )  # fmt: skip

    def stamp(self, row, slots, tokens, prefix=0, positions=None, expect=None, clean=True, **more):
        """Write tokens on slots as one step of a request; `expect` = what should be there."""
        end = prefix + len(slots)
        self.table[row, prefix:end] = slots
        self.expected[row, prefix:end] = tokens if expect is None else expect
        requests = self.requests(row, prefix, len(slots), **more)
        self.planned(requests, False)
        self.steps += 1
        given = np.arange(prefix, end) if positions is None else ids(*positions)
        kvcanary.write(
            self.group, self.plan, self.give(ids(*tokens)), self.give(given),
            self.give(ids(*slots)), requests=requests, ring=self.ring,
            step=self.give(ids(self.steps)),
        )  # fmt: skip
        self.found = self.ring.poll()
        assert not (clean and self.found)

    def verify(self, row, prefix, check_tokens=True, check_finite=False, window=0, **more):
        """{position: reasons} of what is found; `found` and `valid_prefix` have the rest."""
        requests = self.requests(row, prefix, 0, **more)
        self.planned(requests, check_tokens, window)
        valid = self.give(ids(-1))
        kvcanary.verify(
            self.group, self.plan, requests=requests, ring=self.ring, check_finite=check_finite,
            valid_prefix=valid,
        )  # fmt: skip
        self.valid_prefix = int(valid[0])
        self.found = self.ring.poll()
        reasons = {}
        for violation in self.found:
            assert kvcanary.explain(violation.slug).kind == "violation"
            at = violation.expected_position
            at = violation.position if at < 0 else at
            reasons[at] = reasons.get(at, kvcanary.Reason(0)) | violation.reasons
        return reasons
