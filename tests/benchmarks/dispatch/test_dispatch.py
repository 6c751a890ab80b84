"""`benchmarks.dispatch`: what replicas compute and send under each way of balancing, and the steps simulated of it."""

import numpy as np
import pytest

from benchmarks.dispatch.arrangement import (
    ALL_PADDED,
    BACKBONE_ONLY,
    NONE_PADDED,
    NOT_NODE_WISE,
    ORCHMLLM,
    PADDED_RULE,
    UNBALANCED,
    UNPADDED_RULE,
    Exchange,
    all_replica_loads,
    arrange,
    replica_loads,
)
from benchmarks.dispatch.balance_figures import largest_mini_batch, phase_rows
from benchmarks.dispatch.megatron import COLLECTIVES, simulate_megatron
from benchmarks.dispatch.planning import planning_rows
from benchmarks.dispatch.samples import described, draw_step
from benchmarks.dispatch.settings import Megatron
from benchmarks.dispatch.steps import simulate_balanced
from benchmarks.dispatch.traffic import gathered_bytes, most_sent_between_nodes, traffic
from sharding.specs.layers.layer import LoadColumn

REPLICAS, MINI_BATCH, PER_NODE = 16, 12, 8
WAYS = (
    UNBALANCED,
    BACKBONE_ONLY,
    ORCHMLLM,
    UNPADDED_RULE,
    PADDED_RULE,
    ALL_PADDED,
    NONE_PADDED,
    NOT_NODE_WISE,
)


@pytest.fixture(scope="module")
def mllm_10b():
    return described("mllm_10b", 448)


@pytest.fixture(scope="module")
def samples(mllm_10b):
    return draw_step(*mllm_10b, REPLICAS, MINI_BATCH)


def test_images_are_bounded_and_smaller_bounds_shrink_them(mllm_10b, samples):
    assert samples.tokens("vision").max() <= (448 // 14) ** 2
    largest = draw_step(*described("mllm_84b", 896), REPLICAS, MINI_BATCH).tokens("vision")
    assert (448 // 14) ** 2 < largest.max() <= (896 // 14) ** 2 + 4  # and the cell of a class token


def test_items_become_the_backbones_tokens(samples):
    vision, audio = samples.model.encoders
    text = samples.tokens("backbone") - samples.backbone_tokens(vision) - samples.backbone_tokens(audio)
    assert (text > 0).all()
    np.testing.assert_array_equal(samples.backbone_tokens(vision), samples.tokens("vision"))
    np.testing.assert_array_equal(2 * samples.backbone_tokens(audio), samples.tokens("audio"))


def test_the_first_samples_are_those_of_each_replica(samples):
    some = samples.first(5, replicas=8)
    assert (some.replicas, some.mini_batch) == (8, 5)
    expected = samples.tokens("backbone").reshape(REPLICAS, MINI_BATCH)[:8, :5]
    np.testing.assert_array_equal(some.tokens("backbone"), expected.ravel())


@pytest.mark.parametrize("balancing", WAYS)
def test_every_item_is_computed_once_and_sent_from_where_it_is(samples, balancing):
    arrangement = arrange(samples, balancing, PER_NODE)
    for module, loads in samples.loads.items():
        np.testing.assert_allclose(replica_loads(samples, module, arrangement, False).sum(axis=0), loads.sum(axis=0))
    assert bool(arrangement.exchanges) == balancing.exchanges
    for name, exchange in zip(samples.model.encoders, arrangement.exchanges[3:], strict=False):
        items = np.flatnonzero(samples.loads[name.name][:, LoadColumn.ITEMS])
        tokens = samples.backbone_tokens(name)[items] * samples.model.backbone.width * 2
        ends = (arrangement.computed_by[module][items] for module in (name.name, "backbone"))
        assert sorted(zip(*ends, tokens, strict=True)) == sorted(
            zip(exchange.source, exchange.target, exchange.sizes, strict=True)
        )


def test_padded_loads_are_as_many_items_of_the_longest(samples):
    arrangement = arrange(samples, ORCHMLLM, PER_NODE)
    padded = replica_loads(samples, "audio", arrangement, True)
    for replica in range(REPLICAS):
        computed_loads = samples.loads["audio"][arrangement.computed_by["audio"] == replica]
        items = computed_loads[computed_loads[:, LoadColumn.ITEMS] > 0]
        expected = len(items) * items.max(axis=0, initial=0)
        np.testing.assert_array_equal(padded[replica], expected)


def test_traffic_is_that_of_the_fullest_replica():
    exchange = Exchange("x", *np.array([[10, 20, 30, 40], [0, 0, 1, 2], [2, 1, 1, 0]]))
    assert traffic(exchange, 4, 2) == (40, 20)  # replica 0 receives 40 and sends 10 to node 1
    assert most_sent_between_nodes([exchange], 4, 2) == 40
    assert most_sent_between_nodes([exchange._replace(passes=2)], 4, 2) == 80
    assert gathered_bytes(exchange, 4) == 4 * 40


def test_placement_keeps_bytes_within_nodes(samples):
    placed, other = (arrange(samples, way, PER_NODE) for way in (ORCHMLLM, NOT_NODE_WISE))
    assert most_sent_between_nodes(placed.exchanges, REPLICAS, PER_NODE) < most_sent_between_nodes(
        other.exchanges, REPLICAS, PER_NODE
    )
    for module in samples.loads:
        sums = (np.sort(replica_loads(samples, module, arrangement, True), axis=0) for arrangement in (placed, other))
        np.testing.assert_array_equal(*sums)


def test_balance_shortens_a_step_and_waiting_lengthens_it(mllm_10b, samples):
    def simulated(balancing, **options):
        arrangement = arrange(samples, balancing, PER_NODE)
        return simulate_balanced(samples, mllm_10b[1], balancing, arrangement, choices=("full",), **options)

    steps = [simulated(balancing) for balancing in (UNBALANCED, BACKBONE_ONLY, ORCHMLLM)]
    seconds = [step.seconds for step in steps]
    assert seconds == sorted(seconds, reverse=True) and len(set(seconds)) == 3
    assert len({(step.flops, step.tokens) for step in steps}) == 1
    assert steps[2].exchange > steps[0].exchange == 0
    assert steps[2].mfu < steps[2].mfu_whole_squares < 1
    waits = [simulated(UNBALANCED, waits_for=count).seconds for count in (1, 4)]
    assert waits[0] < waits[1] < seconds[0]
    assert simulated(UNBALANCED, exchange_seconds=1.0).seconds == pytest.approx(seconds[0] + 1)


def test_the_figures_of_balance_are_those_of_the_loads(samples):
    rows = {row["name"]: row["value"] for row in phase_rows("x", samples)}
    assert rows["x, vision, not balanced: fullest replica over the mean"] > 1.1
    assert 1 <= rows["x, backbone, every phase (after): fullest replica over the mean"] < 1.001
    arrangement = arrange(samples, UNBALANCED, PER_NODE)
    loads = all_replica_loads(samples, arrangement, frozenset({"audio"}))["audio"][:, LoadColumn.TOKENS]
    share = 1 - samples.tokens("audio").sum() / loads.sum()
    assert rows["x, audio padded, not balanced: share of padding"] == pytest.approx(share)


def test_the_largest_mini_batch_fits_and_one_more_does_not(mllm_10b):
    _, data = mllm_10b
    drawn = draw_step(*mllm_10b, 8, 90)
    largest = largest_mini_batch(drawn, data, NONE_PADDED)
    assert largest < 90
    for mini_batch, fits in ((largest, True), (largest + 1, False)):
        some = drawn.first(mini_batch)
        step = simulate_balanced(some, data, NONE_PADDED, arrange(some, NONE_PADDED, 8), choices=("full",))
        assert (step.memory <= 1) == fits
    assert largest_mini_batch(drawn.first(3), data, NONE_PADDED) == 3  # all that there are


def test_planning_takes_longer_with_placement(samples):
    with_placement, without = planning_rows(samples)
    assert with_placement["goal"] and without["goal"] is None
    assert min(with_placement["value"], without["value"]) > 0


def test_megatron_has_its_encoders_on_the_first_stage(mllm_10b):
    _, data = mllm_10b
    samples = draw_step(*mllm_10b, 32, 1)
    step = simulate_megatron(samples, data, Megatron(pp=2, samples=16), devices=32)
    units = {unit: {device for lane in lanes for device in lane.devices} for unit, lanes in
             step.timeline.lanes_of_units.items()}  # fmt: skip
    assert units["vision"] == units["audio"] == set(range(16)) < units["backbone"] == set(range(32))
    assert step.microbatch in (1, 2, 4, 8) and step.memory <= 1
    tokens = samples.tokens("backbone")[:16].sum()
    assert step.timeline.tokens_per_second == pytest.approx(tokens / step.timeline.step)


def test_megatron_overlaps_its_collectives_where_that_is_faster(mllm_10b):
    _, data = mllm_10b
    samples, layout = draw_step(*mllm_10b, 32, 1), Megatron(pp=2, samples=16)
    exposed, overlapped = (simulate_megatron(samples, data, layout, 32, (kind,)) for kind in COLLECTIVES)
    chosen = simulate_megatron(samples, data, layout, 32)
    assert chosen.timeline.step == min(exposed.timeline.step, overlapped.timeline.step)
    assert chosen.collectives == min((exposed, overlapped), key=lambda step: step.timeline.step).collectives
    waits = [sum(step.timeline.idle[cause] for cause in step.timeline.idle if "tensor" in str(cause))
             for step in (exposed, overlapped)]  # fmt: skip
    assert waits[1] < waits[0]
