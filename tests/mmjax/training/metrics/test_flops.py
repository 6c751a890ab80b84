"""FLOPs against matrix products counted by hand, through every transformation that a model uses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from data.packing.dealt_phases import row_values
from mmjax.models.model import model_modules
from mmjax.training.metrics.flops import count_flops, model_flops_utilization, peak_flops, value_flops
from tests.mmjax.training.engines import WITHOUT_GENERATOR
from tests.tiny_model import PATCHES, TOKENS, tiny_batch

sizes = st.integers(1, 5)


@settings(max_examples=20, deadline=None)
@given(batch=sizes, rows=sizes, inner=sizes, columns=sizes)
def test_a_batched_matmul_counts_two_flops_a_multiply_add(batch, rows, inner, columns):
    a, b = jnp.zeros((batch, rows, inner)), jnp.zeros((batch, inner, columns))
    assert count_flops(jnp.matmul, a, b) == 2 * batch * rows * inner * columns


def layers(weights, x):
    def body(carry, weight):
        return jnp.tanh(carry @ weight), None

    return lax.scan(body, x, weights)[0]


WEIGHTS, ROWS = jax.ShapeDtypeStruct((6, 8, 8), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32)
FORWARD = 6 * 2 * 4 * 8 * 8


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint, lambda f: jax.jit(jax.jit(f))])
def test_a_scan_counts_every_iteration(wrap):
    assert count_flops(wrap(layers), WEIGHTS, ROWS) == FORWARD


def test_a_step_costs_three_forwards_and_two_with_frozen_weights():
    def loss(weights, x):
        return layers(weights, x).sum()

    assert count_flops(jax.grad(loss, argnums=(0, 1)), WEIGHTS, ROWS) == 3 * FORWARD
    # The first layer's input gradient is computed in the scan even where it is not needed.
    assert count_flops(jax.grad(loss, argnums=1), WEIGHTS, ROWS) == 2 * FORWARD


def test_recomputation_costs_one_more_forward():
    def loss(weights, x):
        return jax.checkpoint(layers)(weights, x).sum()

    assert count_flops(jax.grad(loss, argnums=(0, 1)), WEIGHTS, ROWS) == 4 * FORWARD


def convolution(x, kernel, stride):
    return lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_and_its_gradients(stride):
    x, kernel = jnp.zeros((2, 10, 10, 3)), jnp.zeros((2, 2, 3, 5))
    side = 8 // stride + 1
    forward = 2 * (2 * side * side * 5) * (2 * 2 * 3)
    assert count_flops(lambda *a: convolution(*a, stride), x, kernel) == forward
    weights_only = jax.grad(lambda k: convolution(x, k, stride).sum())
    assert count_flops(weights_only, kernel) == 2 * forward


def test_the_longest_branch_of_a_cond_counts():
    def function(a):
        return lax.cond(a[0, 0] > 0, lambda a: a @ a @ a, lambda a: a @ a, a)

    assert count_flops(function, jnp.zeros((3, 3))) == 2 * 2 * 27


def test_a_loop_of_unknown_length_is_refused():
    def function(a):
        return lax.while_loop(lambda a: a[0, 0] < 1, lambda a: a @ a, a)

    with pytest.raises(NotImplementedError, match="while"):
        count_flops(function, jnp.zeros((3, 3)))


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A800-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200 NVL", None),
        ("cpu", None),
    ],
)
def test_peaks(kind, peak):
    assert peak_flops(kind) == peak


def test_the_peak_of_fp8_is_that_of_devices_that_multiply_it():
    assert peak_flops("NVIDIA H200", fp8=True) == 2 * 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", fp8=True) == 312e12
    assert peak_flops("cpu", fp8=True) is None
    assert model_flops_utilization(989e12, 1.0, ["NVIDIA H200"], fp8=True) == 0.5


def test_utilization_counts_every_allocated_device():
    kinds = ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"]
    np.testing.assert_allclose(model_flops_utilization(1301e12, 2.0, kinds), 0.5)
    assert model_flops_utilization(1e12, 1.0, [*kinds, "cpu"]) is None
    assert model_flops_utilization(1e12, 1.0, []) is None


def test_the_flops_of_a_value_are_those_of_a_full_row_over_its_values():
    two_rows, eight_rows = tiny_batch(WITHOUT_GENERATOR, rows=2), tiny_batch(WITHOUT_GENERATOR, rows=8)
    values = row_values(WITHOUT_GENERATOR, two_rows)
    assert {name: value.count for name, value in values.items()} == {"vision": PATCHES, "backbone": TOKENS}
    modules, kind = model_modules(WITHOUT_GENERATOR), "NVIDIA A100-SXM4-80GB"
    flops = value_flops(modules, two_rows, values, kind)
    assert flops == value_flops(modules, eight_rows, row_values(WITHOUT_GENERATOR, eight_rows), kind)
    assert all(flops.values()) and value_flops(modules, two_rows, values, "cpu") == {}
