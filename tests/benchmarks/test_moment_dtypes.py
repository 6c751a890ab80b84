"""The benchmark of moments in bfloat16: what it varies, and that it tells roundings apart."""

import mmjax
from benchmarks.moment_dtypes import VARIANTS, rounding_errors, with_variant


def test_rounding_to_the_nearest_keeps_a_second_moment_that_stochastic_rounding_lets_fall():
    nearest, stochastic = (
        rounding_errors(0.999, rounding, steps=2000, elements=500) for rounding in ("nearest", "stochastic")
    )
    assert nearest["second_moment"] > 1.5 and nearest["direction_error"] > 0.2
    assert abs(stochastic["second_moment"] - 1) < 0.02 and stochastic["direction_error"] < 0.06


def test_runs_differ_in_their_moments_and_seeds_alone():
    config = mmjax.load("tiny.gin")
    runs = [with_variant(config, variant) for variant in VARIANTS]
    assert {(run.optimizer.algorithm.moment_dtype, run.optimizer.algorithm.beta2, run.seed) for run in runs} == {
        *VARIANTS
    }
    assert {(run.data, run.model, run.optimizer.learning_rate) for run in runs} == {
        (config.data, config.model, config.optimizer.learning_rate)
    }
