"""The scatter as a Triton kernel, as one would write it first: no checks."""
import torch
import triton
import triton.language as tl


@triton.jit
def scatter_kernel(flat, offsets, rows, pool, stride, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    first = tl.load(offsets + r)
    length = tl.load(offsets + r + 1) - first
    row = tl.load(rows + r)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < length) & (at < columns)
    tokens = tl.load(flat + first + at, mask=inside, other=0)
    tl.store(pool + row * stride + at, tokens.to(tl.int32), mask=inside)


def scatter(case):
    def with_block(block):
        def call(i):
            flat, offsets, rows, pool = case.sets[i]
            scatter_kernel[(case.bs, triton.cdiv(case.longest, block))](flat, offsets, rows, pool, pool.stride(0), pool.shape[1], BLOCK=block)
        return call

    return [{"name": f"triton {block}", "call": with_block(block), "check": True, "peer": True} for block in (1024, 4096)]
