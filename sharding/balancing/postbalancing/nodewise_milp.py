"""Node-wise placement as the paper's integer program (Algorithm 3), for small clusters and to measure the search.

x has a row for every batch and a column for every node; the print has as many columns as a node has replicas.
"""

from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Int

from sharding.balancing.postbalancing.nodewise import SentItems


def solve_placement(
    items: SentItems, replicas: int, per_node: int, seconds: float = 60.0
) -> tuple[Int[np.ndarray, " d"], float]:
    """An optimal replica for every batch, or the best found in time, and a lower bound of the most that one sends.

    Raises:
        TimeoutError: No placement was found in time.
    """
    result = _solve(items, replicas, per_node, seconds)
    if result.x is None:
        raise TimeoutError(f"no placement of {replicas} batches within {seconds} s: {result.message}")
    node = result.x[:-1].reshape(replicas, -1).argmax(axis=1)
    placement = np.empty(replicas, np.int64)
    placement[np.argsort(node, kind="stable")] = np.arange(replicas)
    return placement, float(result.mip_dual_bound)


def _solve(items: SentItems, replicas: int, per_node: int, seconds: float) -> scipy.optimize.OptimizeResult:
    """Minimises z subject to total - kept <= z for every replica; the variables are x by batch and node, then z."""
    lengths, source, batch = items
    nodes = replicas // per_node
    totals: Any = np.bincount(source, weights=lengths, minlength=replicas)
    shape = (replicas, replicas * nodes)
    kept = scipy.sparse.csr_matrix((lengths, (source, batch * nodes + source // per_node)), shape)
    nodes_of_batch = scipy.sparse.kron(scipy.sparse.eye(replicas), np.ones((1, nodes)))
    batches_of_node = scipy.sparse.kron(np.ones((1, replicas)), scipy.sparse.eye(nodes))
    objective = np.zeros(shape[1] + 1)
    objective[-1] = 1
    constraints = [
        scipy.optimize.LinearConstraint(_with_column(kept, 1), totals, np.inf),
        scipy.optimize.LinearConstraint(_with_column(nodes_of_batch, 0), 1, 1),
        scipy.optimize.LinearConstraint(_with_column(batches_of_node, 0), per_node, per_node),
    ]
    upper: Any = np.append(np.ones(shape[1]), np.inf)  # SciPy's stubs know no arrays here
    bounds = scipy.optimize.Bounds(0, upper)
    integrality = np.append(np.ones(shape[1]), 0)
    return scipy.optimize.milp(
        objective, constraints=constraints, bounds=bounds, integrality=integrality, options={"time_limit": seconds}
    )


def _with_column(matrix: Any, value: int) -> Any:
    column = scipy.sparse.csr_matrix(np.full((matrix.shape[0], 1), value))
    return scipy.sparse.hstack([matrix, column]).tocsr()
