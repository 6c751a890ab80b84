"""The error function against SciPy, inside `shard_map` too; GELU against PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import PartitionSpec as P

from mmjax.models.layers.activations import ACTIVATIONS, erf
from tests.tiers import first_in_default

pytestmark = pytest.mark.usefixtures("compiled_as_users_do")

X = np.linspace(-6, 6, 4001).astype(np.float32)


def test_erf_and_its_derivative_match_scipy():
    np.testing.assert_allclose(erf(jnp.asarray(X)), scipy.special.erf(X.astype(float)), atol=5e-7)
    slopes = jax.vmap(jax.grad(erf))(jnp.asarray(X))
    np.testing.assert_allclose(slopes, 2 / np.sqrt(np.pi) * np.exp(-(X.astype(float) ** 2)), atol=5e-7)


@pytest.mark.parametrize("name", first_in_default(ACTIVATIONS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_and_gradients_run_inside_shard_map(name, dtype):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("ranks",))
    x = jnp.linspace(-3, 3, 8).astype(dtype)

    def local(x):
        y, back = jax.vjp(ACTIVATIONS[name], x)
        return y, back(y)[0]

    shards = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks")))(x)
    for actual, expected in zip(shards, local(x), strict=True):
        assert actual.dtype == x.dtype
        there, here = (array.astype(np.float32) for array in (actual, expected))
        np.testing.assert_allclose(there, here, rtol=1e-5 if dtype == "float32" else 1e-2, atol=1e-8)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelus_match_pytorch(name):
    torch = pytest.importorskip("torch")
    expected = torch.nn.functional.gelu(torch.tensor(X), approximate="tanh" if name == "gelu_tanh" else "none")
    np.testing.assert_allclose(ACTIVATIONS[name](jnp.asarray(X)), expected.numpy(), atol=2e-6)
