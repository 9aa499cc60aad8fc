"""kvcanary: keeps the KV cache of an LLM engine right.

Everything takes torch, NumPy (with ml_dtypes' bfloat16 and float8), CuPy, JAX and MLX arrays, zero
copy, on the CPU and, in a build with CUDA, on the GPU. Calls release the GIL. ``kvcanary.sglang``
stands in for SGLang's kv-canary kernels.
"""

from ._abi import Cause, LaunchTag, Reason, ReportReason
from ._lib import __version__
from .canary import (
    Counters,
    FiniteScan,
    Group,
    Plan,
    Requests,
    Ring,
    Source,
    Violation,
    chain_extend,
    chain_start,
    check_plan,
    copy,
    fingerprint,
    plan,
    scan_finite,
    scatter_req_token_ids,
    verify,
    void,
    write,
)
from .errors import (
    KVCanaryError,
    KVCanaryIndexError,
    KVCanaryMemoryError,
    KVCanaryRuntimeError,
    KVCanaryTypeError,
    KVCanaryValueError,
    Status,
)
from .guard import Finding, Guard, GuardStatistics, SweepSlot
from .machine import (
    CpuVariant,
    Explanation,
    cpu_variants,
    explain,
    get_num_threads,
    set_num_threads,
)
from .report import Report
from .rope import Rope, Stamp, rope_init, rope_pool_fused

__all__ = [
    "Cause",
    "Counters",
    "CpuVariant",
    "Explanation",
    "Finding",
    "FiniteScan",
    "Group",
    "Guard",
    "GuardStatistics",
    "KVCanaryError",
    "KVCanaryIndexError",
    "KVCanaryMemoryError",
    "KVCanaryRuntimeError",
    "KVCanaryTypeError",
    "KVCanaryValueError",
    "LaunchTag",
    "Plan",
    "Reason",
    "Report",
    "ReportReason",
    "Requests",
    "Ring",
    "Rope",
    "Source",
    "Stamp",
    "Status",
    "SweepSlot",
    "Violation",
    "__version__",
    "chain_extend",
    "chain_start",
    "check_plan",
    "copy",
    "cpu_variants",
    "explain",
    "fingerprint",
    "get_num_threads",
    "plan",
    "rope_init",
    "rope_pool_fused",
    "scan_finite",
    "scatter_req_token_ids",
    "set_num_threads",
    "verify",
    "void",
    "write",
]
