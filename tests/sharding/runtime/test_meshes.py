"""Submeshes of stages."""

import dataclasses

import jax
import pytest

from sharding.plans.plan import Plan, PlanError, UnitPlan
from sharding.runtime.meshes import STAGE_AXES, stage_meshes, submesh, unit_axes


def test_all_axes_are_there_and_devices_lie_data_first():
    devices = jax.devices()
    mesh = submesh(devices[:6], 3, 2)
    assert mesh.axis_names == (*STAGE_AXES.data, *STAGE_AXES.tensor) == ("data", "expert", "tensor")
    assert mesh.devices.tolist() == [[devices[0:2]], [devices[2:4]], [devices[4:6]]]
    assert dict(submesh(devices[:1], 1, 1).shape) == {"data": 1, "expert": 1, "tensor": 1}
    with pytest.raises(ValueError, match=r"dp 3 \(ep 1\) x tp 2 cannot be made of 5 devices"):
        submesh(devices[:5], 3, 2)


def test_consecutive_data_ranks_are_one_group_of_expert_ranks():
    devices = jax.devices()
    assert submesh(devices, 4, 2, ep=2).devices.tolist() == [
        [devices[0:2], devices[2:4]],
        [devices[4:6], devices[6:8]],
    ]
    with pytest.raises(ValueError, match="ep 3"):
        submesh(devices[:4], 4, 1, ep=3)


def test_every_stage_has_its_mesh():
    devices = jax.devices()
    unit = UnitPlan("mind", ("backbone",), (7, 6, 1, 0), tp=2, layers=(1, 2), recompute=("none",) * 2)
    meshes = stage_meshes(Plan((unit,)), devices)
    assert list(meshes) == [("mind", 0), ("mind", 1)]
    assert meshes[("mind", 1)].devices.tolist() == [[[devices[1], devices[0]]]]
    with pytest.raises(PlanError, match="needs device 7, but there are 2 devices"):
        stage_meshes(Plan((unit,)), devices[:2])


@pytest.mark.parametrize(
    ("collectives", "tp", "sequence", "matmul"),
    [
        ("reduce", 2, (), "reference"),
        ("gather", 2, ("tensor",), "reference"),
        ("ring", 2, ("tensor",), "ring"),
        ("ring", 1, (), "reference"),  # one rank divides nothing
        ("mosaic", 2, ("tensor",), "ring"),  # no GPUs
    ],
)
def test_a_units_axes_say_how_its_collectives_travel(collectives, tp, sequence, matmul, caplog):
    unit = UnitPlan("mind", ("backbone",), tuple(range(tp)), tp=tp, collectives=collectives)
    axes = unit_axes(unit, submesh(jax.devices()[:tp], 1, tp))
    assert (axes.tensor, axes.sequence, axes.collective_matmul) == (("tensor",), sequence, matmul)
    assert axes.without_sequence.sequence == ()
    with pytest.raises(ValueError, match=r"Axes.sequence is \('data',\)"):
        dataclasses.replace(axes, sequence=("data",))
    told = "unit mind: its collectives go around the ring: the devices are of platform 'cpu'"
    assert (told in caplog.text) == (collectives == "mosaic")
