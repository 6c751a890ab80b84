"""Model FLOPs of a step by phase, counted from the model itself, for MFU."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from mmjax.models.forward import run_module
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import abstract_module_parameters
from mmjax.training.engine.engine import Engine
from mmjax.training.metrics.flops import count_flops, peak_flops
from pallas_kernels.packed_attention import use_attention_implementation


def full_batch_flops(engine: Engine, example: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, float]:
    """Forward and backward FLOPs of each module for one full global batch; empty where no peak is known.

    Counted on one row without recomputation, whatever the plan recomputes, for all parts, trained or not, and for
    attention of every position to every other in its row.

    Args:
        engine: Its model and devices.
        example: A global batch's arrays.
    """
    if peak_flops(engine.devices[0].device_kind) is None:
        return {}
    rows = next(iter(next(iter(example.values())).values())).shape[0]
    channels: dict[tuple[str, str], jax.ShapeDtypeStruct] = {}
    flops = {}
    for module in engine.modules:
        inputs = {name: channels[name, module.name] for name in module.inputs}
        batch = {
            name: jax.ShapeDtypeStruct((1, *array.shape[1:]), array.dtype)
            for name, array in example[module.name].items()
        }
        batch["seed_and_step"] = jax.ShapeDtypeStruct((2,), jnp.int32)
        parameters = abstract_module_parameters(module)
        left = jax.eval_shape(functools.partial(run_module, module), parameters, inputs, batch)
        channels |= {(module.name, target): shape for target, shape in left.outputs.items()}
        with use_attention_implementation(
            "dense"
        ):  # the other forms run as often as there are segments, which nobody knows beforehand
            of_row = count_flops(functools.partial(_gradients, module), parameters, inputs, batch)
        flops[module.name] = float(rows * of_row)
    return flops


def _gradients(module: Module, parameters: dict, inputs: dict, batch: dict) -> tuple:
    def scalar(parameters: dict, inputs: dict) -> jax.Array:
        left = run_module(module, parameters, inputs, batch)
        outputs = sum((jnp.sum(x.astype(jnp.float32)) for x in left.activations.values()), start=jnp.zeros(()))
        return outputs if left.loss is None else outputs + left.loss

    return jax.grad(scalar, argnums=(0, 1))(parameters, inputs)
