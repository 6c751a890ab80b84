"""A replay takes the simulator's seconds, whatever the graph, the layout and the order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.balancing.replay import count_pipelines, make_replay
from sharding.schedule import interleaved, one_f_one_b
from sharding.simulate import simulate_on
from sharding.step_costs import StageCosts, StepCosts
from tests.sharding.graphs import chain, cook, recipes
from tests.sharding.steps import cook_step, step_recipes


def reordered(costs: StepCosts, orders: np.ndarray, instances: dict) -> StepCosts:
    """Costs in which every pipeline takes its own order, [pipelines, m]."""

    def take(seconds: np.ndarray) -> np.ndarray:
        cells = seconds.reshape(len(seconds), len(orders), -1)
        return cells[orders.T, np.arange(len(orders))].reshape(seconds.shape)

    names = ("forward", "backward", "forward_tensor", "backward_tensor", "flops", "held")
    stages = {
        node: StageCosts(*(take(getattr(of, name)) for name in names), of.gather, of.reduce, of.update, of.static)
        for node, of in costs.stages.items()
    }
    hops, back = ({edge: take(each) for edge, each in of.items()} for of in (costs.hops, costs.hops_back))
    return StepCosts(stages, hops, back, costs.peak_flops, costs.tokens)


@given(step_recipes())
@settings(max_examples=100, deadline=None)
def test_a_step_takes_what_the_simulator_says(recipe):
    step = cook_step(recipe)
    replay = make_replay(step.devices, step.schedule, step.work, step.costs, 12)
    m = step.work.microbatches
    found = replay.seconds(replay.table(step.costs), np.arange(replay.pipelines * m).reshape(-1, m))
    np.testing.assert_allclose(found.max(), step.run().step)


@st.composite
def aligned(draw: st.DrawFn) -> tuple:
    """For `cook_aligned`."""
    depths, _, chunks, trained, shares, microbatches = draw(recipes())
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 6]), min_size=5, max_size=5))
    return (depths, None, chunks, trained, shares, microbatches), sizes, draw(st.integers(0, 2**32 - 1))
