"""Run in an environment with the wheel and NumPy alone: it works, and so does the command."""

import shutil
import subprocess
import sys

import kvcanary
import numpy as np

assert shutil.which("cc") is None and shutil.which("gcc") is None
q = np.ones((1, 2, 8), np.float32)
k = np.ones((1, 1, 8), np.float32)
pool = np.zeros((4, 1, 8), np.float32)
kvcanary.rope_pool_fused(
    q, k, k.copy(), np.array([0]), np.array([3]), pool, pool.copy(), rope_base=1e4
)
assert pool[3].all()
for command in (["kvcanary"], [sys.executable, "-m", "kvcanary"]):
    out = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == f"kvcanary {kvcanary.__version__}", out.stdout
    assert (
        subprocess.run([*command, "explain", "no-such-thing"], capture_output=True).returncode == 2
    )
print(f"clean environment: kvcanary {kvcanary.__version__} on Python {sys.version.split()[0]}")
