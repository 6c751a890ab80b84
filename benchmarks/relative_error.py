"""The error of a computed array against an exact one."""

from typing import Any

import numpy as np


def relative_error(actual: Any, exact: np.ndarray) -> float:
    """|actual - exact| / |exact| in Frobenius norms, in float64; absolute where the exact array is zero."""
    norm = np.linalg.norm(exact)
    return float(np.linalg.norm(np.asarray(actual, np.float64) - exact) / (norm if norm > 0 else 1.0))
