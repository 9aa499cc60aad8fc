"""rope_pool_fused against a float64 oracle, on arrays of every framework, in place and zero copy."""

import kvcanary
import ml_dtypes
import numpy as np
import pytest
from frameworks import ALL, label
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import rotate, tolerance

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
frameworks = pytest.mark.parametrize("framework", ALL, ids=label)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def world(rng, dtype, tokens=6, heads=(4, 2), dim=16, slots=32):
    kind = DTYPES[dtype]

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32).astype(kind)

    return {
        "q": normal(tokens, heads[0], dim),
        "k": normal(tokens, heads[1], dim),
        "v": normal(tokens, heads[1], dim),
        "positions": rng.integers(0, 1 << 20, tokens),
        "slots": rng.permutation(slots)[:tokens].astype(np.int64),
        "k_pool": np.full((slots, heads[1], dim), 7).astype(kind),
        "v_pool": np.full((slots, heads[1], dim), 7).astype(kind),
    }


def judge(before, q_out, k_out, k_pool, v_pool, style="neox", base=1e4, rotary_dim=None):
    """q_out and k_out as the oracle says; pool rows exactly the bits of k_out and v; no other."""
    dim = before["k"].shape[-1] if rotary_dim is None else rotary_dim
    for given_, out in ((before["q"], q_out), (before["k"], k_out)):
        exact, norm = rotate(given_, before["positions"], dim, base, style)
        name = given_.dtype.name
        error = np.abs(out.astype(np.float64) - exact)
        assert (error <= tolerance(exact, norm, name)).all(), error.max()
        assert out[..., dim:].tobytes() == given_[..., dim:].tobytes()
    written = before["slots"][before["slots"] >= 0]
    rows = before["slots"] >= 0
    assert k_pool[written].tobytes() == k_out[rows].tobytes()
    assert v_pool[written].tobytes() == before["v"][rows].tobytes()
    others = np.setdiff1d(np.arange(k_pool.shape[0]), written)
    assert (k_pool[others].astype(np.float32) == 7).all()
    assert (v_pool[others].astype(np.float32) == 7).all()


@frameworks
@dtypes
@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_every_framework(framework, dtype, style, rng):
    before = world(rng, dtype)
    before["slots"][2] = -1
    arrays = {name: framework.give(array) for name, array in before.items()}
    q_out, k_out, k_pool, v_pool = kvcanary.rope_pool_fused(
        *arrays.values(), head_dim=16, num_qo_heads=4, num_kv_heads=2, rope_base=1e4, style=style
    )
    assert k_pool is arrays["k_pool"] and v_pool is arrays["v_pool"]
    assert type(q_out) is type(arrays["q"]) and q_out.dtype == arrays["q"].dtype
    back = framework.back
    judge(before, back(q_out), back(k_out), back(k_pool), back(v_pool), style)
    assert back(arrays["q"]).tobytes() == before["q"].tobytes()


@frameworks
def test_in_place(framework, rng):
    before = world(rng, "float32")
    arrays = {name: framework.give(array) for name, array in before.items()}
    q, k = arrays["q"], arrays["k"]
    q_out, k_out, k_pool, v_pool = kvcanary.rope_pool_fused(
        *arrays.values(), rope_base=1e4, q_out=q, k_out=k
    )
    assert q_out is q and k_out is k
    back = framework.back
    judge(before, back(q), back(k), back(k_pool), back(v_pool))


@frameworks
def test_all_frameworks_store_the_same_bytes(framework, rng):
    before = world(rng, "bfloat16", tokens=9, dim=64)
    results = []
    for one in (ALL[0], framework):
        arrays = {name: one.give(array) for name, array in before.items()}
        out = kvcanary.rope_pool_fused(*arrays.values(), rope_base=5e5, rotary_dim=32)
        results.append([one.back(array).tobytes() for array in out])
    assert results[0] == results[1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_calls(data):
    tokens = data.draw(st.integers(0, 40), "tokens")
    heads_kv = data.draw(st.sampled_from([1, 2, 3]), "heads_kv")
    heads = (heads_kv * data.draw(st.sampled_from([1, 4]), "group"), heads_kv)
    dim = data.draw(st.sampled_from([2, 8, 10, 64, 128]), "dim")
    rotary_dim = 2 * data.draw(st.integers(0, dim // 2), "rotary half")
    dtype = data.draw(st.sampled_from(sorted(DTYPES)), "dtype")
    style = data.draw(st.sampled_from(["neox", "interleaved"]), "style")
    base = data.draw(st.sampled_from([1e3, 1e4, 5e5]), "base")
    index = data.draw(st.sampled_from([np.int32, np.int64]), "index dtype")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    before = world(rng, dtype, tokens, heads, dim, slots=64)
    before["slots"][rng.random(tokens) < 0.2] = -1
    before["positions"] = before["positions"].astype(index)
    before["slots"] = before["slots"].astype(index)
    arrays = {name: array.copy() for name, array in before.items()}
    packed = rng.random() < 0.5
    if packed:  # q, k and v as views of one buffer, as engines have them
        buffer = np.concatenate([before["q"], before["k"], before["v"]], axis=1)
        arrays["q"] = buffer[:, : heads[0]]
        arrays["k"] = buffer[:, heads[0] : heads[0] + heads_kv]
        arrays["v"] = buffer[:, heads[0] + heads_kv :]
    kvcanary.set_num_threads(int(rng.integers(1, 4)))
    out = kvcanary.rope_pool_fused(
        *arrays.values(), rope_base=base, rotary_dim=rotary_dim, style=style
    )
    judge(before, *out, style, base, rotary_dim)


def test_a_model_s_scaling(rng):
    """llama3 frequencies as transformers computes them, spelt out here."""
    base, factor, low, high, old, dim = 5e5, 8.0, 1.0, 4.0, 8192, 128
    wanted = []
    for i in range(dim // 2):
        frequency = base ** (-2.0 * i / dim)
        wave = 2 * np.pi / frequency
        if wave > old / low:
            frequency /= factor
        elif wave >= old / high:
            smooth = (old / wave - low) / (high - low)
            frequency = (1 - smooth) * frequency / factor + smooth * frequency
        wanted.append(frequency)
    rope = kvcanary.rope_init(
        dim, rope_base=base, scaling="llama3", factor=factor, original_max_position=old
    )
    np.testing.assert_allclose(rope.inv_freq, wanted, rtol=1e-14)
    before = world(rng, "float32", dim=dim)
    arrays = {name: array.copy() for name, array in before.items()}
    got = kvcanary.rope_pool_fused(*arrays.values(), rope=rope)
    arrays = {name: array.copy() for name, array in before.items()}
    given_freq = kvcanary.rope_init(dim, inv_freq=np.array(rope.inv_freq))
    same = kvcanary.rope_pool_fused(*arrays.values(), rope=given_freq)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(got, same, strict=True))


def test_a_table_is_kept_and_never_written(rng):
    before = world(rng, "bfloat16")
    before["positions"] %= 64
    table = rng.standard_normal((64, 16)).astype(np.float32)
    copy = table.copy()
    table.flags.writeable = False
    rope = kvcanary.rope_init(16, cos_sin_cache=table)
    del table
    arrays = {name: array.copy() for name, array in before.items()}
    _, k_out, _, _ = kvcanary.rope_pool_fused(*arrays.values(), rope=rope)
    cos, sin = copy[before["positions"], :8], copy[before["positions"], 8:]
    k = before["k"].astype(np.float32)
    wanted = k[..., :8] * cos[:, None] - k[..., 8:] * sin[:, None]
    assert (k_out[..., :8] == wanted.astype(ml_dtypes.bfloat16)).all()


@pytest.mark.parametrize("fp8", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_pools(fp8, rng):
    kind = np.dtype(getattr(ml_dtypes, fp8))
    before = world(rng, "bfloat16", tokens=16, dim=32)
    before["k"][0, 0, 0] = 1e4
    before["v"][1, 0, 0] = np.nan
    arrays = {name: array.copy() for name, array in before.items()}
    for pool in ("k_pool", "v_pool"):
        arrays[pool] = np.zeros(before[pool].shape, kind)
    _, k_out, k_pool, v_pool = kvcanary.rope_pool_fused(
        *arrays.values(), rope_base=1e4, k_scale=0.5, v_scale=2.0
    )
    largest = float(ml_dtypes.finfo(kind).max)
    for pool, rows, scale in ((k_pool, k_out, 0.5), (v_pool, before["v"], 2.0)):
        divided = rows.astype(np.float32) / np.float32(scale)
        wanted = np.clip(divided, -largest, largest).astype(kind)
        got = pool[before["slots"]]
        nan = np.isnan(divided)
        assert got[~nan].tobytes() == wanted[~nan].tobytes()
        assert np.isnan(got[nan].astype(np.float32)).all()


def test_options(rng):
    before = world(rng, "float32")
    arrays = {name: array.copy() for name, array in before.items()}
    arrays["slots"] = before["slots"] = np.array([5, 5, 0, -1, 9, 10])
    with pytest.raises(ValueError) as caught:
        kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4, check_duplicates=True)
    assert (caught.value.slug, caught.value.where) == ("pool-slot-duplicate", 1)
    arrays["slots"][1] = 6
    report = kvcanary.Report()
    kvcanary.rope_pool_fused(
        *arrays.values(), rope_base=1e4, n_valid=5, reserved_slot=0, report=report
    )
    assert (report.rows_written, report.rows_skipped, report.counts) == (3, 2, {})
    assert (arrays["k_pool"][[0, 10]] == 7).all()
    arrays["k"][4, 1, 3] = np.inf
    with pytest.raises(ValueError) as caught:
        kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4, check_finite=True)
    assert (caught.value.slug, caught.value.where) == ("nonfinite-value", 4)


def test_keywords_that_do_not_exist(rng):
    arrays = world(rng, "float32")
    with pytest.raises(TypeError, match=r"^rope_pool_fused\(\).* 'n_vaild'"):
        kvcanary.rope_pool_fused(*arrays.values(), n_vaild=5)
    assert (arrays["k_pool"] == 7).all()


def test_mla_rows_have_no_v(rng):
    before = world(rng, "bfloat16", heads=(4, 1), dim=24)
    kvcanary.rope_pool_fused(
        before["q"], before["k"], None, before["positions"], before["slots"], before["k_pool"],
        None, rotary_dim=8, rotary_offset=16, q_rotary_offset=16, rope_base=1e4,
    )  # fmt: skip
    assert (before["k_pool"][before["slots"]][..., :16] == before["k"][..., :16]).all()


def test_no_tokens():
    none = np.zeros((0, 2, 8), np.float32)
    pool = np.zeros((4, 2, 8), np.float32)
    out = kvcanary.rope_pool_fused(
        none, none, none, np.zeros(0, np.int64), np.zeros(0, np.int64), pool, pool.copy()
    )
    assert out[0].shape == (0, 2, 8)


def test_nothing_is_written_by_a_refused_call(rng):
    before = world(rng, "float32")
    arrays = {name: array.copy() for name, array in before.items()}
    arrays["slots"][5] = 32
    q, k = arrays["q"], arrays["k"]
    with pytest.raises(IndexError):
        kvcanary.rope_pool_fused(*arrays.values(), rope_base=1e4, q_out=q, k_out=k)
    for name in ("q", "k", "v", "k_pool", "v_pool"):
        assert arrays[name].tobytes() == before[name].tobytes(), name


def test_jax_arrays_without_memory():
    jax = pytest.importorskip("jax")
    x = np.ones((2, 1, 8), np.float32)

    def rotated(q, k=x):
        index = np.arange(2)
        return kvcanary.rope_pool_fused(q, k, x, index, index, x.copy(), x.copy(), q_out=q)[0]

    gone = jax.numpy.ones((2, 1, 8))
    gone.delete()
    for call in (
        lambda: jax.jit(rotated)(x),
        lambda: jax.jit(lambda k: rotated(x.copy(), k))(x),
        lambda: jax.vmap(rotated)(jax.numpy.ones((3, 2, 1, 8))),
        lambda: rotated(gone),
        lambda: rotated(x.copy(), gone),
    ):
        with pytest.raises(TypeError) as caught:
            call()
        assert caught.value.slug == "array-expected"
