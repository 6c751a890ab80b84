"""FP8 operands compiled for H100s: every matmul with a weight, forward, dgrad and wgrad, is cuBLASLt's FP8 matmul."""

import collections
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.h100_schedule.compilation import CUBLAS, tensor_mesh
from benchmarks.h100_schedule.programs import LLAMA3_70B, ProgramCase, build_program
from mmjax.training.dry_run.targets import missing_plugin
from pallas_kernels.matmul import matmul

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

NATIVE, FP8 = "__cublas$lt$matmul", "__cublas$lt$matmul$f8"
BLOCK = dataclasses.replace(LLAMA3_70B, width=2048, heads=16, kv_heads=4, ffn=4096)


def matmuls(function, arguments):
    """How many matmuls of either kind a program has."""
    with jax.numpy_dtype_promotion("standard"):
        program = jax.jit(function, compiler_options=CUBLAS).lower(*arguments).compile().as_text()
    counts = collections.Counter(re.findall(r'custom_call_target="([^"]*)"', program))
    return counts[NATIVE], counts[FP8]


def test_forward_dgrad_and_wgrad_multiply_fp8_and_write_bfloat16():
    def product_and_gradients(x, w, cotangent):
        y, pull = jax.vjp(functools.partial(matmul, matmul_format="fp8"), x, w)
        return y, *pull(cotangent)

    sharding = NamedSharding(tensor_mesh(1), P())
    shapes = ((2, 2048, 4096), (4096, 8192), (2, 2048, 8192))
    arguments = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding) for shape in shapes)
    assert matmuls(product_and_gradients, arguments) == (0, 3)
    program = jax.jit(product_and_gradients, compiler_options=CUBLAS).lower(*arguments).compile().as_text()
    results = re.findall(r'= \((\w+)\[[^=]*custom_call_target="__cublas\$lt\$matmul\$f8"', program)
    assert results == ["bf16"] * 3


@pytest.mark.parametrize("collectives", ["all_reduce", "ring"])
@pytest.mark.parametrize("backward", [False, True])
def test_a_block_has_as_many_fp8_matmuls_as_it_has_matmuls_without(backward, collectives):
    """XLA merges products that share an operand, in FP8 too: the queries', keys' and values', the gate's and up's."""
    case = ProgramCase("layer", 2, backward, collectives)
    native, _ = matmuls(*build_program(case, BLOCK, 1024))
    assert native
    in_fp8 = dataclasses.replace(BLOCK, fp8=("attention", "mlp"))
    assert matmuls(*build_program(case, in_fp8, 1024)) == (0, native)
