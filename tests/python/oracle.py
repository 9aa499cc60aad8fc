"""What the operations should do, in NumPy and Python integers, written from the specification alone."""

import math

import numpy as np

M64 = 2**64 - 1
ANCHOR = 0xC0FFEE1234567890

# Spacing of the numbers of each type: bits after the leading one, and the least exponent.
MANTISSA = {"float32": (23, -126), "float16": (10, -14), "bfloat16": (7, -126)}


def inv_freq(rotary_dim, base):
    return np.array([base ** (-2.0 * i / rotary_dim) for i in range(rotary_dim // 2)])


def rotate(x, positions, rotary_dim, base, style, offset=0):
    """float64 [T, H, D] rotated exactly (up to float64), and the norm of each element's pair."""
    x = x.astype(np.float64)
    angle = positions.astype(np.float64)[:, None] * inv_freq(rotary_dim, base)
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    half = rotary_dim // 2
    if style == "neox":
        first, second = np.arange(half) + offset, np.arange(half, rotary_dim) + offset
    else:
        first = np.arange(half) * 2 + offset
        second = first + 1
    out, norm = x.copy(), np.zeros_like(x)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    norm[..., first] = norm[..., second] = np.hypot(x[..., first], x[..., second])
    return out, norm


def ulp(value, dtype):
    """The spacing of `dtype` at |value|."""
    bits, least = MANTISSA[dtype]
    exponent = np.frexp(np.abs(value))[1] - 1
    return np.exp2(np.maximum(exponent, least) - bits)


def tolerance(exact, norm, dtype):
    """The promise: 1 ulp of the output type, or 4 float32 ulp of the pair's norm."""
    return np.maximum(ulp(exact, dtype), 4 * ulp(norm, "float32"))


def finalise(x):
    x &= M64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def mix3(a, b, c):
    return finalise(finalise(finalise(a) ^ (b & M64)) ^ (c & M64))


def chain_start(namespace=0):
    return finalise(ANCHOR if namespace == 0 else ANCHOR ^ finalise(namespace))


def chain(tokens, namespace=0, first=0):
    """The chain value before each token, and the one after the last."""
    values = [chain_start(namespace)]
    for index, token in enumerate(tokens):
        values.append(mix3(values[-1], token, first + index))
    return values


def splitmix(strips):
    """SGLang's fingerprint of byte strings in order."""
    total = 0
    for strip in strips:
        fold = 0
        padded = strip + bytes(-len(strip) % 8)
        for at in range(0, len(padded), 8):
            fold = finalise(fold ^ int.from_bytes(padded[at : at + 8], "little"))
        total = finalise(total ^ fold)
    return total


def signed(value):
    """The same 64 bits as an int64."""
    value &= M64
    return value - 2**64 if value >= 2**63 else value


assert math.isclose(ulp(np.float64(1.0), "bfloat16"), 2**-7)
