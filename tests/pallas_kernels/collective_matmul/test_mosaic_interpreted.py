"""The kernels' tile code in the GPU interpreter: two virtual ranks, step by step, since it has no semaphores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks.relative_error import relative_error
from pallas_kernels.collective_matmul import mosaic_kernels, protocol
from pallas_kernels.collective_matmul.mosaic_peers import LoopbackPeers
from pallas_kernels.collective_matmul.mosaic_support import choose_tiles
from tests.tiers import first_in_default

if hasattr(plgpu, "InterpretGPUParams"):
    interpreted = plgpu.InterpretGPUParams(detect_races=True)
else:  # before jax 0.12
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    interpreted = InterpretGPUParams(detect_races=True)

RANKS = 2


@dataclasses.dataclass(frozen=True)
class Fixed(LoopbackPeers):
    """One of the virtual ranks, whatever block runs."""

    own: int

    def rank(self):
        return jnp.int32(self.own)


def in_lockstep(program, kind, config, inputs, outputs):
    """Runs every step of a program on all ranks before the next one; `kind` makes a port of its references."""

    def body(*refs):
        *operands, barrier = refs
        ports = [kind(Fixed(RANKS, rank), config, None, operands) for rank in range(RANKS)]
        for step in program.steps:
            for port in ports:
                target = None if step.target is None else port.rank(step.target)
                port.multiply(step, port.rank(step.chunk), target, port.rank(step.slot))
            plgpu.barrier_arrive(barrier)
            plgpu.barrier_wait(barrier)

    return plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in outputs],
        scratch_types=[plgpu.Barrier(num_arrivals=mosaic_kernels.COMPUTE_WARPGROUPS + 1)],
        grid=(1,),
        grid_names=("cluster_grid",),
        cluster=(1,),
        cluster_names=("cluster",),
        num_threads=mosaic_kernels.COMPUTE_WARPGROUPS + 1,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        interpret=interpreted,
    )(*inputs)


def gather(peers, config, counters, refs):
    x, w, product, gathered = refs
    return mosaic_kernels._Gather(peers, config, counters, x, (w,), (product,), gathered)


def scatter(peers, config, counters, refs):
    return mosaic_kernels._Scatter(peers, config, counters, *refs)


def normal(*shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def exactly(*operands):
    return [np.asarray(operand, np.float64) for operand in operands]


def test_the_all_gather_multiplies_its_tiles_and_sends_them_on():
    """Two rows and two columns of tiles in a chunk: tiles are sent on only in the first column."""
    rows, depth, width = 128, 128, 256
    config = mosaic_kernels._config(choose_tiles(64, depth, [128]))
    x, w = normal(RANKS, rows, depth, seed=0), normal(RANKS, depth, width, seed=1)
    outputs = [(RANKS, RANKS, rows, width), (RANKS, RANKS, rows, depth)]
    product, gathered = in_lockstep(protocol.all_gather_protocol(RANKS), gather, config, (x, w), outputs)
    np.testing.assert_array_equal(np.asarray(gathered), np.broadcast_to(np.asarray(x), gathered.shape))
    assert relative_error(product, np.einsum("imd,jdf->jimf", *exactly(x, w))) < 2e-3  # rounded once to bfloat16


@pytest.mark.parametrize(("rows", "width"), first_in_default([(64, 128), (128, 64)]))
def test_the_reduce_scatter_multiplies_into_the_slots_of_the_other_ranks(rows, width):
    """With the two warpgroups of a block side by side, and one below the other."""
    depth = 64
    x, w = normal(RANKS, RANKS, rows, depth, seed=2), normal(RANKS, depth, width, seed=3)
    outputs = [(RANKS, RANKS, rows, width)]
    config = mosaic_kernels._config(choose_tiles(rows, depth, [width]))
    (partials,) = in_lockstep(protocol.reduce_scatter_protocol(RANKS), scatter, config, (x, w), outputs)
    assert relative_error(partials, np.einsum("jimd,jdf->ijmf", *exactly(x, w))) < 2e-3
    assert relative_error(mosaic_kernels._sum(partials, axis=1), np.einsum("jimd,jdf->imf", *exactly(x, w))) < 4e-3
