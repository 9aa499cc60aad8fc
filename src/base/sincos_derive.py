#!/usr/bin/env python3
"""Derives the constants of sincos.h; run by hand (needs mpmath), its output is pasted there.

pi/2 is cut into three pieces of 25 bits. The polynomials are minimax (Remez) fits of
    sin(r) = r + r*z * P(z),   cos(r) = 1 - z/2 + z*z * Q(z),   z = r*r,
with the error measured absolutely, since cosines and sines multiply values of one pair.
"""
from mpmath import mp, mpf, pi, floor, log, matrix, lu_solve, sin, cos, sqrt

mp.prec = 240
LIMIT = pi / 4 + mpf(2) ** -20  # n is rounded from a rounded product: r may pass pi/4 by a hair


def pieces_of_half_pi():
    rest, out = pi / 2, []
    for _ in range(3):
        unit = mpf(2) ** (int(floor(log(rest, 2))) - 24)
        out.append(floor(rest / unit) * unit)
        rest -= out[-1]
    return out, log(rest, 2)


def remez(target, weight, degree):
    """Coefficients a with |weight(z) * (sum a_i z^i - target(z))| levelled on (0, LIMIT^2]."""
    low, high = mpf(2) ** -20, LIMIT**2
    count = degree + 2
    points = [(low + high) / 2 - (high - low) / 2 * mp.cos(pi * i / (count - 1)) for i in range(count)]
    for _ in range(12):
        system, right = matrix(count, count), matrix(count, 1)
        for row, z in enumerate(points):
            for power in range(degree + 1):
                system[row, power] = z**power
            system[row, degree + 1] = (-1) ** row / weight(z)
            right[row] = target(z)
        solution = lu_solve(system, right)
        fit = list(solution)[: degree + 1]

        def error(z):
            return weight(z) * (mp.polyval(fit[::-1], z) - target(z))

        grid = [low + (high - low) * i / 2000 for i in range(2001)]
        values = [error(z) for z in grid]
        peaks, sign = [], 0
        for z, value in zip(grid, values):
            if mp.sign(value) != sign:
                peaks.append((z, value))
                sign = mp.sign(value)
            elif abs(value) > abs(peaks[-1][1]):
                peaks[-1] = (z, value)
        points = [z for z, _ in peaks][:count]
        if len(points) < count:
            raise SystemExit("lost an extremum")
    return fit, max(abs(v) for v in values)


def show(name, numbers):
    for i, number in enumerate(numbers):
        print(f"{name}{i + 1} {float(number).hex()}")


halves, rest = pieces_of_half_pi()
show("HALF_PI_", halves)
print("log2 of what the pieces leave out:", mp.nstr(rest, 5))
print("TWO_OVER_PI", float(2 / pi).hex())
fit, worst = remez(lambda z: (sin(sqrt(z)) - sqrt(z)) / (sqrt(z) * z), lambda z: sqrt(z) * z, 5)
show("SIN_", fit)
print("log2 of the error:", mp.nstr(log(worst, 2), 5))
fit, worst = remez(lambda z: (cos(sqrt(z)) - 1 + z / 2) / (z * z), lambda z: z * z, 5)
show("COS_", fit)
print("log2 of the error:", mp.nstr(log(worst, 2), 5))
