"""How far what was computed is from what is exact."""

from typing import Any

import numpy as np


def relative_error(got: Any, wanted: np.ndarray) -> float:
    """|got - wanted| / |wanted|, of Frobenius norms in float64; absolute where nothing is wanted."""
    size = np.linalg.norm(wanted)
    return float(np.linalg.norm(np.asarray(got, np.float64) - wanted) / (size if size > 0 else 1.0))
