"""The same array in each framework that is installed, and back, bit for bit."""

import ctypes
import os

import ml_dtypes
import numpy as np
import pytest

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Numpy:
    name = "numpy"

    def give(self, array):
        return np.array(array, order="C")

    def back(self, array):
        return array


class Torch:
    name = "torch"

    def __init__(self):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Debian's torch complains about a newer NumPy
            import torch

            torch.zeros(1)
        self.torch = torch

    def give(self, array, device="cpu"):
        array = np.ascontiguousarray(array)
        made = self.torch.empty(array.shape, dtype=getattr(self.torch, array.dtype.name))
        ctypes.memmove(made.data_ptr(), array.ctypes.data, array.nbytes)
        return made.to(device)

    def back(self, array):
        array = array.contiguous().cpu()
        name = str(array.dtype).removeprefix("torch.")
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        raw = ctypes.string_at(array.data_ptr(), array.numel() * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(tuple(array.shape))


class Jax:
    name = "jax"

    def __init__(self):
        import jax
        import jax.numpy as jnp

        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_device", jax.devices("cpu")[0])
        self.jnp = jnp

    def give(self, array):
        return self.jnp.array(array, copy=True)

    def back(self, array):
        return np.asarray(array)


class Mlx:
    name = "mlx"

    def __init__(self):
        import mlx.core as mx

        self.mx = mx

    def give(self, array):
        if array.dtype == BFLOAT16:
            made = self.mx.array(array.astype(np.float32)).astype(self.mx.bfloat16)
        else:
            made = self.mx.array(array)
        self.mx.eval(made)
        return made

    def back(self, array):
        if array.dtype == self.mx.bfloat16:
            return np.array(array.astype(self.mx.float32)).astype(BFLOAT16)
        return np.array(array)


def installed(cls):
    try:
        return cls()
    except ImportError as error:
        if os.environ.get("KVC_REQUIRE_ALL"):
            raise
        return pytest.param(cls.name, marks=pytest.mark.skip(reason=str(error)))


ALL = [installed(cls) for cls in (Numpy, Torch, Jax, Mlx)]


def label(framework):
    return framework.name if hasattr(framework, "name") else str(framework)
