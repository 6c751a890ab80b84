"""Profiles: interpolation between measured sizes, JSON, and refusals of missing or foreign measurements."""

import dataclasses
import json

import numpy as np
import pytest

from sharding.costs.cost_model import LayerParallelism
from sharding.costs.node_placement import NodePlacement
from sharding.costs.profiled import LayerProfile, LinearFit, PassTimes, Profile, ProfiledCostModel, ProfileError
from sharding.specs.layers.layer import Kernel, PerLoad, make_loads, matmul
from tests.sharding.layers import bare_layer

BLOCKS = bare_layer("blocks", "backbone")


def ranks(tp, **more):
    """Ranks with the collectives with which layers are timed."""
    return LayerParallelism(tp, collectives="all_reduce", **more)


ONE_PASS = PassTimes((0.5,), (0.5,))
UNET = bare_layer("unet", "generator")
BOTH = ("dgrad", "wgrad")
PROFILE = Profile(
    device_kind="toy device",
    devices_per_node=8,
    peak_flops=0.0,
    element_bytes=4,
    versions={"jax": "0"},
    layers=(
        LayerProfile(
            layer="backbone/blocks",
            tp=2,
            gradients=BOTH,
            recompute="none",
            sizes=(100.0, 200.0, 400.0),
            forward=PassTimes((1.0, 2.0, 8.0), (3.0, 6.0, 24.0), (1.0, 1.5, 2.5)),
            backward=PassTimes((2.0, 4.0, 16.0), (2.0, 4.0, 16.0)),
        ),
        LayerProfile(
            layer="generator/unet",
            tp=1,
            gradients=BOTH,
            recompute="none",
            sizes=(4.0,),
            forward=PassTimes((2.0,), (2.0,)),
            backward=PassTimes((4.0,), (4.0,)),
        ),
    ),
    gather=LinearFit(1.0, 0.25, 0.5),
    reduce=LinearFit(2.0, 1.0, 0.0),
    update=LinearFit(0.0, 0.0, 1.0),
    hop=LinearFit(3.0, 0.5, 0.1),
    norm=LinearFit(1.0, 2.0, 0.0),
)
COSTS = ProfiledCostModel(PROFILE)
TWO = NodePlacement.on_one_node(2)


def test_times_are_interpolated_between_sizes_and_extrapolated_beyond():
    loads = make_loads(np.array([100.0, 150.0, 300.0, 500.0, 50.0]), items=1)
    np.testing.assert_allclose(COSTS.forward(BLOCKS, loads, ranks(2)).total, [1.0, 1.5, 5.0, 11.0, 0.5])
    np.testing.assert_allclose(COSTS.backward(BLOCKS, loads, ranks(2), BOTH, "none").total, [2.0, 3.0, 10.0, 22.0, 1.0])


def test_what_is_sent_back_takes_its_share_of_the_flops():
    """Of one matmul and of causal attention with as many FLOPs, which has no weights: dgrad 1 + 2, wgrad 1."""
    attention = Kernel("attention", "attention", flops=PerLoad(tokens=24), head_width=4)
    layer = dataclasses.replace(BLOCKS, kernels=(matmul("output", 3, 4), attention))
    loads = make_loads(np.array([100.0, 200.0]), items=1)
    dgrad = COSTS.backward(layer, loads, ranks(2), ("dgrad",), "none").total
    np.testing.assert_allclose(dgrad, np.array([2.0, 4.0]) * 3 / 4)
    with pytest.raises(ProfileError, match="no backward of backbone/blocks at tp 2 that computes wgrad"):
        COSTS.backward(layer, loads, ranks(2), ("wgrad",), "none")


def test_a_single_size_scales_in_proportion_and_items_serve_as_size_without_tokens():
    loads = np.array([[[0.0, 0.0, 8.0, 0.0]]])
    assert COSTS.forward(UNET, loads, ranks(1)).total.tolist() == [[4.0]]
    assert COSTS.backward(UNET, loads, ranks(1), (), "none").total.tolist() == [[0.0]]


def test_ops_that_run_once_per_step_and_hops():
    assert (
        COSTS.gather_weights(10.0, TWO) == 6.5
        and COSTS.reduce_gradients(10.0, TWO) == 4.0
        and COSTS.optimizer_update(10.0, 2) == 10.0
    )
    assert COSTS.hop(np.array([0.0, 10.0]), True, 4).tolist() == [0.0, 6.0]
    assert COSTS.reduce_gradients(0.0, TWO) == 0.0 and COSTS.gradient_norm(3) == 7.0


def test_a_stack_is_one_layer_plus_additional_ones_and_replicas_slow_each_other_down():
    loads = np.array([[100.0, 0, 1, 0.0]])
    assert [COSTS.forward(BLOCKS, loads, ranks(2), stack=n).total.tolist() for n in (1, 2, 4)] == [[1.0], [2.0], [2.5]]
    assert [COSTS.forward(BLOCKS, loads, ranks(2, dp=n)).total.tolist() for n in (2, 4, 8)] == [
        [1.5],
        [2.5],
        [2.5],
    ]
    assert COSTS.backward(BLOCKS, loads, ranks(2, dp=8), BOTH, "none", stack=3).total.tolist() == [2.0]


def test_a_missing_measurement_is_refused_with_the_command_that_makes_it():
    with pytest.raises(ProfileError, match=r"no backbone/blocks at tp 4; measure it by python -m mmjax.profile --tp=4"):
        COSTS.forward(BLOCKS, np.ones((1, 4)), ranks(4))
    with pytest.raises(ProfileError, match=r"computes dgrad with recompute full; .* --tp=2 --recompute=full"):
        COSTS.backward(BLOCKS, np.ones((1, 4)), ranks(2), ("dgrad",), "full")


def test_other_collectives_are_not_measured():
    with pytest.raises(
        ProfileError, match=r'collectives "all_reduce" alone, not "ring"; leave --profile out .* "all_reduce"'
    ):
        COSTS.forward(BLOCKS, np.ones((1, 4)), LayerParallelism(2, collectives="ring"))
    with pytest.raises(ProfileError, match='not "sequence_parallel"'):
        COSTS.backward(BLOCKS, np.ones((1, 4)), LayerParallelism(2, collectives="sequence_parallel"), BOTH, "none")
    one = COSTS.forward(
        UNET, np.array([[0.0, 0.0, 2.0, 0.0]]), LayerParallelism(1, collectives="ring")
    )  # alone, nothing travels
    assert one.total.shape == (1,)


def test_times_on_context_parallel_ranks_are_those_of_their_number_and_transfer():
    (blocks, unet), loads = PROFILE.layers, make_loads(np.array([100.0, 150.0]), items=1)
    heads = dataclasses.replace(
        blocks, cp=4, context_transfer="all_to_all", sizes=(100.0,), forward=ONE_PASS, backward=ONE_PASS
    )
    ring = dataclasses.replace(heads, context_transfer="ring", forward=PassTimes((0.25,), (0.25,)))
    costs = ProfiledCostModel(dataclasses.replace(PROFILE, layers=(blocks, unet, heads, ring)))
    by_heads, by_ring = ranks(2, cp=4, context_transfer="all_to_all"), ranks(2, cp=4)
    np.testing.assert_allclose(costs.forward(BLOCKS, loads, by_heads).total, [0.5, 0.75])  # of a replica's tokens
    np.testing.assert_allclose(costs.forward(BLOCKS, loads, by_ring).total, [0.25, 0.375])
    np.testing.assert_allclose(costs.backward(BLOCKS, loads, by_ring, BOTH, "none").total, [0.5, 0.75])
    one = ranks(2, context_transfer="all_to_all")  # a single rank transfers nothing
    np.testing.assert_allclose(costs.forward(BLOCKS, loads, one).total, [1.0, 1.5])


def test_context_and_expert_ranks_that_were_not_measured_are_refused():
    with pytest.raises(
        ProfileError,
        match=r"no backbone/blocks at tp 2, cp 4 \(ring\); measure it by .* --tp=2 --cp=4 --context_transfer=ring, or",
    ):
        COSTS.forward(BLOCKS, np.ones((1, 4)), ranks(2, cp=4))
    with pytest.raises(ProfileError, match=r"2 expert ranks \(ep 2\); .* or give ep 1"):
        COSTS.backward(BLOCKS, np.ones((1, 4)), ranks(2, ep=2), BOTH, "none")


def test_another_device_is_refused():
    PROFILE.check_device("toy device")
    with pytest.raises(ProfileError, match="measured on toy device, and the device is cpu: .* --allow_other_device"):
        PROFILE.check_device("cpu")


def test_json_round_trip_and_errors_name_the_file(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(PROFILE.to_json())
    assert Profile.load(path) == PROFILE
    document = json.loads(PROFILE.to_json())
    for layer in document["layers"]:
        del layer["cp"], layer["context_transfer"]
    assert Profile.from_json(json.dumps(document)) == PROFILE
    document = json.loads(PROFILE.to_json()) | {"extra": 1}
    path.write_text(json.dumps(document))
    with pytest.raises(ProfileError, match=r"profile.json: the profile has the unknown key 'extra'"):
        Profile.load(path)
    document = json.loads(PROFILE.to_json())
    del document["layers"][0]["forward"]["additional_layer"]
    path.write_text(json.dumps(document))
    with pytest.raises(ProfileError, match=r"the profile's layers\[0\].forward lacks the key 'additional_layer'"):
        Profile.load(path)
    path.write_text("{")
    with pytest.raises(ProfileError, match="profile.json: the profile is not JSON: line 1"):
        Profile.load(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        Profile.load(tmp_path / "missing.json")


def test_invalid_layer_profiles_are_refused():
    profile = PROFILE.layers[0]
    with pytest.raises(ProfileError, match="sizes, forward and backward must have equally many"):
        dataclasses.replace(profile, sizes=(1.0,))
    with pytest.raises(ProfileError, match=r"sizes \[200.0, 100.0, 400.0\] must ascend"):
        dataclasses.replace(profile, sizes=(200.0, 100.0, 400.0))
