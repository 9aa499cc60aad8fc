#!/usr/bin/env python3
"""Times what others do for rope_pool_fused on the CPU: rotate q and k, store K and V into random rows
of a pool. Run by 'make bench-peers', after bench/peers.sh; prints JSON that bench/report.py merges.

  torch eager, torch compiled   bf16: rotate_half as transformers writes it, then index_copy_
  ggml                          rope_ext and set_rows in one graph: f16 throughout, and f32 into an
                                f16 cache, which is how llama.cpp runs it

Best of N, alternating in no particular way with the C program: compare runs of a quiet machine."""
import argparse
import ctypes
import json
import sys
import time
from pathlib import Path

SHAPES = {"32,8,128": (32, 8, 128), "8,1,128": (8, 1, 128), "16,8,128": (16, 8, 128)}
THETA = 500000.0


def best_of(call, seconds):
    """(best ns, N): short calls are timed several at a time."""
    call()
    begin = time.perf_counter_ns()
    call()
    repeats = max(1, int(30000 / max(1, time.perf_counter_ns() - begin)))
    best, rounds, end = float("inf"), 0, time.monotonic() + seconds
    while rounds < 9 or time.monotonic() < end:
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / repeats)
        rounds += 1
    return best, rounds


# ---- torch ----

class Torch:
    """bf16 tensors of one shape."""

    def __init__(self, torch, shape, tokens):
        q_heads, kv_heads, dim = SHAPES[shape]
        self.torch = torch
        slots = max(4 * tokens, 16384)
        make = lambda *size: torch.randn(*size).to(torch.bfloat16)
        self.q, self.k, self.v = (make(tokens, q_heads, dim), make(tokens, kv_heads, dim),
                                  make(tokens, kv_heads, dim))
        self.k_pool, self.v_pool = make(slots, kv_heads, dim), make(slots, kv_heads, dim)
        self.slots = torch.randperm(slots)[:tokens]
        self.positions = torch.randint(0, 131072, (tokens,))
        angles = torch.outer(torch.arange(131072).double(),
                             THETA ** (-torch.arange(0, dim, 2).double() / dim))
        table = torch.cat((angles, angles), -1)
        self.cos, self.sin = table.cos().to(torch.bfloat16), table.sin().to(torch.bfloat16)

    def step(self, q, k, v, positions, slots, k_pool, v_pool):
        torch = self.torch
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

        def rotate_half(x):
            half = x.shape[-1] // 2
            return torch.cat((-x[..., half:], x[..., :half]), -1)
        q_out = q * cos + rotate_half(q) * sin
        k_out = k * cos + rotate_half(k) * sin
        k_pool.index_copy_(0, slots, k_out)
        v_pool.index_copy_(0, slots, v)
        return q_out, k_out

    def arguments(self):
        return (self.q, self.k, self.v, self.positions, self.slots, self.k_pool, self.v_pool)


def run_torch(add, tokens_list, threads_list, seconds):
    try:
        import torch
    except (ImportError, OSError) as error:
        return [f"torch ({error})"]
    not_run = []
    torch.set_grad_enabled(False)
    for shape in SHAPES:
        for tokens in tokens_list:
            world = Torch(torch, shape, tokens)
            for threads in threads_list:
                torch.set_num_threads(threads)
                eager = lambda: world.step(*world.arguments())
                add("torch eager", "bf16", shape, tokens, threads, best_of(eager, seconds))
                try:
                    torch._dynamo.reset()
                    compiled = torch.compile(world.step, dynamic=False)
                    compiled(*world.arguments())
                except Exception as error:  # no compiler, no Inductor: say so and go on
                    reason = str(error).strip().splitlines()[0][:80]
                    if not any(name.startswith("torch compiled") for name in not_run):
                        not_run.append(f"torch compiled ({reason})")
                    continue
                add("torch compiled", "bf16", shape, tokens, threads,
                    best_of(lambda: compiled(*world.arguments()), seconds))
    return not_run


# ---- ggml ----

F32, F16, I32, I64 = 0, 1, 26, 27
BYTES = {F32: 4, F16: 2, I32: 4, I64: 8}
NEOX = 2


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p),
                ("no_alloc", ctypes.c_bool)]


class Plan(ctypes.Structure):
    """ggml_cplan; the spare end is for fields that later versions add."""
    _fields_ = [("work_size", ctypes.c_size_t), ("work_data", ctypes.c_void_p),
                ("n_threads", ctypes.c_int), ("threadpool", ctypes.c_void_p),
                ("abort_callback", ctypes.c_void_p), ("abort_callback_data", ctypes.c_void_p),
                ("use_ref", ctypes.c_bool)]


class ThreadpoolParams(ctypes.Structure):
    _fields_ = [("cpumask", ctypes.c_bool * 512), ("n_threads", ctypes.c_int), ("prio", ctypes.c_int),
                ("poll", ctypes.c_uint32), ("strict_cpu", ctypes.c_bool), ("paused", ctypes.c_bool)]


class Ggml:
    """The functions of libggml-base and libggml-cpu that are needed."""

    def __init__(self, folder):
        folder = Path(folder)
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
        pointer, i64, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        self.declare(self.base, "ggml_init", pointer, InitParams)
        self.declare(self.base, "ggml_free", None, pointer)
        self.declare(self.base, "ggml_new_tensor_1d", pointer, pointer, ctypes.c_int, i64)
        self.declare(self.base, "ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, i64, i64)
        self.declare(self.base, "ggml_new_tensor_3d", pointer, pointer, ctypes.c_int, i64, i64, i64)
        self.declare(self.base, "ggml_reshape_2d", pointer, pointer, pointer, i64, i64)
        self.declare(self.base, "ggml_get_data", pointer, pointer)
        self.declare(self.base, "ggml_rope_ext", pointer, pointer, pointer, pointer, pointer,
                     ctypes.c_int, ctypes.c_int, ctypes.c_int, f32, f32, f32, f32, f32, f32)
        self.declare(self.base, "ggml_set_rows", pointer, pointer, pointer, pointer, pointer)
        self.declare(self.base, "ggml_new_graph", pointer, pointer)
        self.declare(self.base, "ggml_build_forward_expand", None, pointer, pointer)
        self.declare(self.base, "ggml_threadpool_params_default", ThreadpoolParams, ctypes.c_int)
        self.declare(self.cpu, "ggml_threadpool_new", pointer, ctypes.POINTER(ThreadpoolParams))
        self.declare(self.cpu, "ggml_threadpool_free", None, pointer)
        self.declare(self.cpu, "ggml_graph_plan", Plan, pointer, ctypes.c_int, pointer)
        self.declare(self.cpu, "ggml_graph_compute", ctypes.c_int, pointer, ctypes.POINTER(Plan))
        self.declare(self.cpu, "ggml_cpu_init", None)
        self.ggml_cpu_init()

    def declare(self, library, name, result, *arguments):
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
        setattr(self, name, function)


def fill(numpy, ggml, tensor, values):
    ctypes.memmove(ggml.ggml_get_data(tensor), values.ctypes.data, values.nbytes)


class GgmlStep:
    """A graph: rope of q and k, set_rows of k and v."""

    def __init__(self, numpy, ggml, shape, tokens, inner, cache):
        q_heads, kv_heads, dim = SHAPES[shape]
        slots = max(4 * tokens, 16384)
        row = kv_heads * dim
        self.ggml = ggml
        bytes_needed = tokens * (2 * q_heads * dim + 4 * row) * BYTES[inner] + 2 * slots * row * \
            BYTES[cache] + tokens * 16 + (16 << 20)
        self.context = ggml.ggml_init(InitParams(bytes_needed, None, False))
        c = self.context
        random = numpy.random.default_rng(1)
        kind = numpy.float32 if inner == F32 else numpy.float16
        q, k, v = (ggml.ggml_new_tensor_3d(c, inner, dim, heads, tokens)
                   for heads in (q_heads, kv_heads, kv_heads))
        for tensor, heads in ((q, q_heads), (k, kv_heads), (v, kv_heads)):
            fill(numpy, ggml, tensor, random.standard_normal((tokens, heads, dim)).astype(kind))
        positions = ggml.ggml_new_tensor_1d(c, I32, tokens)
        fill(numpy, ggml, positions, random.integers(0, 131072, tokens).astype(numpy.int32))
        rows = ggml.ggml_new_tensor_1d(c, I64, tokens)
        fill(numpy, ggml, rows, random.permutation(slots)[:tokens].astype(numpy.int64))
        k_pool, v_pool = (ggml.ggml_new_tensor_2d(c, cache, row, slots) for _ in range(2))
        for pool in (k_pool, v_pool):
            ctypes.memset(ggml.ggml_get_data(pool), 0, slots * row * BYTES[cache])
        rope = lambda x: ggml.ggml_rope_ext(c, x, positions, None, dim, NEOX, 131072, THETA, 1.0,
                                            0.0, 1.0, 32.0, 1.0)
        flat = lambda x: ggml.ggml_reshape_2d(c, x, row, tokens)
        self.graph = ggml.ggml_new_graph(c)
        for node in (rope(q), ggml.ggml_set_rows(c, k_pool, flat(rope(k)), rows),
                     ggml.ggml_set_rows(c, v_pool, flat(v), rows)):
            ggml.ggml_build_forward_expand(self.graph, node)

    def prepare(self, threads):
        parameters = self.ggml.ggml_threadpool_params_default(threads)
        self.pool = self.ggml.ggml_threadpool_new(ctypes.byref(parameters))
        self.plan = self.ggml.ggml_graph_plan(self.graph, threads, self.pool)
        self.work = ctypes.create_string_buffer(max(1, self.plan.work_size))
        self.plan.work_data = ctypes.cast(self.work, ctypes.c_void_p)
        self.reference = ctypes.byref(self.plan)

    def compute(self):
        if self.ggml.ggml_graph_compute(self.graph, self.reference) != 0:
            raise RuntimeError("ggml_graph_compute failed")

    def end(self):
        self.ggml.ggml_threadpool_free(self.pool)

    def free(self):
        self.ggml.ggml_free(self.context)


def run_ggml(add, folder, tokens_list, threads_list, seconds):
    try:
        import numpy
        ggml = Ggml(folder)
    except (ImportError, OSError, AttributeError) as error:
        return [f"ggml ({error})"]
    for shape in SHAPES:
        for tokens in tokens_list:
            for name, inner, cache in (("f16", F16, F16), ("f32>f16", F32, F16)):
                step = GgmlStep(numpy, ggml, shape, tokens, inner, cache)
                for threads in threads_list:
                    step.prepare(threads)
                    add("ggml", name, shape, tokens, threads, best_of(step.compute, seconds))
                    step.end()
                step.free()
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ggml", default="build/peers-ggml/src", help="folder of libggml-cpu.so")
    parser.add_argument("--tokens", default="1,64,4096,16384")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=0.4, help="time for each case")
    parser.add_argument("--only", default="", help="torch or ggml")
    options = parser.parse_args()
    tokens_list = [int(n) for n in options.tokens.split(",")]
    threads_list = [int(n) for n in options.threads.split(",")]
    rows = []

    def add(peer, dtype, shape, tokens, threads, timed):
        rows.append({"op": "rope_pool_fused", "variant": peer, "dtype": dtype, "shape": shape,
                     "tokens": tokens, "threads": threads, "ns": timed[0], "best_of": timed[1]})
        print(f"{peer:15} {dtype:8} {shape:9} {tokens:6} {threads} {timed[0] / 1e3:12.1f} us",
              file=sys.stderr)

    not_run = []
    if options.only in ("", "ggml"):
        not_run += run_ggml(add, options.ggml, tokens_list, threads_list, options.seconds)
    if options.only in ("", "torch"):
        not_run += run_torch(add, tokens_list, threads_list, options.seconds)
    print(json.dumps({"rows": rows, "not_run": not_run}, indent=1))


if __name__ == "__main__":
    main()
