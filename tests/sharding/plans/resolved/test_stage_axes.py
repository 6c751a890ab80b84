"""The mesh axes of modules with tensor-parallel sizes of their own."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from sharding.axes import Axes
from sharding.plans.parallelism import Parallelism
from sharding.plans.resolved.stage_axes import STAGE_AXES, row_reshard, stage_axes, tensor_axes
from sharding.plans.unit_plan import UnitPlan

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 25]), min_size=1, max_size=4)


def unit(sizes, pipeline_replicas=1, ep=1):
    names = tuple(f"m{number}" for number in range(len(sizes)))
    devices = math.lcm(*sizes) * pipeline_replicas * ep
    return UnitPlan(
        "chain",
        names,
        tuple(range(devices)),
        layers=(len(sizes),),
        parallelism=Parallelism(
            dp=devices // sizes[0], tp=sizes[0], module_tp=tuple(sizes) if len(set(sizes)) > 1 else (), ep=ep
        ),
    )


def rows_of_devices(axes, sizes, rows):
    """By device, the rows that `NamedSharding` gives it: the data axes divide them in the order of the mesh."""
    places = np.stack(np.meshgrid(*map(np.arange, sizes.values()), indexing="ij"), axis=-1).reshape(-1, len(sizes))
    names = list(sizes)
    index = np.zeros(len(places), int)
    for name in axes.data:
        index = index * sizes[name] + places[:, names.index(name)]
    count = rows // math.prod(sizes[name] for name in axes.data)
    return index[:, None] * count + np.arange(count)


def test_equal_sizes_have_one_tensor_axis_also_of_size_1():
    for tp in (1, 2):
        axes = stage_axes(
            UnitPlan("u", ("a", "b"), tuple(range(4 * tp)), layers=(2,), parallelism=Parallelism(dp=4, tp=tp, ep=2))
        )
        assert axes.sizes == {"data": 2, "fsdp": 1, "expert": 2, "tensor": tp}
        assert list(axes.sizes) == ["data", "fsdp", "expert", "tensor"]
        assert axes.modules == {"a": STAGE_AXES, "b": STAGE_AXES}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 2), {"tensor/m1": 2}),
        ((4, 2), {"tensor/m0": 2, "tensor": 2}),
        ((5, 2), {"tensor/m0": 5, "tensor/m1": 2}),
        ((6, 4), {"tensor/m0": 3, "tensor/m1": 2, "tensor": 2}),
        ((2, 1, 4), {"tensor/m2": 2, "tensor/m0+m2": 2}),
    ],
)
def test_sizes_are_factored_by_the_modules_that_have_the_factor(sizes, expected):
    axes = stage_axes(unit(sizes, pipeline_replicas=3))
    assert axes.sizes == {"data": 3, "fsdp": 1, "expert": 1, **expected}


@hypothesis.given(SIZES, st.integers(1, 3), st.sampled_from([1, 2]))
def test_the_axes_of_a_module_multiply_to_its_tensor_ranks_and_replicas(sizes, pipeline_replicas, ep):
    chain = unit(sizes, pipeline_replicas, ep)
    axes = stage_axes(chain)
    assert math.prod(axes.sizes.values()) == len(chain.devices)
    assert axes.sizes["expert"] == ep
    for module, module_axes in axes.modules.items():
        assert math.prod(axes.sizes[name] for name in module_axes.tensor) == chain.tensor_ranks_of(module)
        assert math.prod(axes.sizes[name] for name in module_axes.data) == chain.replicas_of(module)
        assert {*module_axes.data, *module_axes.tensor} == set(axes.sizes)
        assert not set(module_axes.data) & set(module_axes.tensor)
        assert list(module_axes.data) == [name for name in axes.sizes if name in module_axes.data]


@hypothesis.given(SIZES)
def test_axes_are_as_few_and_large_as_the_sets_of_modules_that_share_factors(sizes):
    factors = tensor_axes({f"m{number}": size for number, size in enumerate(sizes)})
    assert 1 not in factors.values()
    assert math.prod(factors.values()) == math.lcm(*sizes)
    if len(sizes) == 2:
        common = math.gcd(*sizes)
        expected = {("m0",): sizes[0] // common, ("m1",): sizes[1] // common, ("m0", "m1"): common}
        assert {tuple(sorted(users)): size for users, size in factors.items()} == {
            users: size for users, size in expected.items() if size > 1
        }


@hypothesis.given(SIZES, st.integers(1, 2), st.sampled_from([1, 2]))
def test_rows_that_are_gathered_hold_those_that_the_next_module_takes(sizes, pipeline_replicas, ep):
    """Gathering rows in the order of the axes and splitting them again gives each device its rows, and no others."""
    axes = stage_axes(unit(sizes, pipeline_replicas, ep))
    rows = math.prod(axes.sizes.values())
    for sender, receiver in itertools.pairwise(axes.modules.values()):
        before, after = (rows_of_devices(module, axes.sizes, rows) for module in (sender, receiver))
        reshard = row_reshard(sender, receiver)
        gathered = gather(before, axes.sizes, reshard.gather)
        np.testing.assert_array_equal(split(gathered, axes.sizes, reshard.split), after)
        if sender.data == receiver.data:
            assert reshard == ((), ())


def gather(rows, sizes, names):
    """What `lax.all_gather` over some axes leaves on every device."""
    positions = [list(sizes).index(name) for name in names]
    grid = rows.reshape(*sizes.values(), -1)
    front = np.moveaxis(grid, positions, range(len(positions)))  # gathered axes first, in their order
    others = front.shape[len(positions) : -1]
    merged = front.reshape(-1, *others, rows.shape[-1])
    joined = np.concatenate(list(merged), axis=-1)
    for position in sorted(positions):
        joined = np.repeat(np.expand_dims(joined, position), list(sizes.values())[position], axis=position)
    return joined.reshape(len(rows), -1)


def split(rows, sizes, names):
    """The part of its rows that every device takes by its place along some axes."""
    places = np.stack(np.unravel_index(np.arange(len(rows)), tuple(sizes.values())), axis=1)
    index, parts = np.zeros(len(rows), int), 1
    for name in names:
        index = index * sizes[name] + places[:, list(sizes).index(name)]
        parts *= sizes[name]
    return np.stack([np.split(row, parts)[part] for row, part in zip(rows, index, strict=True)])


def test_a_module_without_tensor_ranks_sends_to_one_with_some_by_gathering_alone():
    axes = stage_axes(unit((1, 2))).modules
    assert axes["m0"] == Axes(data=("data", "fsdp", "expert", "tensor/m1"), expert=("expert",))
    assert row_reshard(axes["m0"], axes["m1"]) == (("tensor/m1",), ())
    assert row_reshard(axes["m1"], axes["m0"]) == ((), ("tensor/m1",))
