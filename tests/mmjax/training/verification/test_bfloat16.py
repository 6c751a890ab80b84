"""In bfloat16, gradients of modules are averaged over perturbed parameters: right layouts pass, 2% are found."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from mmjax.training.engine.engine import Engine
from mmjax.training.verification.comparison import compare_with_reference
from mmjax.training.verification.reference import AVERAGED
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.faulty_hop import faulty
from tests.verified_run import MODEL, run_small_reference

pytestmark = pytest.mark.layouts

PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0, 1), layers=(2,), parallelism=Parallelism(dp=2)),
        UnitPlan("backbone", ("backbone",), (2, 3), layers=(1, 2), recompute=("none",) * 2),
    ),
    microbatches=3,
)
IN_BFLOAT16 = dataclasses.replace(MODEL, dtype="bfloat16")


def wrong(reports):
    return {name: report for name, report in reports.items() if not report.ok}


def scaled_gradients(engine, channel_name, factor):
    """The channels of an engine between stages, one of which scales the gradients that it carries."""
    (channel,) = [each for each in engine.executor.channels if each.name == channel_name]
    bad = faulty(channel.gradient_hop, lambda array: array * jnp.asarray(factor, array.dtype))
    pair = (channel.source, channel.target)
    return {**engine.executor.microbatch_ops.channels_between, pair: [dataclasses.replace(channel, gradient_hop=bad)]}


def test_a_right_layout_passes_and_two_percent_in_a_module_are_found(monkeypatch):
    with jax.numpy_dtype_promotion("standard"):  # jax's own attention mixes precisions in its derivative
        reference = run_small_reference(IN_BFLOAT16)
        engine = Engine(IN_BFLOAT16, PLAN, reference.batch_spec, reference.settings)
        reports = compare_with_reference(engine, reference, "bfloat16")
        assert not wrong(reports)
        assert reports["backbone"].gradient.error > 2e-4  # it is not float32 that was judged
        assert 2 / 256 < max(reference.rounding["bfloat16"].gradients["backbone"].values()) < 0.2
        for factor in (1.02, 0.98):
            with monkeypatch.context() as patch:
                scaled = scaled_gradients(engine, "vision>backbone", factor)
                patch.setattr(engine.executor.microbatch_ops, "channels_between", scaled)
                reports = compare_with_reference(engine, reference, "bfloat16")
            assert set(wrong(reports)) == {"vision"}, factor
            assert reports["vision"].gradient.what == f"(scale of all parameters, mean of {AVERAGED})"
            assert reports["vision"].gradient.error == pytest.approx(0.02, abs=0.01)
