"""Nothing here touches a network or a file of the user's. Which library is tested says
KVCANARY_LIBRARY, or the installed wheel."""

import kvcanary
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _threads():
    """Every test begins with the default number of threads."""
    yield
    kvcanary.set_num_threads(0)


@pytest.fixture
def rng():
    return np.random.default_rng(20261130)


def pytest_report_header():
    variants = [v.name for v in kvcanary.cpu_variants() if v.chosen]
    return f"kvcanary {kvcanary.__version__}, CPU variant {variants[0]}"
