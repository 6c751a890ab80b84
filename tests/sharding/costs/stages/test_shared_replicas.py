"""Costs of modules with unlike tensor-parallel sizes in one stage, from those of each on the same devices alone."""

import dataclasses

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.clusters import CLUSTERS
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.profiled import ProfiledCostModel, ProfileError
from sharding.costs.stages.plan_costs import plan_costs
from sharding.costs.stages.plan_work import plan_work
from sharding.costs.stages.shared_replicas import RowGathers, row_gathers
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.plans.unit_plan import UnitPlan
from sharding.schedules.named.build import build_schedule
from sharding.simulation.simulator import simulate
from sharding.specs.modules import module_graph
from tests.profiles import synthetic_profile
from tests.sharding.expert_graphs import with_experts
from tests.unit_plans import flat_unit, module_unit

MODEL = ModelConfig(
    (VisionConfig(width=60, depth=3, heads=5, ffn=100),),
    BackboneConfig(vocabulary=200, width=120, depth=4, heads=6, kv_heads=2, ffn=240),
    (),
)
GRAPH = module_graph(MODEL)
COSTS = AnalyticCostModel(CLUSTERS["a100"])
MICROBATCHES, ROWS = 2, 40
random = np.random.default_rng(0)
IMAGES = random.integers(0, 5, ROWS).astype(float)
LOADS = {
    "vision": np.stack([64 * IMAGES, 64**2 * IMAGES, IMAGES, 0 * IMAGES], axis=1),
    "backbone": np.array([[200.0, 100.0**2 * 2, 2.0, 0.0]] * ROWS) * random.uniform(0.5, 1, (ROWS, 1)),
}
BATCH = BatchCosts(GRAPH, COSTS, LOADS)
ALL = trained_parts(GRAPH, ("all",))


def chain(vision, backbone, devices, layers=(7,), **fields):
    unit = flat_unit(
        "chain",
        ("vision", "backbone"),
        tuple(range(devices * len(layers))),
        layers=layers,
        recompute=("none",) * len(layers),
        **fields,
        parallelism=Parallelism(dp=devices // backbone, tp=backbone, module_tp=(vision, backbone)),
    )
    return Plan((unit,), MICROBATCHES)


def alone(vision, backbone, devices):
    """Each module in a unit of its own, on as many devices, from the first of a node."""
    sizes = {"vision": vision, "backbone": backbone}
    return Plan(
        tuple(
            module_unit(
                name,
                range(16 * number, 16 * number + devices),
                layers=(GRAPH[name].layer_count,),
                dp=devices // tp,
                tp=tp,
            )
            for number, (name, tp) in enumerate(sizes.items())
        ),
        MICROBATCHES,
    )


SIZES = [(1, 2, 4), (5, 2, 10), (5, 1, 10), (1, 2, 2)]


def placed(vision, backbone):
    """Of every module, tensor ranks and the devices between two of them."""
    if np.gcd(vision, backbone) > 1 or 1 in (vision, backbone):
        return (vision, 1), (backbone, 1)
    return (vision, backbone), (backbone, 1)  # the encoder's axis comes first


def on_every_device(values, tp, apart):
    """A figure of a module's replicas [m, i] on each of its devices, whose tensor ranks are so many devices apart."""
    replicas = np.arange(values.shape[1]).reshape(-1, 1, apart)
    return values[:, np.broadcast_to(replicas, (len(replicas), tp, apart)).ravel()]


@pytest.mark.parametrize(("vision", "backbone", "devices"), SIZES)
def test_a_stage_takes_its_slowest_replicas_and_what_is_gathered_between(vision, backbone, devices):
    together = plan_costs(ResolvedPlan(chain(vision, backbone, devices), BATCH.graph, ALL), BATCH).stages["chain", 0]
    apart = [
        plan_costs(ResolvedPlan(alone(vision, backbone, devices), BATCH.graph, ALL), BATCH).stages[name, 0]
        for name in LOADS
    ]
    shared = devices // np.lcm(vision, backbone).item()
    assert together.forward.shape == (MICROBATCHES, shared)
    gathers = row_gathers(chain(vision, backbone, devices).units[0], "vision", "backbone")
    tokens = IMAGES.reshape(MICROBATCHES, shared, -1).sum(axis=2) * 64 / 4  # the projector merges four patches
    size = COSTS.element_bytes * tokens * MODEL.backbone.width
    for name, ranks in (("forward", gathers.forward), ("backward", gathers.backward)):
        slowest = [getattr(costs, name).reshape(MICROBATCHES, shared, -1).max(axis=2) for costs in apart]
        gathered = COSTS.gather_rows(size, ranks, devices // shared)
        np.testing.assert_allclose(getattr(together, name), sum(slowest) + gathered)
        waiting = getattr(together, f"{name}_communication")
        assert (waiting >= gathered).all() and (waiting < getattr(together, name)).all()
    np.testing.assert_allclose(together.flops.sum(), sum(costs.flops.sum() for costs in apart))
    np.testing.assert_allclose(together.static_bytes, sum(costs.static_bytes for costs in apart))
    assert together.update == pytest.approx(sum(costs.update for costs in apart))
    assert together.reduce == pytest.approx(sum(costs.reduce for costs in apart))
    saved = sum(
        on_every_device(costs.saved_bytes, *tp) for costs, tp in zip(apart, placed(vision, backbone), strict=True)
    )
    np.testing.assert_allclose(np.repeat(together.saved_bytes, devices // together.saved_bytes.shape[1], axis=1), saved)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 2, 4), RowGathers(replicas=2, forward=2, backward=1)),  # its gradient is split
        ((5, 1, 10), RowGathers(replicas=2, forward=1, backward=5)),
        ((5, 2, 10), RowGathers(replicas=1, forward=2, backward=5)),
    ],
)
def test_what_is_gathered_between_modules(sizes, expected):
    assert row_gathers(chain(*sizes).units[0], "vision", "backbone") == expected


def test_nothing_is_gathered_backward_where_the_encoder_is_frozen():
    frozen = trained_parts(GRAPH, ("backbone",))
    together = plan_costs(ResolvedPlan(chain(5, 1, 10), BATCH.graph, frozen), BATCH).stages["chain", 0]
    apart = [plan_costs(ResolvedPlan(alone(5, 1, 10), BATCH.graph, frozen), BATCH).stages[name, 0] for name in LOADS]
    slowest = [costs.backward.reshape(MICROBATCHES, 2, -1).max(axis=2) for costs in apart]
    np.testing.assert_allclose(together.backward, sum(slowest))


@pytest.mark.parametrize(("vision", "backbone", "devices"), SIZES)
@pytest.mark.parametrize("layers", [(2, 5), (4, 3), (3, 4)])
def test_a_chain_that_is_cut_anywhere_is_simulated_and_takes_no_less_than_its_bound(vision, backbone, devices, layers):
    resolved = ResolvedPlan(chain(vision, backbone, devices, layers), GRAPH, ALL)
    costs = plan_costs(resolved, BATCH)
    timeline = simulate(resolved, build_schedule(resolved, resolved.trained_stages), costs)
    work = plan_work(resolved, BATCH)
    assert timeline.step > max(float((costs.forward + costs.backward).max()) for costs in work.stages.values())
    whole = plan_costs(ResolvedPlan(chain(vision, backbone, devices), BATCH.graph, ALL), BATCH)
    assert costs.flops == pytest.approx(whole.flops)


def test_hops_carry_what_the_replicas_of_the_module_at_each_end_have():
    """Within the encoder each of four replicas sends its rows, where two of two tensor ranks would send twice as many.

    Images of the two replicas of a shared replica are sent at once; it waits for the larger.
    """
    plan = chain(1, 2, 4, (2, 5))
    edge = (("chain", 0), ("chain", 1))
    hop_seconds = plan_costs(ResolvedPlan(plan, BATCH.graph, ALL), BATCH).hops[edge]
    patches = 64 * IMAGES.reshape(MICROBATCHES, 2, 2, -1).sum(axis=3)
    size = COSTS.element_bytes * MODEL.encoders[0].width * patches.max(axis=2)
    np.testing.assert_allclose(hop_seconds, COSTS.hop(size, inside=True, devices=8))


def test_experts_of_a_module_with_several_replicas_in_each_shared_one_wait_for_their_peers():
    """Replica 2 d + e of the shared ones has two of the backbone: each waits for its peer on the other expert rank."""
    graph = with_experts(GRAPH, 8)
    batch = BatchCosts(graph, COSTS, LOADS)
    unit = UnitPlan(
        "chain",
        ("vision", "backbone"),
        tuple(range(20)),
        layers=(7,),
        parallelism=Parallelism(dp=20, tp=1, module_tp=(5, 1), ep=2),
    )
    together = plan_costs(ResolvedPlan(Plan((unit,), 1), batch.graph, trained_parts(graph, ("all",))), batch).stages[
        "chain", 0
    ]
    assert together.forward.shape == (1, 4)
    assert np.isfinite(together.forward).all() and (together.forward_communication > 0).all()


@pytest.mark.parametrize(("module_tp", "dp", "tp", "ep"), [((5, 1), 20, 1, 2), ((1, 2), 10, 2, 1), ((), 4, 5, 4)])
def test_work_of_experts_and_other_layers_is_that_of_the_costs_but_for_gathers(module_tp, dp, tp, ep):
    """A replica that is the slowest of a module's experts need not be that of its other layers."""
    graph = with_experts(GRAPH, 8)
    batch, trained = BatchCosts(graph, COSTS, LOADS), trained_parts(graph, ("all",))
    fields = {"dp": dp, "tp": tp, "module_tp": module_tp, "ep": ep}
    unit = flat_unit("chain", ("vision", "backbone"), tuple(range(dp * tp)), layers=(7,), **fields)
    plan = Plan((unit,), 1 if dp == 20 else MICROBATCHES)
    gathers = np.zeros((2, 1, 1))
    if module_tp:
        gathering = row_gathers(unit, "vision", "backbone")
        tokens = IMAGES.reshape(plan.microbatches, unit.parallelism.shared_replicas, -1).sum(axis=2) * 64 / 4
        size = COSTS.element_bytes * tokens * MODEL.backbone.width
        ranks = dp * tp // unit.parallelism.shared_replicas
        counts = (gathering.forward, gathering.backward)
        gathers = np.stack([COSTS.gather_rows(size, n, ranks) if n > 1 else 0 * size for n in counts])
    costs, work = (
        plan_costs(ResolvedPlan(plan, batch.graph, trained), batch).stages["chain", 0],
        plan_work(ResolvedPlan(plan, batch.graph, trained), batch),
    )
    passes = np.stack([costs.forward, costs.backward]) - gathers
    stage = work.stages["chain", 0]
    np.testing.assert_allclose(np.stack([stage.forward, stage.backward]), passes.sum(axis=1))
    np.testing.assert_allclose(stage.slowest, passes.max(axis=2).sum(axis=0))


@pytest.mark.parametrize("recompute", ["none", "offload"])
def test_a_device_holds_what_its_own_replicas_save_of_the_microbatches_in_flight(recompute):
    """Images are in the first row of even microbatches and in the second of odd ones: no device has all of them."""
    images = np.array([8.0, 0, 0, 8] * 2)
    vision = np.stack([64 * images, 64**2 * images, images, 0 * images], axis=1)
    loads = {"vision": vision, "backbone": np.full((8, 4), 100.0)}
    batch = BatchCosts(GRAPH, COSTS, loads)
    plan = chain(1, 2, 2, (3, 4))
    plan = Plan((dataclasses.replace(plan.units[0], recompute=(recompute, "none")),), 4, "gpipe")
    resolved = ResolvedPlan(plan, GRAPH, ALL)
    costs = plan_costs(resolved, batch)
    timeline = simulate(resolved, build_schedule(resolved, resolved.trained_stages), costs)
    stage = costs.stages["chain", 0]
    assert stage.saved_bytes.shape == stage.offloaded_bytes.shape == (4, 2) and stage.forward.shape == (4, 1)
    lane = timeline.lanes[0]
    assert timeline.lane_peak_memory(lane) == pytest.approx(stage.static_bytes + stage.saved_bytes.sum(axis=0).max())
    assert timeline.lane_peak_host_memory(lane) == pytest.approx(stage.offloaded_bytes.sum(axis=0).max())
    held = stage.saved_bytes + stage.offloaded_bytes
    # all four microbatches are in flight; each device has the images of two
    np.testing.assert_allclose(held.sum(axis=0)[0], held.sum(axis=0)[1])
    assert held.sum(axis=0).max() == pytest.approx(held.max(axis=1).sum() / 2 + held.min(axis=1).sum() / 2)
    assert held.sum(axis=0).max() < 0.6 * held.max(axis=1).sum()


def test_a_profile_without_times_of_gathered_rows_is_refused():
    profile = ProfiledCostModel(synthetic_profile(GRAPH, "cpu"))
    plan = chain(1, 2, 4)
    plan = dataclasses.replace(plan, units=(plan.units[0].with_parallelism(collectives="all_reduce"),))
    with pytest.raises(ProfileError, match=r"no times of rows gathered between modules of one stage .*module_tp"):
        plan_costs(ResolvedPlan(plan, GRAPH, ALL), BatchCosts(GRAPH, profile, LOADS))
