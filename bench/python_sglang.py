#!/usr/bin/env python3
"""SGLang's torch reference of its kv-canary against kvcanary.sglang, on this machine's CPU.

One step of 4096 and of 65536 tokens: the plan of a batch that has them cached, their write with
all bytes of one K source (8 heads of 128 bf16, 2048 bytes a token), and a verify of them. Both
sides get the same tensors and must leave the same bytes. The reference is a Python loop and is
timed once (processor time, where a busy machine lets the clock run on), ours as the best of several
calls, conversion of the arguments included.

usage: KVC_SGLANG=FOLDER python_sglang.py [--tokens N ...] [--operations plan write verify]
                                          [--threads N] [--json FILE]
'make bench-sglang' brings what it needs.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/python"))
import kvcanary  # noqa: E402
import sglang_reference  # noqa: E402
import torch  # noqa: E402
from kvcanary import sglang  # noqa: E402

OPS = "kernels.ops.kv_canary"
OPERATIONS = ("plan", "write", "verify")
REQUESTS = 16
TOKEN_BYTES = 2048


def reference(module, name):
    return getattr(sglang_reference.module(f"{OPS}.{module}"), f"{name}_torch_reference")


def table_of(tokens):
    """int32 [rows, columns]: the slots of each request, in no order; row 0 is padding."""
    columns = tokens // REQUESTS
    slots = torch.randperm(tokens, generator=torch.Generator().manual_seed(1)) + 1
    table = torch.zeros(REQUESTS + 1, columns, dtype=torch.int32)
    table[1:] = slots.reshape(REQUESTS, columns)
    return table


def plan_arguments(tokens, prefix, extend):
    return {
        "verify_plan_out": sglang.VerifyPlan.allocate(verify_capacity=tokens, device="cpu"),
        "write_plan_out": sglang.WritePlan.allocate(write_req_capacity=REQUESTS, device="cpu"),
        "req_pool_indices": torch.arange(1, REQUESTS + 1),
        "prefix_lens": torch.full((REQUESTS,), prefix),
        "extend_seq_lens": torch.full((REQUESTS,), extend),
        "req_to_token": table_of(tokens),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": tokens,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }


def context_of(tokens):
    pool = torch.randint(
        0,
        256,
        (tokens + 1, TOKEN_BYTES),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(2),
    )
    return sglang.VerifyOrWriteContext(
        canary_buf=torch.zeros(tokens + 1, 32, dtype=torch.uint8),
        kernel_kind=sglang.CanaryLaunchTag.TAIL_K_FULL,
        violation_ring=torch.zeros(1024, 8, dtype=torch.int64),
        violation_write_index=torch.zeros(1, dtype=torch.int32),
        slot_run_counter=torch.zeros(1, dtype=torch.int64),
        kernel_run_counter=torch.zeros(1, dtype=torch.int64),
        real_kv_sources=(
            sglang.RealKvSource(
                tensor=pool, page_size=1, num_bytes_per_token=TOKEN_BYTES, read_bytes=TOKEN_BYTES
            ),
        ),
        real_kv_hash_mode=sglang.RealKvHashMode.ALL,
        enable_chain_position_assert=torch.zeros(1, dtype=torch.int32),
    )


def seconds(call, at_least):
    """Of the fastest of as many calls as take `at_least` together."""
    best, spent = float("inf"), 0.0
    while True:
        begin = time.perf_counter()
        call()
        once = time.perf_counter() - begin
        best, spent = min(best, once), spent + once
        if spent >= at_least:
            return best


def reference_seconds(call):
    """Of one call: processor time if that is less, so that a busy machine does not count."""
    begin, processor = time.perf_counter(), time.process_time()
    call()
    return min(time.perf_counter() - begin, time.process_time() - processor)


def measure(name, tokens, ours, theirs, outcome):
    """Both, and that they leave the same."""
    slow = reference_seconds(theirs)
    expected = [tensor.clone() for tensor in outcome()]
    for tensor in outcome():
        tensor.zero_()
    ours()
    same = all(torch.equal(*pair) for pair in zip(outcome(), expected, strict=True))
    fast = seconds(ours, 0.5)
    return {
        "operation": name,
        "tokens": tokens,
        "reference_ms": slow * 1e3,
        "kvcanary_ms": fast * 1e3,
        "times": slow / fast,
        "same": same,
    }


def rows_of(tokens, operations=OPERATIONS):
    plan = plan_arguments(tokens, prefix=tokens // REQUESTS, extend=0)
    verify_plan = plan["verify_plan_out"]
    if "plan" in operations:
        yield measure(
            "plan",
            tokens,
            lambda: sglang.launch_canary_plan_kernels(**plan),
            lambda: reference("plan_ref", "launch_canary_plan_kernels")(**plan),
            lambda: [
                verify_plan.verify_slot_indices,
                verify_plan.verify_prev_slot_indices,
                verify_plan.verify_expected_positions,
                verify_plan.verify_num_valid,
            ],
        )

    context = context_of(tokens)
    first = plan_arguments(tokens, prefix=0, extend=tokens // REQUESTS)
    sglang.launch_canary_plan_kernels(**first)
    write = {
        "context": context,
        "plan": first["write_plan_out"],
        "input_ids": torch.arange(tokens) % 32000,
        "positions": torch.arange(tokens) % (tokens // REQUESTS),
        "out_cache_loc": first["req_to_token"][1:].reshape(-1).to(torch.int64),
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    if "write" in operations:
        yield measure(
            "write",
            tokens,
            lambda: sglang.launch_canary_write_kernel(**write),
            lambda: reference("write_ref", "launch_canary_write_kernel")(**write),
            lambda: [context.canary_buf, context.violation_ring],
        )

    sglang.launch_canary_write_kernel(**write)
    verify = {"context": context, "plan": verify_plan, "check_verify_expected_token": False}
    sglang.launch_canary_plan_kernels(**plan)
    if "verify" in operations:
        yield measure(
            "verify",
            tokens,
            lambda: sglang.launch_canary_verify_kernel(**verify),
            lambda: reference("verify_ref", "launch_canary_verify_kernel")(**verify),
            lambda: [context.violation_ring, context.violation_write_index],
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 65536])
    parser.add_argument("--operations", nargs="+", default=OPERATIONS, choices=OPERATIONS)
    parser.add_argument("--threads", type=int, default=0, help="of kvcanary, 0 = one per CPU")
    parser.add_argument("--json", help="write the figures there, too")
    options = parser.parse_args()
    kvcanary.set_num_threads(options.threads)
    variant = next(v.name for v in kvcanary.cpu_variants() if v.chosen)
    print(
        f"kvcanary {kvcanary.__version__}, {variant}, {kvcanary.get_num_threads()} threads; "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )
    print(f"{'':8}{'tokens':>8}{'reference ms':>15}{'kvcanary ms':>14}{'times':>9}")
    rows = []
    for tokens in options.tokens:
        for row in rows_of(tokens, options.operations):
            rows.append(row)
            print(
                f"{row['operation']:8}{row['tokens']:8}{row['reference_ms']:15.1f}"
                f"{row['kvcanary_ms']:14.3f}{row['times']:9.0f}"
                f"{'' if row['same'] else '  NOT THE SAME BYTES'}",
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["same"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
