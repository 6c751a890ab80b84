"""The protocol with data: every block of every virtual rank is a core of the TPU interpreter, peers are slices.

The interpreter for GPUs has no semaphores; the one for TPUs has, runs its cores at the same time, and reports any two
accesses that nothing orders.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.collective_matmul import protocol
from tests.tiers import first_in_default

cores = pltpu.TensorCoreMesh if hasattr(pltpu, "TensorCoreMesh") else pltpu.create_tensorcore_mesh  # before jax 0.12
ROWS, DEPTH, WIDTH = 8, 128, 128  # of a block's part of a chunk


class Core:
    """One block of one virtual rank. `assignment` says which core is which block: random, so that no order is luck."""

    def __init__(self, ranks, blocks, assignment, counters, landed, tile, w, product):
        self.ranks, self.blocks, self.assignment = ranks, blocks, assignment
        self.counters, self.landed, self.tile, self.w, self.product = counters, landed, tile, w, product
        me = assignment[0, lax.axis_index("core")]
        self.own, self.rows = me // blocks, pl.ds(me % blocks * ROWS, ROWS)

    def rank(self, offset):
        return lax.rem(self.own + offset, self.ranks)

    def wait(self, slot):
        pl.semaphore_wait(self.counters.at[slot], self.blocks)

    def notify(self, target, slot):
        for block in range(self.blocks):
            core = self.assignment[1, target * self.blocks + block]
            pl.semaphore_signal(self.counters.at[slot], 1, core_index=core)

    def times_weight(self):
        self.product[...] = jnp.dot(self.tile[...], self.w[...])

    def copy(self, source, target):
        pltpu.async_copy(source, target, self.landed).wait()


class Gather(Core):
    def __init__(self, *parts, x, products, gathered):
        super().__init__(*parts)
        self.x, self.products, self.gathered = x, products, gathered

    def multiply(self, step, chunk, target, slot):
        source = self.gathered.at[self.own, chunk, self.rows] if step.waits else self.x.at[self.own, self.rows]
        self.copy(source, self.tile)
        if not step.waits:
            self.copy(self.tile, self.gathered.at[self.own, chunk, self.rows])
        if target is not None:
            self.copy(self.tile, self.gathered.at[target, slot, self.rows])
        self.times_weight()
        self.copy(self.product, self.products.at[self.own, chunk, self.rows])


class Scatter(Core):
    def __init__(self, *parts, x, partials):
        super().__init__(*parts)
        self.x, self.partials = x, partials

    def multiply(self, step, chunk, target, slot):
        self.copy(self.x.at[self.own, chunk, self.rows], self.tile)
        self.times_weight()
        self.copy(self.product, self.partials.at[target, slot, self.rows])


def run(program, port, blocks, x, w, outputs, seed):
    """Runs a program on cores; returns its outputs, and whether two accesses raced.

    `port` takes the common parts and the references of x and of the outputs.
    """
    ranks = program.ranks
    block_of = np.random.default_rng(seed).permutation(ranks * blocks)
    assignment = jnp.asarray(np.stack([block_of, np.argsort(block_of)]), jnp.int32)

    def body(assignment, x, w, *rest):
        *outputs, counters, landed, table, tile, own_w, product = rest
        pltpu.sync_copy(assignment, table)
        core = port(ranks, blocks, table, counters, landed, tile, own_w, product, x, *outputs)
        pltpu.sync_copy(w.at[core.own], own_w)
        protocol.run_protocol(program, core)

    kernel = pl.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in outputs],
        mesh=cores(axis_name="core", num_cores=ranks * blocks),
        scratch_types=[
            pltpu.SemaphoreType.REGULAR((ranks,)),
            pltpu.SemaphoreType.DMA,
            pltpu.SMEM(assignment.shape, jnp.int32),
            pltpu.VMEM((ROWS, DEPTH), jnp.float32),
            pltpu.VMEM((DEPTH, WIDTH), jnp.float32),
            pltpu.VMEM((ROWS, WIDTH), jnp.float32),
        ],
        interpret=pltpu.InterpretParams(detect_races=True),
    )
    try:
        return jax.block_until_ready(kernel(assignment, x, w)), interpreter.races.races_found
    except jax.errors.JaxRuntimeError as error:  # since jax 0.12 a race ends the run
        pltpu.reset_tpu_interpret_mode_state()
        if "RACE DETECTED" not in str(error):
            raise
        return None, True


def whole_numbers(*shape, seed=0):
    """Small enough for every product and sum of them to be exact."""
    return jnp.asarray(np.random.default_rng(seed).integers(-4, 5, shape), jnp.float32)


CASES = pytest.mark.parametrize(("ranks", "blocks", "seed"), first_in_default([(2, 2, 0), (4, 2, 1), (8, 1, 2)]))


def gather_port(*parts, kind=Gather):
    *common, x, products, gathered = parts
    return kind(*common, x=x, products=products, gathered=gathered)


def scatter_port(*parts):
    *common, x, partials = parts
    return Scatter(*common, x=x, partials=partials)


@CASES
def test_the_all_gather_gathers_and_multiplies(ranks, blocks, seed):
    x, w = whole_numbers(ranks, blocks * ROWS, DEPTH, seed=seed), whole_numbers(ranks, DEPTH, WIDTH, seed=seed + 9)
    outputs = [(ranks, ranks, blocks * ROWS, width) for width in (WIDTH, DEPTH)]
    left, raced = run(protocol.all_gather_protocol(ranks), gather_port, blocks, x, w, outputs, seed)
    assert not raced
    products, gathered = left
    np.testing.assert_array_equal(products, np.einsum("imd,jdf->jimf", x, w))
    np.testing.assert_array_equal(gathered, np.broadcast_to(x, gathered.shape))


@CASES
def test_the_reduce_scatter_multiplies_and_sums(ranks, blocks, seed):
    x = whole_numbers(ranks, ranks, blocks * ROWS, DEPTH, seed=seed)
    w = whole_numbers(ranks, DEPTH, WIDTH, seed=seed + 9)
    outputs = [(ranks, ranks, blocks * ROWS, WIDTH)]
    left, raced = run(protocol.reduce_scatter_protocol(ranks), scatter_port, blocks, x, w, outputs, seed)
    assert not raced
    (partials,) = left
    np.testing.assert_array_equal(partials.sum(1), np.einsum("jimd,jdf->imf", x, w))


def test_without_the_waiting_the_interpreter_finds_the_race():
    class Hasty(Gather):
        def wait(self, slot):
            self.late = [*getattr(self, "late", []), slot]
            if len(self.late) == self.ranks - 1:  # the counters have to be back at zero
                for slot in self.late:
                    super().wait(slot)

    x, w = whole_numbers(3, ROWS, DEPTH), whole_numbers(3, DEPTH, WIDTH)
    outputs = [(3, 3, ROWS, width) for width in (WIDTH, DEPTH)]
    port = functools.partial(gather_port, kind=Hasty)
    assert run(protocol.all_gather_protocol(3), port, 1, x, w, outputs, seed=0)[1]
