"""Our own library (KVCANARY_LIB names libkvcanary.so), all checks on, and the same around kernels that only move bytes
(KVCANARY_MOVES_LIB, libkvcanary_moves.so; src/cuda/moves.cuh). What is not named is shown as skipped.

The structs mirror include/kvcanary.h field by field; every call goes through the public functions.
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
_libraries, _rope = {}, {}


class Library:
    def __init__(self, name, path):
        self.name, self.path, self.is_ours = name, path, name == "kvcanary"
        self.functions = ctypes.CDLL(path)
        self.functions.kvc_last_error.restype = ctypes.POINTER(Error)

    def must(self, status):
        if status:
            error = self.functions.kvc_last_error().contents
            raise RuntimeError(f"{error.slug.decode()}: {error.message.decode()}")

    def caller(self, name, args, pattern):
        """args: the arguments but the stream, one tuple a distinct set of inputs; structs go by address. Only the call itself is
        left for the timed loop."""
        function, must = getattr(self.functions, name), self.must
        function.argtypes = pattern + [P]
        plain = [tuple(ctypes.addressof(x) if isinstance(x, ctypes.Structure) else x for x in a) for a in args]

        def call(i, _keep=args):
            must(function(*plain[i], stream()))

        return call

    def entry(self, call, label="", **more):
        return {"name": f"{self.name} {label}".strip(), "call": call, "check": self.is_ours, "ours": self.is_ours, **more}


def libraries():
    out = []
    for name, path in (("kvcanary", os.environ.get("KVCANARY_LIB")), ("moves", os.environ.get("KVCANARY_MOVES_LIB"))):
        if path and (name, path) not in _libraries:
            _libraries[name, path] = Library(name, os.path.abspath(path))
        if path:
            out.append(_libraries[name, path])
    if not out:
        raise Skip("neither KVCANARY_LIB nor KVCANARY_MOVES_LIB is set")
    return out


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


# ---- rope ----

def rope_of(library, p, table):
    """With the table that the peers read, or computing angles as it goes."""
    key = (library.path, p.d, p.cos_sin.data_ptr() if table else 0)
    if key not in _rope:
        cache = tensor(p.cos_sin)
        options = RopeOptions(rotary_dim=p.d, rope_base=500000.0, truncate=1, factor=1.0, cos_sin_cache=cache if table else None)
        _rope[key] = ctypes.create_string_buffer(4096)
        library.must(library.functions.kvc_rope_init(_rope[key], ctypes.byref(options)))
    return ctypes.addressof(_rope[key])


def rope_call(library, case, k_pool, v_pool, table=True, **more):
    p = case.pools
    pools = tensor(k_pool), tensor(v_pool)
    out = []
    for s in case.sets:
        q, k, v, positions, slots = (tensor(x) for x in (s.q, s.k, s.v, s.positions, s.slots))
        fields = dict(q=q, k=k, v=v, positions=positions, slots=slots, k_pool=pools[0], v_pool=pools[1], q_out=q, k_out=k,
                      rope=rope_of(library, p, table), n_valid=-1, reserved_slot=-1, k_scale=1.0, v_scale=1.0)
        out.append((RopeArgs(**{**fields, **more}),))
    return library.caller("kvc_rope_pool_fused", out, [P])


def rope(case):
    p = case.pools
    if getattr(p, "records", None) is None:
        p.records = torch.zeros(p.slots, 32, dtype=torch.uint8, device="cuda")
    stamp = Stamp(records=p.records, record_stride_bytes=32, record_count=p.slots, k_id=0, v_id=1, coverage=2, head_bytes=p.d * 2)
    out = []
    for library in libraries():
        out += [library.entry(rope_call(library, case, p.k, p.v)),
                library.entry(rope_call(library, case, p.k, p.v, stamp=stamp), "stamp"),
                library.entry(rope_call(library, case, p.k, p.v, table=False), "computed")]
    return out


def rope_fp8(case):
    """Only the pools are fp8: q and k stay bf16, so the bytes are not those of the peers that store q as fp8 too."""
    p = case.pools
    if getattr(p, "fp8", None) is None:
        p.fp8 = [torch.zeros(p.slots, p.hkv, p.d, dtype=torch.float8_e4m3fn, device="cuda") for _ in range(2)]
    return [library.entry(rope_call(library, case, *p.fp8, k_out=None), tolerance=0.08, pools=lambda: tuple(p.fp8)) for library in libraries()]


# ---- the canary ----

def scatter(case):
    args = [(ScatterArgs(flat_in=tensor(flat), offsets=tensor(offsets), req_pool_indices=tensor(rows), pool_out=tensor(pool)),)
            for flat, offsets, rows, pool in case.sets]
    return [library.entry(library.caller("kvc_scatter_req_token_ids", args, [P])) for library in libraries()]


class Sinks:
    def __init__(self):
        d = "cuda"
        self.rows = torch.zeros(1024, 16, dtype=torch.int64, device=d)
        self.counters = torch.zeros(64, dtype=torch.int64, device=d)
        self.consumed = torch.zeros(1, dtype=torch.int64, device=d)
        self.ring = Ring(rows=self.rows, capacity=1024, columns=16, consumed=self.consumed, counters=self.counters, device=cuda())

    def violations(self):
        return int(self.counters[0].item())


_sinks = None


def sinks():
    global _sinks
    if _sinks is None:
        _sinks = Sinks()
    return _sinks


def group_over(rows, fingerprint, coverage, records=None):
    """One source: a row of `rows` a slot."""
    count, row = rows.shape[0], rows.shape[1] * rows.element_size()
    code, bits = CODES[rows.dtype]
    source = Source(base=rows, row_count=count, row_stride_bytes=row, page_size=1, slot_stride_bytes=row, head_count=1, head_bytes=row,
                    head_stride_bytes=row, read_bytes=row, id=0, code=code, bits=bits, lanes=1)
    sources = (Source * 1)(source)
    group = Group(records=records, record_count=0 if records is None else records.shape[0], record_stride_bytes=32, sources=ctypes.addressof(sources),
                  source_count=1, fingerprint=fingerprint, coverage=coverage, reserved_slot=-1, device=cuda())
    group.keep += [sources, rows, records]
    return group


def group_of(case, fingerprint):
    return group_over(case.source, fingerprint, int(case.mode), case.canary)


def fingerprints(case):
    return [("", 0), ("splitmix", 1)] if case.mode else [("", 0)]


def write_call(library, case, fingerprint):
    group = group_of(case, fingerprint)
    out = []
    for offsets, seeds, valid, ids, positions, slots in case.sets:
        plan = Plan(device=cuda(), write_req_capacity=case.sets[0][1].numel(), write_offsets=offsets, write_seed_slot_indices=seeds,
                    write_num_valid_reqs=valid)
        plan.keep += [offsets, seeds, valid]
        out.append((WriteArgs(group=group, plan=plan, tokens=tensor(ids), positions=tensor(positions), slots=tensor(slots), launch_tag=33,
                              ring=sinks().ring),))
    return library.caller("kvc_canary_write", out, [P])


def write(case):
    return [library.entry(write_call(library, case, fingerprint), label) for library in libraries() for label, fingerprint in fingerprints(case)]


def verify_plan(case):
    slots, tokens, positions, prev, valid = case.plan
    offsets, seeds, requests = case.sets[0][:3]
    return Plan(device=cuda(), verify_capacity=slots.numel(), verify_slot_indices=slots, verify_expected_tokens=tokens, verify_expected_positions=positions,
                verify_prev_slot_indices=prev, verify_num_valid=valid, enable=torch.ones(1, dtype=torch.int32, device="cuda"),
                write_req_capacity=seeds.numel(), write_offsets=offsets, write_seed_slot_indices=seeds, write_num_valid_reqs=requests)


def verify(case):
    out = []
    plan = verify_plan(case)
    for library in libraries():
        for label, fingerprint in fingerprints(case):
            args = VerifyArgs(group=group_of(case, fingerprint), plan=plan, check_bytes=1, check_tokens=1, launch_tag=32, ring=sinks().ring)
            more = {}
            if library.is_ours:
                stamp = write_call(library, case, fingerprint)

                def prepare(stamp=stamp):
                    """The records as this fingerprint stamps them."""
                    stamp(0)
                    sinks().counters.zero_()

                more = {"prepare": prepare, "violations": sinks().violations}
            out.append(library.entry(library.caller("kvc_canary_verify", [(args,)], [P]), label, **more))
    return out


def check_plan(case):
    """Every slot is planned once, so nothing is aliased."""
    plan, group, scratch = verify_plan(case), group_of(case, 0), torch.zeros(2, case.canary.shape[0], dtype=torch.int64, device="cuda")
    args = [(plan, group, None, tensor(scratch), sinks().ring)]
    return [library.entry(library.caller("kvc_canary_check_plan", args, [P] * 5), prepare=lambda: sinks().counters.zero_(),
                          **({"violations": sinks().violations} if library.is_ours else {})) for library in libraries()]


def plan(case):
    c = case
    requests = Requests(req_pool_indices=tensor(c.rows), prefix_lens=tensor(c.prefix), extend_seq_lens=tensor(c.extend))
    out = Plan(device=cuda(), verify_capacity=c.capacity, verify_slot_indices=c.out_slots, verify_expected_tokens=c.out_tokens,
               verify_expected_positions=c.out_positions, verify_prev_slot_indices=c.out_prev, verify_num_valid=c.num_valid,
               enable=c.enable, write_req_capacity=c.bs, write_offsets=c.write_offsets, write_seed_slot_indices=c.seeds,
               write_num_valid_reqs=c.num_reqs)
    args = PlanArgs(requests=requests, req_to_token=tensor(c.table), expected_tokens=tensor(c.tokens), valid_lens=tensor(c.valid_lens))
    return [library.entry(library.caller("kvc_canary_plan", [(out, args)], [P, P])) for library in libraries()]


def checksum(case):
    group = group_over(case.rows, 0, 2)
    out = torch.zeros(case.items, dtype=torch.int64, device="cuda")
    args = [(out.data_ptr(), group, tensor(case.slots))]
    entries = [library.entry(library.caller("kvc_fingerprint", args, [P] * 3)) for library in libraries()]
    entries[0]["keep"] = out
    return entries


def scan_finite(case):
    group = group_over(case.rows, 0, 2)
    out = torch.zeros(6, dtype=torch.int64, device="cuda")
    args = [(out.data_ptr(), group, tensor(case.slots))]
    return [library.entry(library.caller("kvc_canary_scan_finite", args, [P] * 3), keep=out,
                          **({"violations": lambda: int(out[1].item())} if library.is_ours else {})) for library in libraries()]
