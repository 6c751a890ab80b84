"""Node-wise placement as the paper's integer program (Algorithm 3), for small clusters and as a measure of others.

The printed program gives x one column an instance of a node; it has a row for every batch and a column for every node.
"""

import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Int


def solve_placement(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    batch: Int[np.ndarray, " n"],
    instances: int,
    per_node: int,
    seconds: float = 60.0,
) -> tuple[Int[np.ndarray, " d"], float]:
    """An optimal instance for every batch, or the best found in the time, and a lower bound of what the worst sends.

    Raises:
        TimeoutError: No placement was found in the time.
    """
    result = _solve(lengths, source, batch, instances, per_node, True, seconds)
    if result.x is None:
        raise TimeoutError(f"no placement of {instances} batches within {seconds} s: {result.message}")
    node = result.x[:-1].reshape(instances, -1).argmax(axis=1)
    hosts = np.empty(instances, np.int64)
    hosts[np.argsort(node, kind="stable")] = np.arange(instances)
    return hosts, float(result.mip_dual_bound)


def placement_lower_bound(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    batch: Int[np.ndarray, " n"],
    instances: int,
    per_node: int,
) -> float:
    """What the worst instance sends at least, by the linear program in which batches may be divided among nodes."""
    return float(_solve(lengths, source, batch, instances, per_node, False, np.inf).fun)


def _solve(
    lengths: Int[np.ndarray, " n"],
    source: Int[np.ndarray, " n"],
    batch: Int[np.ndarray, " n"],
    instances: int,
    per_node: int,
    whole: bool,
    seconds: float,
) -> scipy.optimize.OptimizeResult:
    """Least worst, so that for every instance total - kept <= worst; variables are x by batch and node, then worst."""
    nodes = instances // per_node
    totals = np.bincount(source, weights=lengths, minlength=instances)
    shape = (instances, instances * nodes)
    kept = scipy.sparse.csr_matrix((lengths, (source, batch * nodes + source // per_node)), shape)
    one_node = scipy.sparse.kron(scipy.sparse.eye(instances), np.ones((1, nodes)))
    full = scipy.sparse.kron(np.ones((1, instances)), scipy.sparse.eye(nodes))
    worst = np.zeros(shape[1] + 1)
    worst[-1] = 1
    constraints = [
        scipy.optimize.LinearConstraint(_with_column(kept, 1), totals, np.inf),
        scipy.optimize.LinearConstraint(_with_column(one_node, 0), 1, 1),
        scipy.optimize.LinearConstraint(_with_column(full, 0), per_node, per_node),
    ]
    bounds = scipy.optimize.Bounds(0, np.append(np.ones(shape[1]), np.inf))
    integrality = np.append(np.full(shape[1], int(whole)), 0)
    options = {} if seconds == np.inf else {"time_limit": seconds}
    return scipy.optimize.milp(worst, constraints=constraints, bounds=bounds, integrality=integrality, options=options)


def _with_column(matrix: scipy.sparse.spmatrix, value: int) -> scipy.sparse.csr_matrix:
    column = scipy.sparse.csr_matrix(np.full((matrix.shape[0], 1), value))
    return scipy.sparse.hstack([matrix, column]).tocsr()
