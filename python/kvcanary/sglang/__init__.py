"""SGLang's kv-canary kernels (0.5.23), from this library.

The launchers, structures and constants of ``sglang.kernels.ops.kv_canary`` under their own names,
with the same arguments, order of checks, texts of refusals and bytes, on the CPU and on CUDA.
:func:`install` puts them in the place of an installed SGLang's own; plans, contexts and sources may
then be of SGLang's classes. Importing this imports neither sglang nor torch.

What differs is written down in docs/sglang.md: above all, no index leads outside a tensor.
"""

from .consts import (
    CANARY_CHAIN_ANCHOR,
    CANARY_FIELD_POSITION,
    CANARY_FIELD_PREV_HASH,
    CANARY_FIELD_REAL_KV_HASH,
    CANARY_FIELD_TOKEN,
    CANARY_FIELDS_PER_SLOT,
    CANARY_SLOT_BYTES,
    MAX_REAL_KV_SOURCES,
    REAL_KV_SOURCE_FIELD_NUM_BYTES_PER_TOKEN,
    REAL_KV_SOURCE_FIELD_PAGE_SIZE,
    REAL_KV_SOURCE_FIELD_READ_BYTES,
    REAL_KV_SOURCE_FIELDS_PER_ENTRY,
    REQ_POOL_IDX_PADDING,
    TOKEN_TO_KV_SLOT_PADDING,
    VIOLATION_FIELD_EXPECTED_AUX,
    VIOLATION_FIELD_EXPECTED_TOKEN,
    VIOLATION_FIELD_FAIL_REASON_BITS,
    VIOLATION_FIELD_KERNEL_KIND,
    VIOLATION_FIELD_POSITION,
    VIOLATION_FIELD_SLOT_IDX,
    VIOLATION_FIELD_STORED_CHAIN_HASH,
    VIOLATION_FIELD_STORED_TOKEN,
    VIOLATION_FIELDS,
    CanaryLaunchTag,
    FailReason,
    RealKvHashMode,
    splitmix64,
    splitmix64_mix3,
)
from .installation import install, uninstall
from .launchers import (
    launch_canary_plan_kernels,
    launch_canary_verify_kernel,
    launch_canary_write_kernel,
    launch_scatter_req_token_ids_kernel,
    violation_text,
)
from .structures import RealKvSource, VerifyOrWriteContext, VerifyPlan, WritePlan

__all__ = [
    "CANARY_CHAIN_ANCHOR",
    "CANARY_FIELDS_PER_SLOT",
    "CANARY_FIELD_POSITION",
    "CANARY_FIELD_PREV_HASH",
    "CANARY_FIELD_REAL_KV_HASH",
    "CANARY_FIELD_TOKEN",
    "CANARY_SLOT_BYTES",
    "MAX_REAL_KV_SOURCES",
    "REAL_KV_SOURCE_FIELDS_PER_ENTRY",
    "REAL_KV_SOURCE_FIELD_NUM_BYTES_PER_TOKEN",
    "REAL_KV_SOURCE_FIELD_PAGE_SIZE",
    "REAL_KV_SOURCE_FIELD_READ_BYTES",
    "REQ_POOL_IDX_PADDING",
    "TOKEN_TO_KV_SLOT_PADDING",
    "VIOLATION_FIELDS",
    "VIOLATION_FIELD_EXPECTED_AUX",
    "VIOLATION_FIELD_EXPECTED_TOKEN",
    "VIOLATION_FIELD_FAIL_REASON_BITS",
    "VIOLATION_FIELD_KERNEL_KIND",
    "VIOLATION_FIELD_POSITION",
    "VIOLATION_FIELD_SLOT_IDX",
    "VIOLATION_FIELD_STORED_CHAIN_HASH",
    "VIOLATION_FIELD_STORED_TOKEN",
    "CanaryLaunchTag",
    "FailReason",
    "RealKvHashMode",
    "RealKvSource",
    "VerifyOrWriteContext",
    "VerifyPlan",
    "WritePlan",
    "install",
    "launch_canary_plan_kernels",
    "launch_canary_verify_kernel",
    "launch_canary_write_kernel",
    "launch_scatter_req_token_ids_kernel",
    "splitmix64",
    "splitmix64_mix3",
    "uninstall",
    "violation_text",
]
