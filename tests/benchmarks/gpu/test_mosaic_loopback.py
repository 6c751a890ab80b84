"""The check of the Hopper kernels on one GPU, with their contracts kept by XLA."""

import types

import jax.numpy as jnp
import pytest

from benchmarks.gpu import mosaic_loopback


def all_gather_matmul(x, weights):
    products = (jnp.einsum("imd,jdf->jimf", x, w, preferred_element_type=jnp.float32) for w in weights)
    return tuple(y.astype(x.dtype) for y in products), jnp.broadcast_to(x, (x.shape[0], *x.shape))


def matmul_reduce_scatter(x, w):
    return jnp.einsum("jimd,jdf->imf", x, w, preferred_element_type=jnp.float32).astype(x.dtype)


def late(x, w):
    """As if one rank's part had not arrived."""
    return matmul_reduce_scatter(x.at[1, 0].set(0), w)


@pytest.mark.parametrize(("scatter", "status"), [(matmul_reduce_scatter, 0), (late, 1)])
def test_it_tells_right_from_wrong(scatter, status, monkeypatch, capsys):
    plain = types.SimpleNamespace(loopback_all_gather_matmul=all_gather_matmul, loopback_matmul_reduce_scatter=scatter)
    monkeypatch.setattr(mosaic_loopback, "kernels", lambda: plain)
    monkeypatch.setattr(mosaic_loopback, "unsupported_reason", lambda: "")
    monkeypatch.setattr(mosaic_loopback, "SIZES", ((8, 16, 8),))
    monkeypatch.setattr(mosaic_loopback, "RANKS", (2, 4))
    assert mosaic_loopback.main(["--rounds", "2"]) == status
    assert capsys.readouterr().out.startswith("2 ranks 8 16 8 products ")


def test_without_a_gpu_it_says_so(capsys):
    assert mosaic_loopback.main([]) == 2
    assert "platform 'cpu'" in capsys.readouterr().err
