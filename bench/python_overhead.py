#!/usr/bin/env python3
"""What a call of the Python package costs beyond the C function: rope_pool_fused, T tokens, torch.

usage: python_overhead.py [--device cpu|cuda] [--tokens 1] [--numpy]

The C function is called through a struct that is made beforehand; what ctypes itself takes for a call
of its prototype (strcmp with one string) is subtracted. The floor is an entry point that does nothing,
called by the same way with the same arguments: what is over it the package's own Python takes. Times are
CPU time of this thread (cpu) or host time until the call returns (cuda), the least of many rounds, all
taking turns.
"""

import argparse
import ctypes
import time
import types

import numpy as np

import kvcanary
from kvcanary import _abi, _builtin, _fast
from kvcanary._lib import C
from kvcanary._tensor import stream_of, view


def least(functions, clock, rounds, calls):
    """The least mean seconds a call of each function, in turns."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for index, function in enumerate(functions):
            begin = clock()
            for _ in range(calls):
                function()
            best[index] = min(best[index], (clock() - begin) / calls)
    return best


def arrays_of(options):
    tokens, heads, heads_kv, dim, slots = options.tokens, 32, 8, 128, 4096
    rng = np.random.default_rng(0)
    shapes = [(tokens, heads, dim), (tokens, heads_kv, dim), (tokens, heads_kv, dim)]
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    pools = [np.zeros((slots, heads_kv, dim), np.float32) for _ in range(2)]
    arrays = [q, k, v, np.arange(tokens), np.arange(tokens) + 1, *pools]
    if options.numpy:
        return arrays
    import torch

    given = [torch.from_numpy(a) for a in arrays]
    given = [t.to(torch.bfloat16) if t.is_floating_point() else t for t in given]
    return [t.to(options.device) for t in given]


def way_of(array):
    """How a call with this array gets to C."""
    if type(array) is not _fast.quick.tensor_type or not _fast.quick.functions:
        return "ctypes"
    built_in = isinstance(_fast.quick.rope_pool_fused, types.BuiltinFunctionType)
    return "a built-in function" if built_in else "tvm-ffi"


def doing_nothing():
    """A built-in function of any arguments, as the package's are, over an entry point that is empty."""
    import torch

    nothing = ctypes.CDLL(None).abs  # of NULL, which is what an entry point's 'self' is: 0, no error
    return _builtin.builtins(torch.Tensor, {"nothing": nothing})["nothing"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--numpy", action="store_true", help="NumPy arrays, over ctypes")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    kvcanary.set_num_threads(1)
    q, k, v, positions, slots, k_pool, v_pool = arrays_of(options)
    rope = kvcanary.rope_init(128)

    def call():
        kvcanary.rope_pool_fused(
            q, k, v, positions, slots, k_pool, v_pool,
            head_dim=128, num_qo_heads=32, num_kv_heads=8, rope_base=1e4, q_out=q, k_out=k,
        )  # fmt: skip

    call()
    named = {
        "q": q, "k": k, "v": v, "positions": positions, "slots": slots, "k_pool": k_pool,
        "v_pool": v_pool, "q_out": q, "k_out": k,
    }  # fmt: skip
    views = {name: view(array, name) for name, array in named.items()}
    arguments = _abi.kvc_rope_pool_args(
        rope=rope.address, **{name: v.address for name, v in views.items()}
    )
    ready, stream = ctypes.byref(arguments), stream_of(q, None)
    function = C.kvc_rope_pool_fused
    nothing = ctypes.CDLL(None).strcmp  # as good as none, with the same types of arguments
    nothing.argtypes, nothing.restype = function.argtypes, function.restype
    same = ctypes.addressof(arguments)
    calls = [call, lambda: function(ready, stream), lambda: nothing(ready, same)]
    way = way_of(q)
    if way == "a built-in function":
        floor = doing_nothing()
        few = (q, k, v, positions, slots, k_pool, v_pool, True, True, rope.address, 128, 32, 8, None)
        calls.append(lambda: floor(*few))
    clock = time.thread_time if options.device == "cpu" else time.perf_counter
    best = [seconds * 1e6 for seconds in least(calls, clock, options.rounds, 200)]
    python, in_c, empty = best[:3]
    print(f"rope_pool_fused, T = {options.tokens}, 32/8 heads of 128, {options.device}, over {way}")
    print(f"  from Python     {python:7.2f} us")
    print(f"  C, through a ready struct {in_c:7.2f} us, of which ctypes about {empty:.2f} us")
    print(f"  beyond C        {python - (in_c - empty):7.2f} us")
    for floor in best[3:]:
        print(f"  floor           {floor:7.2f} us, a call that does nothing with the same arguments")


if __name__ == "__main__":
    main()
