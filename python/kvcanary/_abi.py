"""The C interface as ctypes sees it. Made by generate_abi.py from include/kvcanary.h."""

# fmt: off
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from enum import IntEnum, IntFlag
from typing import Any

from ._struct import Struct

KVC_CAUSE_ALIASED = 9
KVC_CAUSE_BYTES_DAMAGED = 1
KVC_CAUSE_NEVER_WRITTEN = 4
KVC_CAUSE_NONFINITE = 7
KVC_CAUSE_OUT_OF_RANGE = 8
KVC_CAUSE_OVERWRITTEN = 2
KVC_CAUSE_UNKNOWN = 0
KVC_CAUSE_WRONG_POSITION = 5
KVC_CAUSE_WRONG_SLOT = 3
KVC_CAUSE_WRONG_TOKEN = 6
KVC_CODE_BFLOAT = 4
KVC_CODE_BOOL = 6
KVC_CODE_FLOAT = 2
KVC_CODE_FLOAT8_E4M3FN = 10
KVC_CODE_FLOAT8_E5M2 = 12
KVC_CODE_INT = 0
KVC_CODE_UINT = 1
KVC_COVERAGE_ALL = 2
KVC_COVERAGE_NONE = 0
KVC_COVERAGE_PARTIAL = 1
KVC_DEVICE_CPU = 1
KVC_DEVICE_CUDA = 2
KVC_DEVICE_CUDA_HOST = 3
KVC_DEVICE_CUDA_MANAGED = 13
KVC_E_CONFIG = 80
KVC_E_CUDA = 190
KVC_E_DEVICE = 40
KVC_E_DTYPE = 30
KVC_E_INVALID_ARGUMENT = 10
KVC_E_LENGTH = 70
KVC_E_NONFINITE = 150
KVC_E_NO_CUDA = 160
KVC_E_NO_MEMORY = 170
KVC_E_OVERLAP = 60
KVC_E_POSITION_RANGE = 110
KVC_E_ROW_DUPLICATE = 140
KVC_E_ROW_RANGE = 130
KVC_E_SHAPE = 20
KVC_E_SLOT_DUPLICATE = 100
KVC_E_SLOT_RANGE = 90
KVC_E_STATE = 180
KVC_E_STRIDE = 50
KVC_E_TOKEN_RANGE = 120
KVC_FINGERPRINT_SPLITMIX = 1
KVC_FINGERPRINT_XXH3 = 0
KVC_OK = 0
KVC_POSITION_MAX = 16777216
KVC_REASON_CHAIN_END = 512
KVC_REASON_COUNT = 11
KVC_REASON_NEVER_STAMPED = 64
KVC_REASON_NONFINITE = 128
KVC_REASON_SLOT_ALIASED = 1024
KVC_REASON_SLOT_RANGE = 256
KVC_REASON_VERIFY_CHAIN_HASH = 1
KVC_REASON_VERIFY_POSITION = 2
KVC_REASON_VERIFY_REAL_KV_HASH = 4
KVC_REASON_VERIFY_TOKEN = 32
KVC_REASON_WRITE_POSITION = 16
KVC_REASON_WRITE_TOKEN = 8
KVC_RECORD_BYTES = 32
KVC_REPORT_COLUMN_RANGE = 6
KVC_REPORT_LENGTH = 10
KVC_REPORT_MAPPING_RANGE = 7
KVC_REPORT_NONFINITE = 3
KVC_REPORT_OFFSETS = 8
KVC_REPORT_POSITION_RANGE = 1
KVC_REPORT_REASON_COUNT = 16
KVC_REPORT_ROW_DUPLICATE = 5
KVC_REPORT_ROW_RANGE = 4
KVC_REPORT_SLOT_DUPLICATE = 2
KVC_REPORT_SLOT_RANGE = 0
KVC_REPORT_TOKEN_RANGE = 9
KVC_ROPE_INTERLEAVED = 1
KVC_ROPE_NEOX = 0
KVC_ROPE_SCALING_LINEAR = 1
KVC_ROPE_SCALING_LLAMA3 = 2
KVC_ROPE_SCALING_NONE = 0
KVC_ROPE_SCALING_YARN = 3
KVC_ROTARY_DIM_MAX = 512
KVC_RULES_OWN = 0
KVC_RULES_SGLANG = 1
KVC_SGLANG_PLAN_REQUESTS_MAX = 4096
KVC_SGLANG_SCATTER_REQUESTS_MAX = 511
KVC_SGLANG_SOURCES_MAX = 4
KVC_STAMP_CLEAR = 1
KVC_STAMP_COMPUTE = 0
KVC_TAG_HEAD_K_FULL = 0
KVC_TAG_HEAD_K_SWA = 6
KVC_TAG_HEAD_V_FULL = 1
KVC_TAG_HEAD_V_SWA = 7
KVC_TAG_STEP_READ = 32
KVC_TAG_STEP_WRITE = 33
KVC_TAG_SWEEP = 34
KVC_TAG_SWEEP_K_FULL = 4
KVC_TAG_SWEEP_K_SWA = 10
KVC_TAG_SWEEP_V_FULL = 5
KVC_TAG_SWEEP_V_SWA = 11
KVC_TAG_TAIL_K_FULL = 2
KVC_TAG_TAIL_K_SWA = 8
KVC_TAG_TAIL_V_FULL = 3
KVC_TAG_TAIL_V_SWA = 9
KVC_VERSION_MAJOR = 0
KVC_VERSION_MINOR = 1
KVC_VERSION_PATCH = 0


class Status(IntEnum):
    """The family of an error."""

    OK = 0
    E_INVALID_ARGUMENT = 10
    E_SHAPE = 20
    E_DTYPE = 30
    E_DEVICE = 40
    E_STRIDE = 50
    E_OVERLAP = 60
    E_LENGTH = 70
    E_CONFIG = 80
    E_SLOT_RANGE = 90
    E_SLOT_DUPLICATE = 100
    E_POSITION_RANGE = 110
    E_TOKEN_RANGE = 120
    E_ROW_RANGE = 130
    E_ROW_DUPLICATE = 140
    E_NONFINITE = 150
    E_NO_CUDA = 160
    E_NO_MEMORY = 170
    E_STATE = 180
    E_CUDA = 190


class Reason(IntFlag):
    """Why a slot was reported."""

    VERIFY_CHAIN_HASH = 1
    VERIFY_POSITION = 2
    VERIFY_REAL_KV_HASH = 4
    WRITE_TOKEN = 8
    WRITE_POSITION = 16
    VERIFY_TOKEN = 32
    NEVER_STAMPED = 64
    NONFINITE = 128
    SLOT_RANGE = 256
    CHAIN_END = 512
    SLOT_ALIASED = 1024


class LaunchTag(IntEnum):
    """Who asked for a check or a write; 0 to 11 are SGLang's."""

    HEAD_K_FULL = 0
    HEAD_V_FULL = 1
    TAIL_K_FULL = 2
    TAIL_V_FULL = 3
    SWEEP_K_FULL = 4
    SWEEP_V_FULL = 5
    HEAD_K_SWA = 6
    HEAD_V_SWA = 7
    TAIL_K_SWA = 8
    TAIL_V_SWA = 9
    SWEEP_K_SWA = 10
    SWEEP_V_SWA = 11
    STEP_READ = 32
    STEP_WRITE = 33
    SWEEP = 34


class Cause(IntEnum):
    """What most likely happened, as the guard judges."""

    UNKNOWN = 0
    BYTES_DAMAGED = 1
    OVERWRITTEN = 2
    WRONG_SLOT = 3
    NEVER_WRITTEN = 4
    WRONG_POSITION = 5
    WRONG_TOKEN = 6
    NONFINITE = 7
    OUT_OF_RANGE = 8
    ALIASED = 9


class ReportReason(IntEnum):
    """Why a row was left out on CUDA."""

    SLOT_RANGE = 0
    POSITION_RANGE = 1
    SLOT_DUPLICATE = 2
    NONFINITE = 3
    ROW_RANGE = 4
    ROW_DUPLICATE = 5
    COLUMN_RANGE = 6
    MAPPING_RANGE = 7
    OFFSETS = 8
    TOKEN_RANGE = 9
    LENGTH = 10


kvc_range_fn = CFUNCTYPE(None, c_void_p, c_int64, c_int64)
kvc_parallel_for_fn = CFUNCTYPE(None, c_void_p, c_int64, c_int64, kvc_range_fn, c_void_p)
kvc_sweep_fn = CFUNCTYPE(c_int64, c_void_p, c_void_p, c_int64)


class kvc_device(Struct):
    device_type: int
    device_id: int
    _fields_ = [
        ("device_type", c_int32),
        ("device_id", c_int32),
    ]


class kvc_dtype(Struct):
    code: int
    bits: int
    lanes: int
    _fields_ = [
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
    ]


class kvc_tensor(Struct):
    data: int | None
    device: kvc_device
    ndim: int
    dtype: kvc_dtype
    shape: int | None
    strides: int | None
    byte_offset: int
    _fields_ = [
        ("data", c_void_p),
        ("device", kvc_device),
        ("ndim", c_int32),
        ("dtype", kvc_dtype),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class kvc_error(Struct):
    status: int
    slug: bytes | None
    where: int
    message: bytes
    hint: bytes
    _fields_ = [
        ("status", c_int),
        ("slug", c_char_p),
        ("where", c_int64),
        ("message", c_char * 512),
        ("hint", c_char * 512),
    ]


class kvc_catalog_entry(Struct):
    id: bytes | None
    slug: bytes | None
    status: int
    kind: bytes | None
    message: bytes | None
    pattern: bytes | None
    error_type: bytes | None
    error_class: bytes | None
    severity: bytes | None
    hint: bytes | None
    documentation: bytes | None
    trigger_scenarios: bytes | None
    common_situations: bytes | None
    solutions: int | None
    fix_language: bytes | None
    fix_before: bytes | None
    fix_after: bytes | None
    validation_code: bytes | None
    prevention_tips: int | None
    tags: int | None
    record_json: bytes | None
    _fields_ = [
        ("id", c_char_p),
        ("slug", c_char_p),
        ("status", c_int),
        ("kind", c_char_p),
        ("message", c_char_p),
        ("pattern", c_char_p),
        ("error_type", c_char_p),
        ("error_class", c_char_p),
        ("severity", c_char_p),
        ("hint", c_char_p),
        ("documentation", c_char_p),
        ("trigger_scenarios", c_char_p),
        ("common_situations", c_char_p),
        ("solutions", c_void_p),
        ("fix_language", c_char_p),
        ("fix_before", c_char_p),
        ("fix_after", c_char_p),
        ("validation_code", c_char_p),
        ("prevention_tips", c_void_p),
        ("tags", c_void_p),
        ("record_json", c_char_p),
    ]


class kvc_cpu_variant(Struct):
    name: bytes | None
    supported: int
    chosen: int
    _fields_ = [
        ("name", c_char_p),
        ("supported", c_int32),
        ("chosen", c_int32),
    ]


class kvc_cuda_device(Struct):
    name: bytes
    compute_major: int
    compute_minor: int
    multiprocessors: int
    supported: int
    memory_bytes: int
    _fields_ = [
        ("name", c_char * 64),
        ("compute_major", c_int32),
        ("compute_minor", c_int32),
        ("multiprocessors", c_int32),
        ("supported", c_int32),
        ("memory_bytes", c_int64),
    ]


class kvc_rope_options(Struct):
    struct_bytes: int
    rotary_dim: int
    style: int
    rope_base: float
    scaling: int
    truncate: int
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: float
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float
    attention_factor: float
    inv_freq: int | None
    cos_sin_cache: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("rotary_dim", c_int32),
        ("style", c_int32),
        ("rope_base", c_double),
        ("scaling", c_int32),
        ("truncate", c_int32),
        ("factor", c_double),
        ("low_freq_factor", c_double),
        ("high_freq_factor", c_double),
        ("original_max_position", c_double),
        ("beta_fast", c_double),
        ("beta_slow", c_double),
        ("mscale", c_double),
        ("mscale_all_dim", c_double),
        ("attention_factor", c_double),
        ("inv_freq", c_void_p),
        ("cos_sin_cache", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"rotary_dim": -1, "style": 0, "rope_base": 10000.0, "scaling": 0, "truncate": 1, "factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 0.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0, "attention_factor": 0.0, "inv_freq": None, "cos_sin_cache": None}


class kvc_rope(Struct):
    struct_bytes: int
    rotary_dim: int
    style: int
    attention_factor: float
    cos_sin: int | None
    cos_sin_rows: int
    cos_sin_row_stride: int
    cos_sin_device: kvc_device
    inv_freq: Any
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("rotary_dim", c_int32),
        ("style", c_int32),
        ("attention_factor", c_double),
        ("cos_sin", c_void_p),
        ("cos_sin_rows", c_int64),
        ("cos_sin_row_stride", c_int64),
        ("cos_sin_device", kvc_device),
        ("inv_freq", c_double * 256),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {}


class kvc_report(Struct):
    count: Any
    first: Any
    rows_written: int
    rows_skipped: int
    tokens_truncated: int
    _fields_ = [
        ("count", c_int64 * 16),
        ("first", c_int64 * 16),
        ("rows_written", c_int64),
        ("rows_skipped", c_int64),
        ("tokens_truncated", c_int64),
    ]


class kvc_stamp(Struct):
    struct_bytes: int
    records: int | None
    record_stride_bytes: int
    record_count: int
    k_id: int
    v_id: int
    coverage: int
    head_bytes: int
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("records", c_void_p),
        ("record_stride_bytes", c_int64),
        ("record_count", c_int64),
        ("k_id", c_uint64),
        ("v_id", c_uint64),
        ("coverage", c_int32),
        ("head_bytes", c_int64),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"records": None, "record_stride_bytes": 32, "record_count": 0, "k_id": 0, "v_id": 0, "coverage": 2, "head_bytes": 0}


class kvc_rope_pool_args(Struct):
    struct_bytes: int
    q: int | None
    k: int | None
    v: int | None
    positions: int | None
    slots: int | None
    k_pool: int | None
    v_pool: int | None
    q_out: int | None
    k_out: int | None
    rope: int | None
    head_dim: int
    num_qo_heads: int
    num_kv_heads: int
    n_valid: int
    rotary_offset: int
    q_rotary_offset: int
    reserved_slot: int
    check_duplicates: int
    check_finite: int
    k_scale: float
    v_scale: float
    scratch: int | None
    stamp: int | None
    report: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("k_pool", c_void_p),
        ("v_pool", c_void_p),
        ("q_out", c_void_p),
        ("k_out", c_void_p),
        ("rope", c_void_p),
        ("head_dim", c_int64),
        ("num_qo_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("n_valid", c_int64),
        ("rotary_offset", c_int64),
        ("q_rotary_offset", c_int64),
        ("reserved_slot", c_int64),
        ("check_duplicates", c_int32),
        ("check_finite", c_int32),
        ("k_scale", c_float),
        ("v_scale", c_float),
        ("scratch", c_void_p),
        ("stamp", c_void_p),
        ("report", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"q": None, "k": None, "v": None, "positions": None, "slots": None, "k_pool": None, "v_pool": None, "q_out": None, "k_out": None, "rope": None, "head_dim": 0, "num_qo_heads": 0, "num_kv_heads": 0, "n_valid": -1, "rotary_offset": 0, "q_rotary_offset": 0, "reserved_slot": -1, "check_duplicates": 0, "check_finite": 0, "k_scale": 1.0, "v_scale": 1.0, "scratch": None, "stamp": None, "report": None}


class kvc_scatter_args(Struct):
    struct_bytes: int
    flat_in: int | None
    offsets: int | None
    req_pool_indices: int | None
    pool_out: int | None
    rules: int
    allow_placeholder: int
    narrow: int
    report: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("flat_in", c_void_p),
        ("offsets", c_void_p),
        ("req_pool_indices", c_void_p),
        ("pool_out", c_void_p),
        ("rules", c_int32),
        ("allow_placeholder", c_int32),
        ("narrow", c_int32),
        ("report", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"flat_in": None, "offsets": None, "req_pool_indices": None, "pool_out": None, "rules": 0, "allow_placeholder": 0, "narrow": 0, "report": None}


class kvc_record(Struct):
    token: int
    position: int
    prev_hash: int
    fingerprint: int
    _fields_ = [
        ("token", c_int64),
        ("position", c_int64),
        ("prev_hash", c_uint64),
        ("fingerprint", c_uint64),
    ]


class kvc_owner(Struct):
    request: int
    step: int
    tag: int
    _fields_ = [
        ("request", c_int64),
        ("step", c_uint32),
        ("tag", c_uint32),
    ]


class kvc_source(Struct):
    base: int | None
    row_count: int
    row_stride_bytes: int
    page_size: int
    slot_stride_bytes: int
    head_count: int
    head_bytes: int
    head_stride_bytes: int
    read_bytes: int
    id: int
    dtype: kvc_dtype
    unit_bytes: int
    gather: int | None
    _fields_ = [
        ("base", c_void_p),
        ("row_count", c_int64),
        ("row_stride_bytes", c_int64),
        ("page_size", c_int64),
        ("slot_stride_bytes", c_int64),
        ("head_count", c_int64),
        ("head_bytes", c_int64),
        ("head_stride_bytes", c_int64),
        ("read_bytes", c_int64),
        ("id", c_uint64),
        ("dtype", kvc_dtype),
        ("unit_bytes", c_int32),
        ("gather", c_void_p),
    ]


class kvc_group(Struct):
    struct_bytes: int
    records: int | None
    record_count: int
    record_stride_bytes: int
    owners: int | None
    sources: int | None
    source_count: int
    fingerprint: int
    coverage: int
    stamping: int
    reserved_slot: int
    device: kvc_device
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("records", c_void_p),
        ("record_count", c_int64),
        ("record_stride_bytes", c_int64),
        ("owners", c_void_p),
        ("sources", c_void_p),
        ("source_count", c_int64),
        ("fingerprint", c_int32),
        ("coverage", c_int32),
        ("stamping", c_int32),
        ("reserved_slot", c_int64),
        ("device", kvc_device),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"records": None, "record_count": 0, "record_stride_bytes": 32, "owners": None, "sources": None, "source_count": 0, "fingerprint": 0, "coverage": 2, "stamping": 0, "reserved_slot": -1, "device": (1, 0)}


class kvc_finite_scan(Struct):
    slots_scanned: int
    nonfinite_count: int
    first_slot: int
    first_source_id: int
    first_head: int
    first_dim: int
    _fields_ = [
        ("slots_scanned", c_int64),
        ("nonfinite_count", c_int64),
        ("first_slot", c_int64),
        ("first_source_id", c_int64),
        ("first_head", c_int64),
        ("first_dim", c_int64),
    ]


class kvc_requests(Struct):
    struct_bytes: int
    req_pool_indices: int | None
    prefix_lens: int | None
    extend_seq_lens: int | None
    namespaces: int | None
    verify_chain_in: int | None
    write_chain_in: int | None
    chain_end: int | None
    start: int | None
    owner_request: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("req_pool_indices", c_void_p),
        ("prefix_lens", c_void_p),
        ("extend_seq_lens", c_void_p),
        ("namespaces", c_void_p),
        ("verify_chain_in", c_void_p),
        ("write_chain_in", c_void_p),
        ("chain_end", c_void_p),
        ("start", c_void_p),
        ("owner_request", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"req_pool_indices": None, "prefix_lens": None, "extend_seq_lens": None, "namespaces": None, "verify_chain_in": None, "write_chain_in": None, "chain_end": None, "start": None, "owner_request": None}


class kvc_plan(Struct):
    struct_bytes: int
    device: kvc_device
    verify_capacity: int
    verify_slot_indices: int | None
    verify_expected_tokens: int | None
    verify_expected_positions: int | None
    verify_prev_slot_indices: int | None
    verify_request: int | None
    verify_num_valid: int | None
    enable: int | None
    left_out: int | None
    write_req_capacity: int
    write_offsets: int | None
    write_seed_slot_indices: int | None
    write_num_valid_reqs: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("device", kvc_device),
        ("verify_capacity", c_int64),
        ("verify_slot_indices", c_void_p),
        ("verify_expected_tokens", c_void_p),
        ("verify_expected_positions", c_void_p),
        ("verify_prev_slot_indices", c_void_p),
        ("verify_request", c_void_p),
        ("verify_num_valid", c_void_p),
        ("enable", c_void_p),
        ("left_out", c_void_p),
        ("write_req_capacity", c_int64),
        ("write_offsets", c_void_p),
        ("write_seed_slot_indices", c_void_p),
        ("write_num_valid_reqs", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {}


class kvc_plan_args(Struct):
    struct_bytes: int
    requests: int | None
    req_to_token: int | None
    expected_tokens: int | None
    valid_lens: int | None
    token_offset: int
    window: int
    full_to_swa_index_mapping: int | None
    exclude: int | None
    rotation: int | None
    rules: int
    report: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("requests", c_void_p),
        ("req_to_token", c_void_p),
        ("expected_tokens", c_void_p),
        ("valid_lens", c_void_p),
        ("token_offset", c_int64),
        ("window", c_int64),
        ("full_to_swa_index_mapping", c_void_p),
        ("exclude", c_void_p),
        ("rotation", c_void_p),
        ("rules", c_int32),
        ("report", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"requests": None, "req_to_token": None, "expected_tokens": None, "valid_lens": None, "token_offset": 0, "window": 0, "full_to_swa_index_mapping": None, "exclude": None, "rotation": None, "rules": 0, "report": None}


class kvc_violation(Struct):
    launch_tag: int
    slot: int
    position: int
    stored_token: int
    expected_token: int
    stored_chain: int
    expected_aux: int
    reasons: int
    expected_position: int
    stored_fingerprint: int
    expected_fingerprint: int
    request_row: int
    owner_request: int
    owner_step: int
    source_id: int
    sequence: int
    _fields_ = [
        ("launch_tag", c_int64),
        ("slot", c_int64),
        ("position", c_int64),
        ("stored_token", c_int64),
        ("expected_token", c_int64),
        ("stored_chain", c_uint64),
        ("expected_aux", c_uint64),
        ("reasons", c_int64),
        ("expected_position", c_int64),
        ("stored_fingerprint", c_uint64),
        ("expected_fingerprint", c_uint64),
        ("request_row", c_int64),
        ("owner_request", c_int64),
        ("owner_step", c_int64),
        ("source_id", c_int64),
        ("sequence", c_int64),
    ]


class kvc_counters(Struct):
    violations: int
    dropped: int
    reasons: Any
    kernel_runs: int
    slots_run: int
    slots_skipped: int
    chain_unchecked: int
    bytes_hashed: int
    left_out: int
    _fields_ = [
        ("violations", c_int64),
        ("dropped", c_int64),
        ("reasons", c_int64 * 16),
        ("kernel_runs", c_int64),
        ("slots_run", c_int64),
        ("slots_skipped", c_int64),
        ("chain_unchecked", c_int64),
        ("bytes_hashed", c_int64),
        ("left_out", c_int64),
    ]


class kvc_ring(Struct):
    struct_bytes: int
    rows: int | None
    capacity: int
    columns: int
    consumed: int | None
    write_index: int | None
    counters: int | None
    slot_run_counter: int | None
    kernel_run_counter: int | None
    device: kvc_device
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("rows", c_void_p),
        ("capacity", c_int64),
        ("columns", c_int32),
        ("consumed", c_void_p),
        ("write_index", c_void_p),
        ("counters", c_void_p),
        ("slot_run_counter", c_void_p),
        ("kernel_run_counter", c_void_p),
        ("device", kvc_device),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"rows": None, "capacity": 0, "columns": 16, "consumed": None, "write_index": None, "counters": None, "slot_run_counter": None, "kernel_run_counter": None, "device": (1, 0)}


class kvc_write_args(Struct):
    struct_bytes: int
    group: int | None
    plan: int | None
    requests: int | None
    tokens: int | None
    positions: int | None
    slots: int | None
    expected_tokens: int | None
    expected_positions: int | None
    check_steps: int | None
    step: int | None
    launch_tag: int
    scratch: int | None
    ring: int | None
    rules: int
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("group", c_void_p),
        ("plan", c_void_p),
        ("requests", c_void_p),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("expected_tokens", c_void_p),
        ("expected_positions", c_void_p),
        ("check_steps", c_void_p),
        ("step", c_void_p),
        ("launch_tag", c_int64),
        ("scratch", c_void_p),
        ("ring", c_void_p),
        ("rules", c_int32),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"group": None, "plan": None, "requests": None, "tokens": None, "positions": None, "slots": None, "expected_tokens": None, "expected_positions": None, "check_steps": None, "step": None, "launch_tag": 33, "scratch": None, "ring": None, "rules": 0}


class kvc_verify_args(Struct):
    struct_bytes: int
    group: int | None
    plan: int | None
    requests: int | None
    check_bytes: int
    check_tokens: int
    check_finite: int
    rules: int
    valid_prefix: int | None
    launch_tag: int
    ring: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("group", c_void_p),
        ("plan", c_void_p),
        ("requests", c_void_p),
        ("check_bytes", c_int32),
        ("check_tokens", c_int32),
        ("check_finite", c_int32),
        ("rules", c_int32),
        ("valid_prefix", c_void_p),
        ("launch_tag", c_int64),
        ("ring", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"group": None, "plan": None, "requests": None, "check_bytes": 1, "check_tokens": 1, "check_finite": 0, "rules": 0, "valid_prefix": None, "launch_tag": 32, "ring": None}


class kvc_violation_totals(Struct):
    violations: int
    ring_overflow: int
    step: int
    _fields_ = [
        ("violations", c_int64),
        ("ring_overflow", c_int32),
        ("step", c_int64),
    ]


class kvc_guard_options(Struct):
    struct_bytes: int
    request_rows: int
    verify_budget: int
    checks: int
    check_finite: int
    ring_capacity: int
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("request_rows", c_int64),
        ("verify_budget", c_int64),
        ("checks", c_int32),
        ("check_finite", c_int32),
        ("ring_capacity", c_int64),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"request_rows": 0, "verify_budget": 4096, "checks": 1, "check_finite": 0, "ring_capacity": 1024}


class kvc_guard_group(Struct):
    struct_bytes: int
    name: bytes | None
    slot_count: int
    sources: int | None
    source_count: int
    fingerprint: int
    coverage: int
    stamping: int
    reserved_slot: int
    window: int
    mapping: int | None
    token_offset: int
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("name", c_char_p),
        ("slot_count", c_int64),
        ("sources", c_void_p),
        ("source_count", c_int64),
        ("fingerprint", c_int32),
        ("coverage", c_int32),
        ("stamping", c_int32),
        ("reserved_slot", c_int64),
        ("window", c_int64),
        ("mapping", c_void_p),
        ("token_offset", c_int64),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"name": b"full", "slot_count": 0, "sources": None, "source_count": 0, "fingerprint": 0, "coverage": 2, "stamping": 1, "reserved_slot": -1, "window": 0, "mapping": None, "token_offset": 0}


class kvc_guard_step(Struct):
    struct_bytes: int
    step: int
    requests: int | None
    req_to_token: int | None
    expected_tokens: int | None
    valid_lens: int | None
    tokens: int | None
    positions: int | None
    slots: int | None
    expected_input_tokens: int | None
    expected_input_positions: int | None
    valid_prefix: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("step", c_int64),
        ("requests", c_void_p),
        ("req_to_token", c_void_p),
        ("expected_tokens", c_void_p),
        ("valid_lens", c_void_p),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("expected_input_tokens", c_void_p),
        ("expected_input_positions", c_void_p),
        ("valid_prefix", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"step": 0, "requests": None, "req_to_token": None, "expected_tokens": None, "valid_lens": None, "tokens": None, "positions": None, "slots": None, "expected_input_tokens": None, "expected_input_positions": None, "valid_prefix": None}


class kvc_sweep_slot(Struct):
    slot: int
    position: int
    expected_token: int
    prev_slot: int
    name_space: int
    _fields_ = [
        ("slot", c_int64),
        ("position", c_int64),
        ("expected_token", c_int64),
        ("prev_slot", c_int64),
        ("name_space", c_int64),
    ]


class kvc_sweep_list(Struct):
    slots: int | None
    count: int
    _fields_ = [
        ("slots", c_void_p),
        ("count", c_int64),
    ]


class kvc_finding(Struct):
    violation: kvc_violation
    step: int
    victim_request: int
    victim_position: int
    culprit_request: int
    culprit_step: int
    group: int
    cause: int
    slug: bytes | None
    group_name: bytes | None
    nonfinite_source_id: int
    nonfinite_head: int
    nonfinite_dim: int
    _fields_ = [
        ("violation", kvc_violation),
        ("step", c_int64),
        ("victim_request", c_int64),
        ("victim_position", c_int64),
        ("culprit_request", c_int64),
        ("culprit_step", c_int64),
        ("group", c_int32),
        ("cause", c_int32),
        ("slug", c_char_p),
        ("group_name", c_char_p),
        ("nonfinite_source_id", c_int64),
        ("nonfinite_head", c_int64),
        ("nonfinite_dim", c_int64),
    ]


class kvc_guard_statistics(Struct):
    struct_bytes: int
    steps: int
    sources: int
    slots_stamped: int
    slots_verified: int
    slots_first_read: int
    slots_rotated: int
    slots_swept: int
    slots_left_out: int
    slots_excluded: int
    bytes_verified: int
    chain_unchecked: int
    violations: int
    violations_dropped: int
    oldest_unchecked_steps: int
    oldest_unchecked_slot: int
    oldest_unchecked_group: int
    memory_bytes: int
    stale_nonfinite: int
    stale_nonfinite_slot: int
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("steps", c_int64),
        ("sources", c_int64),
        ("slots_stamped", c_int64),
        ("slots_verified", c_int64),
        ("slots_first_read", c_int64),
        ("slots_rotated", c_int64),
        ("slots_swept", c_int64),
        ("slots_left_out", c_int64),
        ("slots_excluded", c_int64),
        ("bytes_verified", c_int64),
        ("chain_unchecked", c_int64),
        ("violations", c_int64),
        ("violations_dropped", c_int64),
        ("oldest_unchecked_steps", c_int64),
        ("oldest_unchecked_slot", c_int64),
        ("oldest_unchecked_group", c_int32),
        ("memory_bytes", c_size_t),
        ("stale_nonfinite", c_int64),
        ("stale_nonfinite_slot", c_int64),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {}


class kvc_sglang_source(Struct):
    tensor: int | None
    page_size: int
    num_bytes_per_token: int
    read_bytes: int
    _fields_ = [
        ("tensor", c_void_p),
        ("page_size", c_int64),
        ("num_bytes_per_token", c_int64),
        ("read_bytes", c_int64),
    ]


class kvc_sglang_verify_plan(Struct):
    struct_bytes: int
    verify_slot_indices: int | None
    verify_expected_tokens: int | None
    verify_expected_positions: int | None
    verify_prev_slot_indices: int | None
    verify_num_valid: int | None
    enable: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("verify_slot_indices", c_void_p),
        ("verify_expected_tokens", c_void_p),
        ("verify_expected_positions", c_void_p),
        ("verify_prev_slot_indices", c_void_p),
        ("verify_num_valid", c_void_p),
        ("enable", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"verify_slot_indices": None, "verify_expected_tokens": None, "verify_expected_positions": None, "verify_prev_slot_indices": None, "verify_num_valid": None, "enable": None}


class kvc_sglang_write_plan(Struct):
    struct_bytes: int
    write_offsets: int | None
    write_seed_slot_indices: int | None
    write_num_valid_reqs: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("write_offsets", c_void_p),
        ("write_seed_slot_indices", c_void_p),
        ("write_num_valid_reqs", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"write_offsets": None, "write_seed_slot_indices": None, "write_num_valid_reqs": None}


class kvc_sglang_context(Struct):
    struct_bytes: int
    canary_buf: int | None
    kernel_kind: int
    violation_ring: int | None
    violation_write_index: int | None
    slot_run_counter: int | None
    kernel_run_counter: int | None
    real_kv_sources: int | None
    real_kv_source_count: int
    real_kv_hash_mode: int
    enable_chain_position_assert: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("canary_buf", c_void_p),
        ("kernel_kind", c_int64),
        ("violation_ring", c_void_p),
        ("violation_write_index", c_void_p),
        ("slot_run_counter", c_void_p),
        ("kernel_run_counter", c_void_p),
        ("real_kv_sources", c_void_p),
        ("real_kv_source_count", c_int64),
        ("real_kv_hash_mode", c_int64),
        ("enable_chain_position_assert", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"canary_buf": None, "kernel_kind": 0, "violation_ring": None, "violation_write_index": None, "slot_run_counter": None, "kernel_run_counter": None, "real_kv_sources": None, "real_kv_source_count": 0, "real_kv_hash_mode": 0, "enable_chain_position_assert": None}


class kvc_sglang_plan_args(Struct):
    struct_bytes: int
    verify_plan_out: int | None
    write_plan_out: int | None
    req_pool_indices: int | None
    prefix_lens: int | None
    extend_seq_lens: int | None
    req_to_token: int | None
    swa_window_size: int
    full_to_swa_index_mapping: int | None
    verify_capacity: int
    req_to_verify_expected_tokens: int | None
    req_to_verify_expected_tokens_valid_lens: int | None
    kv_token_id_vs_position_offset: int
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("verify_plan_out", c_void_p),
        ("write_plan_out", c_void_p),
        ("req_pool_indices", c_void_p),
        ("prefix_lens", c_void_p),
        ("extend_seq_lens", c_void_p),
        ("req_to_token", c_void_p),
        ("swa_window_size", c_int64),
        ("full_to_swa_index_mapping", c_void_p),
        ("verify_capacity", c_int64),
        ("req_to_verify_expected_tokens", c_void_p),
        ("req_to_verify_expected_tokens_valid_lens", c_void_p),
        ("kv_token_id_vs_position_offset", c_int64),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"verify_plan_out": None, "write_plan_out": None, "req_pool_indices": None, "prefix_lens": None, "extend_seq_lens": None, "req_to_token": None, "swa_window_size": 0, "full_to_swa_index_mapping": None, "verify_capacity": 0, "req_to_verify_expected_tokens": None, "req_to_verify_expected_tokens_valid_lens": None, "kv_token_id_vs_position_offset": 0}


class kvc_sglang_verify_args(Struct):
    struct_bytes: int
    context: int | None
    plan: int | None
    check_verify_expected_token: int
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("context", c_void_p),
        ("plan", c_void_p),
        ("check_verify_expected_token", c_int64),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"context": None, "plan": None, "check_verify_expected_token": 0}


class kvc_sglang_write_args(Struct):
    struct_bytes: int
    context: int | None
    plan: int | None
    input_ids: int | None
    positions: int | None
    out_cache_loc: int | None
    enable_write_input_assert: int
    expected_input_tokens: int | None
    expected_input_positions: int | None
    _fields_ = [
        ("struct_bytes", c_size_t),
        ("context", c_void_p),
        ("plan", c_void_p),
        ("input_ids", c_void_p),
        ("positions", c_void_p),
        ("out_cache_loc", c_void_p),
        ("enable_write_input_assert", c_int64),
        ("expected_input_tokens", c_void_p),
        ("expected_input_positions", c_void_p),
    ]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sizeof(type(self)), **{**self.INITIAL, **fields})

    INITIAL: dict[str, Any] = {"context": None, "plan": None, "input_ids": None, "positions": None, "out_cache_loc": None, "enable_write_input_assert": 0, "expected_input_tokens": None, "expected_input_positions": None}


def declare(library: CDLL) -> None:
    """Give every function its types."""
    library.kvc_version.restype = c_char_p
    library.kvc_version.argtypes = []
    library.kvc_status_name.restype = c_char_p
    library.kvc_status_name.argtypes = [c_int]
    library.kvc_last_error.restype = POINTER(kvc_error)
    library.kvc_last_error.argtypes = []
    library.kvc_catalog_count.restype = c_size_t
    library.kvc_catalog_count.argtypes = []
    library.kvc_catalog_at.restype = POINTER(kvc_catalog_entry)
    library.kvc_catalog_at.argtypes = [c_size_t]
    library.kvc_catalog_find.restype = POINTER(kvc_catalog_entry)
    library.kvc_catalog_find.argtypes = [c_char_p]
    library.kvc_catalog_match.restype = POINTER(kvc_catalog_entry)
    library.kvc_catalog_match.argtypes = [c_char_p, c_void_p, c_void_p, c_size_t, c_void_p]
    library.kvc_set_num_threads.restype = c_int
    library.kvc_set_num_threads.argtypes = [c_int32]
    library.kvc_get_num_threads.restype = c_int32
    library.kvc_get_num_threads.argtypes = []
    library.kvc_set_parallel_for.restype = None
    library.kvc_set_parallel_for.argtypes = [kvc_parallel_for_fn, c_void_p]
    library.kvc_cpu_variant_count.restype = c_size_t
    library.kvc_cpu_variant_count.argtypes = []
    library.kvc_cpu_variant_at.restype = kvc_cpu_variant
    library.kvc_cpu_variant_at.argtypes = [c_size_t]
    library.kvc_cpu_chosen.restype = c_int
    library.kvc_cpu_chosen.argtypes = [c_void_p]
    library.kvc_cpu_operation_at.restype = c_char_p
    library.kvc_cpu_operation_at.argtypes = [c_size_t]
    library.kvc_cpu_kernel_at.restype = c_char_p
    library.kvc_cpu_kernel_at.argtypes = [c_size_t, c_size_t]
    library.kvc_cuda_architectures.restype = c_char_p
    library.kvc_cuda_architectures.argtypes = []
    library.kvc_cuda_devices.restype = c_int
    library.kvc_cuda_devices.argtypes = [c_void_p, c_size_t, c_void_p, c_void_p]
    library.kvc_rope_init.restype = c_int
    library.kvc_rope_init.argtypes = [c_void_p, c_void_p]
    library.kvc_report_init.restype = c_int
    library.kvc_report_init.argtypes = [c_void_p, kvc_device, c_void_p]
    library.kvc_rope_pool_fused.restype = c_int
    library.kvc_rope_pool_fused.argtypes = [c_void_p, c_void_p]
    library.kvc_scatter_req_token_ids.restype = c_int
    library.kvc_scatter_req_token_ids.argtypes = [c_void_p, c_void_p]
    library.kvc_source_from_pool.restype = c_int
    library.kvc_source_from_pool.argtypes = [c_void_p, c_void_p, c_uint64]
    library.kvc_group_check.restype = c_int
    library.kvc_group_check.argtypes = [c_void_p]
    library.kvc_group_stamp.restype = c_int
    library.kvc_group_stamp.argtypes = [c_void_p, c_void_p, c_uint64, c_uint64]
    library.kvc_chain_start.restype = c_uint64
    library.kvc_chain_start.argtypes = [c_uint64]
    library.kvc_chain_extend.restype = c_uint64
    library.kvc_chain_extend.argtypes = [c_uint64, c_void_p, c_int64, c_int64]
    library.kvc_fingerprint.restype = c_int
    library.kvc_fingerprint.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p]
    library.kvc_canary_void.restype = c_int
    library.kvc_canary_void.argtypes = [c_void_p, c_void_p, c_void_p]
    library.kvc_canary_copy.restype = c_int
    library.kvc_canary_copy.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]
    library.kvc_canary_scan_finite.restype = c_int
    library.kvc_canary_scan_finite.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p]
    library.kvc_plan_bytes.restype = c_size_t
    library.kvc_plan_bytes.argtypes = [c_int64, c_int64]
    library.kvc_plan_bind.restype = c_int
    library.kvc_plan_bind.argtypes = [c_void_p, c_void_p, kvc_device, c_int64, c_int64]
    library.kvc_canary_plan.restype = c_int
    library.kvc_canary_plan.argtypes = [c_void_p, c_void_p, c_void_p]
    library.kvc_canary_check_plan.restype = c_int
    library.kvc_canary_check_plan.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]
    library.kvc_canary_write.restype = c_int
    library.kvc_canary_write.argtypes = [c_void_p, c_void_p]
    library.kvc_canary_verify.restype = c_int
    library.kvc_canary_verify.argtypes = [c_void_p, c_void_p]
    library.kvc_ring_poll.restype = c_int
    library.kvc_ring_poll.argtypes = [c_void_p, c_void_p, c_int64, c_void_p, c_void_p]
    library.kvc_reason_name.restype = c_char_p
    library.kvc_reason_name.argtypes = [c_int64]
    library.kvc_tag_name.restype = c_char_p
    library.kvc_tag_name.argtypes = [c_int64]
    library.kvc_reason_slug.restype = c_char_p
    library.kvc_reason_slug.argtypes = [c_int64]
    library.kvc_violation_text.restype = c_size_t
    library.kvc_violation_text.argtypes = [c_char_p, c_size_t, c_void_p, c_int32, c_void_p]
    library.kvc_violation_parse.restype = c_int
    library.kvc_violation_parse.argtypes = [c_void_p, c_char_p]
    library.kvc_guard_create.restype = c_int
    library.kvc_guard_create.argtypes = [c_void_p, c_void_p]
    library.kvc_guard_destroy.restype = None
    library.kvc_guard_destroy.argtypes = [c_void_p]
    library.kvc_guard_attach_group.restype = c_int
    library.kvc_guard_attach_group.argtypes = [c_void_p, c_void_p, c_void_p]
    library.kvc_guard_stamp.restype = c_int
    library.kvc_guard_stamp.argtypes = [c_void_p, c_void_p, c_int32, c_uint64, c_uint64]
    library.kvc_guard_group_view.restype = c_int
    library.kvc_guard_group_view.argtypes = [c_void_p, c_void_p, c_int32]
    library.kvc_guard_step_begin.restype = c_int
    library.kvc_guard_step_begin.argtypes = [c_void_p, c_void_p, c_void_p]
    library.kvc_guard_step_end.restype = c_int
    library.kvc_guard_step_end.argtypes = [c_void_p, c_void_p]
    library.kvc_guard_void.restype = c_int
    library.kvc_guard_void.argtypes = [c_void_p, c_int32, c_void_p, c_void_p]
    library.kvc_guard_copy.restype = c_int
    library.kvc_guard_copy.argtypes = [c_void_p, c_int32, c_void_p, c_void_p, c_void_p]
    library.kvc_sweep_listed.restype = c_int64
    library.kvc_sweep_listed.argtypes = [c_void_p, c_void_p, c_int64]
    library.kvc_guard_sweep.restype = c_int
    library.kvc_guard_sweep.argtypes = [c_void_p, c_int32, kvc_sweep_fn, c_void_p, c_void_p, c_void_p]
    library.kvc_guard_poll.restype = c_int
    library.kvc_guard_poll.argtypes = [c_void_p, c_void_p, c_int64, c_void_p, c_void_p]
    library.kvc_cause_name.restype = c_char_p
    library.kvc_cause_name.argtypes = [c_int32]
    library.kvc_finding_text.restype = c_size_t
    library.kvc_finding_text.argtypes = [c_char_p, c_size_t, c_void_p]
    library.kvc_guard_stats.restype = c_int
    library.kvc_guard_stats.argtypes = [c_void_p, c_void_p]
    library.kvc_sglang_source_check.restype = c_int
    library.kvc_sglang_source_check.argtypes = [c_void_p]
    library.kvc_sglang_source_check_launch.restype = c_int
    library.kvc_sglang_source_check_launch.argtypes = [c_void_p, c_int64]
    library.kvc_sglang_check_capacity.restype = c_int
    library.kvc_sglang_check_capacity.argtypes = [c_char_p, c_int64]
    library.kvc_sglang_plan.restype = c_int
    library.kvc_sglang_plan.argtypes = [c_void_p, c_void_p]
    library.kvc_sglang_plan_check.restype = c_int
    library.kvc_sglang_plan_check.argtypes = [c_void_p, c_void_p]
    library.kvc_sglang_verify.restype = c_int
    library.kvc_sglang_verify.argtypes = [c_void_p, c_void_p]
    library.kvc_sglang_write.restype = c_int
    library.kvc_sglang_write.argtypes = [c_void_p, c_void_p]
    library.kvc_sglang_scatter.restype = c_int
    library.kvc_sglang_scatter.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p]
