"""Faults that are injected into an engine: functions `(engine, patch)` that change its programs until `patch` ends."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.training.engine.engine import Engine
from sharding.plans.resolved.stage_graph import StageId
from tests.faulty_hop import faulty

Fault = Callable[[Engine, pytest.MonkeyPatch], None]


def stage_function(stage_id: StageId, name: str, change: Callable[..., Any]) -> Fault:
    """Wraps a function of a stage: `change(function, *arguments)` is called instead."""

    def inject(engine: Engine, patch: pytest.MonkeyPatch) -> None:
        stage = engine.executor.stages[stage_id]
        wrapped = functools.partial(change, getattr(stage, name))
        patch.setitem(engine.executor.stages, stage_id, dataclasses.replace(stage, **{name: wrapped}))

    return inject


def stage_programs(stage_id: StageId, **changes: Callable[..., Any]) -> Fault:
    """Wraps compiled programs of a stage in the same way."""

    def inject(engine: Engine, patch: pytest.MonkeyPatch) -> None:
        programs = engine.executor.stages[stage_id].programs
        for name, change in changes.items():
            patch.setattr(programs, name, functools.partial(change, getattr(programs, name)))

    return inject


def scaled_hop(channel_name: str, direction: str) -> Fault:
    """Multiplies what a channel carries by 1.01."""

    def inject(engine: Engine, patch: pytest.MonkeyPatch) -> None:
        (channel,) = [channel for channel in engine.executor.channels if channel.name == channel_name]
        bad = faulty(getattr(channel, direction), lambda array: array * 1.01)
        pair = (channel.source, channel.target)
        channels = engine.executor.microbatch_ops.channels_between
        patch.setitem(channels, pair, [dataclasses.replace(channel, **{direction: bad})])

    return inject


def larger_weights(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """Divides the losses of tokens by a count that is 0.05% too small."""
    place = engine.place_batch

    def placed(arrays, step):
        backbone = {**arrays["backbone"], "weights": arrays["backbone"]["weights"] * np.float32(1.0005)}
        return place({**arrays, "backbone": backbone}, step)

    patch.setattr(engine, "place_batch", placed)


def first_replica_only(reduce, gradients):
    """Instead of `reduce`: the gradients of the other replicas are left out of the sum."""
    return reduce(jax.tree.map(lambda leaf: leaf.at[1:].set(0), gradients))


def next_microbatch(microbatches: int) -> Callable[..., Any]:
    """Instead of a forward or backward: that of the next of so many microbatches."""

    def run(program, parameters, inputs, batch, index, *rest):
        return program(parameters, inputs, batch, (index + 1) % microbatches, *rest)

    return run


def without_last_microbatch(microbatches: int) -> Callable[..., Any]:
    """Instead of a backward: that of the last of so many microbatches adds nothing to the gradients of parameters."""

    def run(backward, *arguments):
        *others, index, residuals, output_gradients, gradients = arguments
        kept = jax.tree.map(jnp.copy, gradients)
        result = backward(*others, index, residuals, output_gradients, gradients)
        return result._replace(parameter_gradients=kept) if int(index) == microbatches - 1 else result

    return run
