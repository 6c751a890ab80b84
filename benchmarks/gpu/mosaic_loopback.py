"""Runs the Hopper kernels on one GPU whose blocks are shared out among virtual ranks, and compares the numbers.

Run it with `timeout 600 python -m benchmarks.gpu.mosaic_loopback`, because a wrong order may hang. It shows whether
blocks that the GPU starts and runs in any order keep the order of `protocol.py`; it says nothing of links between GPUs.
"""

import argparse
import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.relative_error import relative_error
from pallas_kernels.collective_matmul import mosaic_support
from pallas_kernels.collective_matmul.mosaic import kernels

RANKS = (2, 4, 8)
SIZES = ((256, 512, 512), (512, 1024, 768), (128, 4096, 256))
"""Rows of a chunk, contracted size and columns, of a rank."""
TOLERANCES = {"products": 4e-3, "gathered": 0.0, "sums": 8e-3}
"""Norm of the difference from float64 over the norm: bfloat16 rounds by up to 2^-8, a sum of rounded terms likewise."""


def unsupported_reason() -> str:
    """Why nothing can be run here, or ""."""
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    return mosaic_support.unsupported_placement_reason(
        [0, 1], {"virtual": 2}, ("virtual",), 1, device.platform, capability
    )


def worst_errors(ranks: int, rows: int, depth: int, width: int, rounds: int) -> dict[str, float]:
    """The norm of the difference from float64 over the norm, of the worst of some rounds on the same operands."""
    random = np.random.default_rng(ranks)

    def operand(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), jnp.bfloat16)

    x, w, parts = operand(ranks, rows, depth), operand(ranks, depth, width), operand(ranks, ranks, rows, depth)
    wanted = {
        "products": np.matmul(exactly(x)[None], exactly(w)[:, None]),
        "gathered": np.broadcast_to(exactly(x), (ranks, *x.shape)),
        "sums": np.matmul(exactly(parts), exactly(w)[:, None]).sum(0),
    }
    gather = jax.jit(kernels().loopback_all_gather_matmul)
    scatter = jax.jit(kernels().loopback_matmul_reduce_scatter)
    worst = dict.fromkeys(wanted, 0.0)
    for _ in range(rounds):
        (products,), gathered = gather(x, (w,))
        actual = {"products": products, "gathered": gathered, "sums": scatter(parts, w)}
        worst = {
            name: float(np.maximum(far, relative_error(actual[name], wanted[name])))  # keeps a NaN
            for name, far in worst.items()
        }
    return worst


def exactly(x: jax.Array) -> np.ndarray:
    """Converts numbers to float64, exactly."""
    return np.asarray(x, np.float64)


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 if all agree, 1 if an error is above the tolerance, 2 if this GPU cannot run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="times that every size is run")
    rounds = parser.parse_args(arguments).rounds
    if reason := unsupported_reason():
        print(reason, file=sys.stderr)
        return 2
    wrong = 0
    for ranks in RANKS:
        for sizes in SIZES:
            worst = worst_errors(ranks, *sizes, rounds)
            wrong += any(not far <= TOLERANCES[name] for name, far in worst.items())
            print(ranks, "ranks", *sizes, *(f"{name} {far:.2e}" for name, far in worst.items()), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
