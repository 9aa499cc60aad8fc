"""The constants of SGLang's kv-canary."""

from enum import IntEnum, IntFlag
from typing import Final

from .. import _abi

CANARY_CHAIN_ANCHOR: Final[int] = 0xC0FFEE1234567890

REQ_POOL_IDX_PADDING: Final[int] = 0
"""Row 0 of the request table is padding."""
TOKEN_TO_KV_SLOT_PADDING: Final[int] = 0
"""Slot 0 is the dummy slot of padding tokens."""

CANARY_FIELDS_PER_SLOT: Final[int] = 4
CANARY_FIELD_TOKEN: Final[int] = 0
CANARY_FIELD_POSITION: Final[int] = 1
CANARY_FIELD_PREV_HASH: Final[int] = 2
CANARY_FIELD_REAL_KV_HASH: Final[int] = 3
CANARY_SLOT_BYTES: Final[int] = _abi.KVC_RECORD_BYTES

VIOLATION_FIELDS: Final[int] = 8
VIOLATION_FIELD_KERNEL_KIND: Final[int] = 0
VIOLATION_FIELD_SLOT_IDX: Final[int] = 1
VIOLATION_FIELD_POSITION: Final[int] = 2
VIOLATION_FIELD_STORED_TOKEN: Final[int] = 3
VIOLATION_FIELD_EXPECTED_TOKEN: Final[int] = 4
VIOLATION_FIELD_STORED_CHAIN_HASH: Final[int] = 5
VIOLATION_FIELD_EXPECTED_AUX: Final[int] = 6
VIOLATION_FIELD_FAIL_REASON_BITS: Final[int] = 7

MAX_REAL_KV_SOURCES: Final[int] = _abi.KVC_SGLANG_SOURCES_MAX
REAL_KV_SOURCE_FIELDS_PER_ENTRY: Final[int] = 3
REAL_KV_SOURCE_FIELD_PAGE_SIZE: Final[int] = 0
REAL_KV_SOURCE_FIELD_NUM_BYTES_PER_TOKEN: Final[int] = 1
REAL_KV_SOURCE_FIELD_READ_BYTES: Final[int] = 2


class FailReason(IntFlag):
    """Why a row stands in the violation ring."""

    VERIFY_CHAIN_HASH_MISMATCH = _abi.KVC_REASON_VERIFY_CHAIN_HASH
    VERIFY_POSITION_MISMATCH = _abi.KVC_REASON_VERIFY_POSITION
    VERIFY_REAL_KV_HASH_MISMATCH = _abi.KVC_REASON_VERIFY_REAL_KV_HASH
    WRITE_TOKEN_MISMATCH = _abi.KVC_REASON_WRITE_TOKEN
    WRITE_POSITION_MISMATCH = _abi.KVC_REASON_WRITE_POSITION
    VERIFY_TOKEN_MISMATCH = _abi.KVC_REASON_VERIFY_TOKEN


class RealKvHashMode(IntEnum):
    """How much of a slot's bytes a fingerprint covers."""

    NONE = _abi.KVC_COVERAGE_NONE
    PARTIAL = _abi.KVC_COVERAGE_PARTIAL
    ALL = _abi.KVC_COVERAGE_ALL


class CanaryLaunchTag(IntEnum):
    """Who launched a check: head, tail or sweep; K or V; full or sliding window."""

    HEAD_K_FULL = _abi.KVC_TAG_HEAD_K_FULL
    HEAD_V_FULL = _abi.KVC_TAG_HEAD_V_FULL
    TAIL_K_FULL = _abi.KVC_TAG_TAIL_K_FULL
    TAIL_V_FULL = _abi.KVC_TAG_TAIL_V_FULL
    SWEEP_K_FULL = _abi.KVC_TAG_SWEEP_K_FULL
    SWEEP_V_FULL = _abi.KVC_TAG_SWEEP_V_FULL
    HEAD_K_SWA = _abi.KVC_TAG_HEAD_K_SWA
    HEAD_V_SWA = _abi.KVC_TAG_HEAD_V_SWA
    TAIL_K_SWA = _abi.KVC_TAG_TAIL_K_SWA
    TAIL_V_SWA = _abi.KVC_TAG_TAIL_V_SWA
    SWEEP_K_SWA = _abi.KVC_TAG_SWEEP_K_SWA
    SWEEP_V_SWA = _abi.KVC_TAG_SWEEP_V_SWA


_WORD = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """The finaliser of splitmix64, of the low 64 bits of `value`; unsigned."""
    x = value & _WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)


def splitmix64_mix3(a: int, b: int, c: int) -> int:
    """The chain's step: of prev_hash, token and position of a slot what its successor stores."""
    return splitmix64(splitmix64(splitmix64(a) ^ (b & _WORD)) ^ (c & _WORD))
