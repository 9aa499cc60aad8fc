"""Options by name: what Python calls 'neox' C calls KVC_ROPE_NEOX."""

from . import _abi
from ._abi import Status
from .errors import fault

STYLES = {"neox": _abi.KVC_ROPE_NEOX, "interleaved": _abi.KVC_ROPE_INTERLEAVED}
SCALINGS = {
    "none": _abi.KVC_ROPE_SCALING_NONE,
    "linear": _abi.KVC_ROPE_SCALING_LINEAR,
    "llama3": _abi.KVC_ROPE_SCALING_LLAMA3,
    "yarn": _abi.KVC_ROPE_SCALING_YARN,
}
RULES = {"own": _abi.KVC_RULES_OWN, "sglang": _abi.KVC_RULES_SGLANG}
FINGERPRINTS = {"xxh3": _abi.KVC_FINGERPRINT_XXH3, "splitmix": _abi.KVC_FINGERPRINT_SPLITMIX}
COVERAGES = {
    "none": _abi.KVC_COVERAGE_NONE,
    "partial": _abi.KVC_COVERAGE_PARTIAL,
    "all": _abi.KVC_COVERAGE_ALL,
}
STAMPINGS = {"compute": _abi.KVC_STAMP_COMPUTE, "clear": _abi.KVC_STAMP_CLEAR}


def choose(choices: dict[str, int], value: str | int, name: str) -> int:
    """The number of an option given by name; a number goes through to C, which judges it."""
    if isinstance(value, int):
        return value
    try:
        return choices[value]
    except (KeyError, TypeError):
        raise fault(
            "option-unknown",
            Status.E_CONFIG,
            name=name,
            value=repr(value),
            choices=", ".join(choices),
        ) from None
