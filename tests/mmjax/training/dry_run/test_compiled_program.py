"""What is read from a compiled program, and what an error says; programs are compiled for CPUs."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.common.errors import UserError
from mmjax.training.dry_run.compiled_program import compile_program, without_persistent_cache
from sharding.runtime.hops import make_hop
from sharding.runtime.stages.compilation import ProgramCall
from sharding.runtime.stages.named_programs import named_jit

ROWS, WIDTH, LAYERS = 64, 128, 5


def stack_call() -> ProgramCall:
    """A scan over matmuls of two devices, each followed by a sum over both."""
    mesh = Mesh(jax.devices()[:2], ("tensor",))

    def layers(x, weights):
        def layer(x, weight):
            return jax.lax.psum(jnp.tanh(x @ weight), "tensor"), None

        return jax.lax.scan(layer, x, weights)[0]

    body = jax.shard_map(layers, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
    shapes = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32), jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    arguments = tuple(
        jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=NamedSharding(mesh, P())) for shape in shapes
    )
    return ProgramCall(named_jit(body, ("backbone", 1), "forward"), arguments)


def test_loops_count_with_all_their_iterations():
    figures = compile_program(stack_call(), "cpu")
    assert figures.flops == 2 * ROWS * WIDTH * WIDTH * LAYERS
    assert figures.exchanged_bytes == figures.exposed_bytes == 4 * ROWS * WIDTH * LAYERS
    assert figures.output_bytes == 4 * ROWS * WIDTH
    assert figures.compile_seconds > 0


def test_an_error_names_the_program_and_the_line_of_ours_that_it_passed():
    sharding = NamedSharding(Mesh(jax.devices()[:1], ("x",)), P())

    def forward(x):
        make_hop(sharding, sharding, x.shape, x.dtype, "by pigeon")
        return x

    call = ProgramCall(named_jit(forward, ("vision", 3), "forward"), (jax.ShapeDtypeStruct((2,), jnp.float32),))
    with pytest.raises(UserError) as refused:
        compile_program(call, "h100")
    message = str(refused.value)
    assert re.match(r"vision_stage3_forward \(sharding/runtime/hops\.py:\d+\) does not compile for h100: ", message)
    assert "by pigeon" in message and "\n" not in message


def test_an_error_of_xla_names_its_operation_and_source():
    def forward(x):
        raise RuntimeError(
            'ptxas died at %dot, metadata={op_name="jit(forward)/dot"}\n'
            "Suspected Python Code Location:\n  /a/b.py:7:11 [matmul]\n  /a/c.py:9:11 [layer]"
        )

    call = ProgramCall(named_jit(forward, ("vision", 3), "forward"), (jax.ShapeDtypeStruct((2,), jnp.float32),))
    with pytest.raises(UserError, match=r"_forward \(operation jit\(forward\)/dot, b\.py:7\) does not .*: ptxas"):
        compile_program(call, "h100")


def test_the_persistent_cache_is_as_before_behind_a_dry_run():
    before = jax.config.jax_enable_compilation_cache
    with without_persistent_cache():
        assert not jax.config.jax_enable_compilation_cache
    assert jax.config.jax_enable_compilation_cache == before
