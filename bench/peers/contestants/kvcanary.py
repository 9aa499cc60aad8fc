"""Our own library: KVCANARY_LIB names libkvcanary.so. Without it every suite is shown as skipped.

The structs mirror include/kvcanary.h field by field; every call goes through the public functions, all checks on.
"""
import ctypes
import os

import torch

from harness import stream

from . import Skip

P, L, I, Z, D, F, U = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_size_t, ctypes.c_double, ctypes.c_float,
                       ctypes.c_uint64)


class Struct(ctypes.Structure):
    """Zero but for struct_bytes and what is given; keeps whatever its pointers lead to."""

    def __init__(self, **fields):
        super().__init__()
        self.keep = list(fields.values())
        if self._fields_[0][0] == "struct_bytes":
            self.struct_bytes = ctypes.sizeof(self)
        for name, value in fields.items():
            if isinstance(value, torch.Tensor):
                value = value.data_ptr()
            elif isinstance(value, ctypes.Structure) and dict(self._fields_)[name] is P:
                value = ctypes.addressof(value)
            setattr(self, name, value)


class Device(Struct):
    _fields_ = [("device_type", I), ("device_id", I)]


class Tensor(Struct):
    _fields_ = [("data", P), ("device_type", I), ("device_id", I), ("ndim", I), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(L)), ("strides", ctypes.POINTER(L)), ("byte_offset", U)]


class RopeOptions(Struct):
    _fields_ = [("struct_bytes", Z), ("rotary_dim", I), ("style", I), ("rope_base", D), ("scaling", I), ("truncate", I),
                *((n, D) for n in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position", "beta_fast", "beta_slow",
                                   "mscale", "mscale_all_dim", "attention_factor")), ("inv_freq", P), ("cos_sin_cache", P)]


class RopeArgs(Struct):
    _fields_ = [("struct_bytes", Z), *((n, P) for n in ("q", "k", "v", "positions", "slots", "k_pool", "v_pool", "q_out", "k_out", "rope")),
                *((n, L) for n in ("head_dim", "num_qo_heads", "num_kv_heads", "n_valid", "rotary_offset", "q_rotary_offset", "reserved_slot")),
                ("check_duplicates", I), ("check_finite", I), ("k_scale", F), ("v_scale", F), ("scratch", P), ("stamp", P), ("report", P)]


class Stamp(Struct):
    _fields_ = [("struct_bytes", Z), ("records", P), ("record_stride_bytes", L), ("record_count", L), ("k_id", U), ("v_id", U),
                ("coverage", I), ("head_bytes", L)]


class ScatterArgs(Struct):
    _fields_ = [("struct_bytes", Z), *((n, P) for n in ("flat_in", "offsets", "req_pool_indices", "pool_out")), ("rules", I),
                ("allow_placeholder", I), ("narrow", I), ("report", P)]


class Source(Struct):
    _fields_ = [("base", P), *((n, L) for n in ("row_count", "row_stride_bytes", "page_size", "slot_stride_bytes", "head_count", "head_bytes",
                                                "head_stride_bytes", "read_bytes")), ("id", U), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("unit_bytes", I), ("gather", P)]


class Group(Struct):
    _fields_ = [("struct_bytes", Z), ("records", P), ("record_count", L), ("record_stride_bytes", L), ("owners", P), ("sources", P),
                ("source_count", L), ("fingerprint", I), ("coverage", I), ("stamping", I), ("reserved_slot", L), ("device", Device)]


class Requests(Struct):
    _fields_ = [("struct_bytes", Z), *((n, P) for n in ("req_pool_indices", "prefix_lens", "extend_seq_lens", "namespaces", "verify_chain_in",
                                                        "write_chain_in", "chain_end", "start", "owner_request"))]


class Plan(Struct):
    _fields_ = [("struct_bytes", Z), ("device", Device), ("verify_capacity", L), *((n, P) for n in (
        "verify_slot_indices", "verify_expected_tokens", "verify_expected_positions", "verify_prev_slot_indices", "verify_request",
        "verify_num_valid", "enable", "left_out")), ("write_req_capacity", L),
        *((n, P) for n in ("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs"))]


class PlanArgs(Struct):
    _fields_ = [("struct_bytes", Z), *((n, P) for n in ("requests", "req_to_token", "expected_tokens", "valid_lens")), ("token_offset", L),
                ("window", L), ("full_to_swa_index_mapping", P), ("exclude", P), ("rotation", P), ("rules", I), ("report", P)]


class Ring(Struct):
    _fields_ = [("struct_bytes", Z), ("rows", P), ("capacity", L), ("columns", I), ("consumed", P), ("write_index", P), ("counters", P),
                ("slot_run_counter", P), ("kernel_run_counter", P), ("device", Device)]


class WriteArgs(Struct):
    _fields_ = [("struct_bytes", Z), *((n, P) for n in ("group", "plan", "requests", "tokens", "positions", "slots", "expected_tokens",
                                                        "expected_positions", "check_steps", "step")), ("launch_tag", L), ("scratch", P),
                ("ring", P), ("rules", I)]


class VerifyArgs(Struct):
    _fields_ = [("struct_bytes", Z), ("group", P), ("plan", P), ("requests", P), ("check_bytes", I), ("check_tokens", I), ("check_finite", I),
                ("rules", I), ("valid_prefix", P), ("launch_tag", L), ("ring", P)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("slug", ctypes.c_char_p), ("where", L), ("message", ctypes.c_char * 512),
                ("hint", ctypes.c_char * 512)]


CODES = {torch.int32: (0, 32), torch.int64: (0, 64), torch.uint8: (1, 8), torch.float32: (2, 32), torch.float16: (2, 16),
         torch.bfloat16: (4, 16), torch.float8_e4m3fn: (10, 8), torch.float8_e5m2: (12, 8)}
_lib = None


def lib():
    global _lib
    if _lib is None:
        path = os.environ.get("KVCANARY_LIB")
        if not path:
            raise Skip("KVCANARY_LIB is not set")
        _lib = ctypes.CDLL(os.path.abspath(path))
        _lib.kvc_last_error.restype = ctypes.POINTER(Error)
    return _lib


def must(status):
    if status:
        error = lib().kvc_last_error().contents
        raise RuntimeError(f"{error.slug.decode()}: {error.message.decode()}")


def cuda():
    return Device(device_type=2, device_id=torch.cuda.current_device())


def tensor(t):
    n = t.dim()
    shape, strides = (L * n)(*t.shape), (L * n)(*t.stride())
    code, bits = CODES[t.dtype]
    out = Tensor(data=t, device_type=2 if t.is_cuda else 1, device_id=t.device.index or 0, ndim=n, code=code, bits=bits, lanes=1,
                 shape=shape, strides=strides)
    out.keep += [t, shape, strides]
    return out


def caller(function, args):
    """args: one struct a distinct set of inputs. Only the call itself is left for the timed loop."""
    function.argtypes = [P, P]
    addresses = [ctypes.addressof(a) for a in args]

    def call(i, _keep=args):
        must(function(addresses[i], stream()))

    return call


# ---- rope ----

_rope = {}


def rope_of(p, table):
    """With the table that the peers read, or computing angles as it goes."""
    key = (p.d, p.cos_sin.data_ptr() if table else 0)
    if key not in _rope:
        cache = tensor(p.cos_sin)
        options = RopeOptions(rotary_dim=p.d, rope_base=500000.0, truncate=1, factor=1.0, cos_sin_cache=cache if table else None)
        _rope[key] = ctypes.create_string_buffer(4096)
        must(lib().kvc_rope_init(_rope[key], ctypes.byref(options)))
    return ctypes.addressof(_rope[key])


def rope_args(case, k_pool, v_pool, table=True, **more):
    p = case.pools
    pools = tensor(k_pool), tensor(v_pool)
    out = []
    for s in case.sets:
        q, k, v, positions, slots = (tensor(x) for x in (s.q, s.k, s.v, s.positions, s.slots))
        fields = dict(q=q, k=k, v=v, positions=positions, slots=slots, k_pool=pools[0], v_pool=pools[1], q_out=q, k_out=k,
                      rope=rope_of(p, table), n_valid=-1, reserved_slot=-1, k_scale=1.0, v_scale=1.0)
        out.append(RopeArgs(**{**fields, **more}))
    return out


def rope(case):
    f = lib().kvc_rope_pool_fused
    p = case.pools
    records = getattr(p, "records", None)
    if records is None:
        records = p.records = torch.zeros(p.slots, 32, dtype=torch.uint8, device="cuda")
    stamp = Stamp(records=records, record_stride_bytes=32, record_count=p.slots, k_id=0, v_id=1, coverage=2, head_bytes=p.d * 2)
    return [{"name": "kvcanary", "call": caller(f, rope_args(case, p.k, p.v)), "check": True},
            {"name": "kvcanary stamp", "call": caller(f, rope_args(case, p.k, p.v, stamp=stamp)), "check": True},
            {"name": "kvcanary computed", "call": caller(f, rope_args(case, p.k, p.v, table=False)), "check": True}]


def rope_fp8(case):
    """Only the pools are fp8: q and k stay bf16, so the bytes are not those of the peers that store q as fp8 too."""
    f = lib().kvc_rope_pool_fused
    p = case.pools
    if getattr(p, "fp8", None) is None:
        p.fp8 = [torch.zeros(p.slots, p.hkv, p.d, dtype=torch.float8_e4m3fn, device="cuda") for _ in range(2)]
    args = rope_args(case, *p.fp8, k_out=None)
    return [{"name": "kvcanary", "call": caller(f, args), "check": True, "tolerance": 0.08, "pools": lambda: tuple(p.fp8)}]


# ---- the canary ----

def scatter(case):
    args = []
    for flat, offsets, rows, pool in case.sets:
        args.append(ScatterArgs(flat_in=tensor(flat), offsets=tensor(offsets), req_pool_indices=tensor(rows), pool_out=tensor(pool)))
    return [{"name": "kvcanary", "call": caller(lib().kvc_scatter_req_token_ids, args), "check": True}]


class Sinks:
    def __init__(self):
        d = "cuda"
        self.rows = torch.zeros(1024, 16, dtype=torch.int64, device=d)
        self.counters = torch.zeros(64, dtype=torch.int64, device=d)
        self.consumed = torch.zeros(1, dtype=torch.int64, device=d)
        self.ring = Ring(rows=self.rows, capacity=1024, columns=16, consumed=self.consumed, counters=self.counters, device=cuda())


_sinks = None


def sinks():
    global _sinks
    if _sinks is None:
        _sinks = Sinks()
    return _sinks


def group_of(case, fingerprint):
    row = case.source.shape[1]
    source = Source(base=case.source, row_count=case.source.shape[0], row_stride_bytes=row, page_size=1, slot_stride_bytes=row, head_count=1,
                    head_bytes=row, head_stride_bytes=row, read_bytes=row, id=0, code=1, bits=8, lanes=1)
    sources = (Source * 1)(source)
    group = Group(records=case.canary, record_count=case.canary.shape[0], record_stride_bytes=32, sources=ctypes.addressof(sources),
                  source_count=1, fingerprint=fingerprint, coverage=int(case.mode), reserved_slot=-1, device=cuda())
    group.keep += [sources, case.source, case.canary]
    return group


def fingerprints(case):
    return [("kvcanary", 0), ("kvcanary splitmix", 1)] if case.mode else [("kvcanary", 0)]


def write_args(case, fingerprint):
    group = group_of(case, fingerprint)
    out = []
    for offsets, seeds, valid, ids, positions, slots in case.sets:
        plan = Plan(device=cuda(), write_req_capacity=case.sets[0][1].numel(), write_offsets=offsets, write_seed_slot_indices=seeds,
                    write_num_valid_reqs=valid)
        plan.keep += [offsets, seeds, valid]
        out.append(WriteArgs(group=group, plan=plan, tokens=tensor(ids), positions=tensor(positions), slots=tensor(slots), launch_tag=33,
                             ring=sinks().ring))
    return out


def write(case):
    return [{"name": name, "call": caller(lib().kvc_canary_write, write_args(case, fingerprint))} for name, fingerprint in fingerprints(case)]


def verify(case):
    out = []
    slots, tokens, positions, prev, valid = case.plan
    for name, fingerprint in fingerprints(case):
        group = group_of(case, fingerprint)
        plan = Plan(device=cuda(), verify_capacity=slots.numel(), verify_slot_indices=slots, verify_expected_tokens=tokens,
                    verify_expected_positions=positions, verify_prev_slot_indices=prev, verify_num_valid=valid,
                    enable=torch.ones(1, dtype=torch.int32, device="cuda"))
        args = VerifyArgs(group=group, plan=plan, check_bytes=1, check_tokens=1, launch_tag=32, ring=sinks().ring)
        stamp = caller(lib().kvc_canary_write, write_args(case, fingerprint))

        def prepare(stamp=stamp):
            """The records as this fingerprint stamps them."""
            stamp(0)
            sinks().counters.zero_()

        out.append({"name": name, "call": caller(lib().kvc_canary_verify, [args]), "prepare": prepare,
                    "violations": lambda: int(sinks().counters[0].item()), "keep": plan})
    return out


def plan(case):
    c = case
    requests = Requests(req_pool_indices=tensor(c.rows), prefix_lens=tensor(c.prefix), extend_seq_lens=tensor(c.extend))
    out = Plan(device=cuda(), verify_capacity=c.capacity, verify_slot_indices=c.out_slots, verify_expected_tokens=c.out_tokens,
               verify_expected_positions=c.out_positions, verify_prev_slot_indices=c.out_prev, verify_num_valid=c.num_valid,
               enable=c.enable, write_req_capacity=c.bs, write_offsets=c.write_offsets, write_seed_slot_indices=c.seeds,
               write_num_valid_reqs=c.num_reqs)
    args = PlanArgs(requests=requests, req_to_token=tensor(c.table), expected_tokens=tensor(c.tokens), valid_lens=tensor(c.valid_lens))
    f = lib().kvc_canary_plan
    f.argtypes = [P, P, P]
    addresses = ctypes.addressof(out), ctypes.addressof(args)

    def call(i, _keep=(out, args)):
        must(f(*addresses, stream()))

    return [{"name": "kvcanary", "call": call, "check": True}]


def checksum(case):
    raise Skip("a checksum of rows is kvc_fingerprint over a group; measured as verify")
