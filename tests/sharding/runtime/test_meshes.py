"""Submeshes of stages."""

import dataclasses

import jax
import pytest

from pallas_kernels.fallbacks import warn_once
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import PlanError, UnitPlan
from sharding.runtime.meshes import STAGE_AXES, stage_meshes, submesh, unit_axes


def test_a_submesh_has_all_axes_and_orders_devices_by_data_rank_first():
    devices = jax.devices()
    mesh = submesh(devices[:6], 3, 2)
    assert mesh.axis_names == (*STAGE_AXES.data, *STAGE_AXES.tensor) == ("data", "expert", "tensor")
    assert mesh.devices.tolist() == [[devices[0:2]], [devices[2:4]], [devices[4:6]]]
    assert dict(submesh(devices[:1], 1, 1).shape) == {"data": 1, "expert": 1, "tensor": 1}
    with pytest.raises(ValueError, match=r"dp 3 \(ep 1\) x tp 2 cannot be made of 5 devices"):
        submesh(devices[:5], 3, 2)


def test_consecutive_data_ranks_form_a_group_of_expert_ranks():
    devices = jax.devices()
    assert submesh(devices, 4, 2, ep=2).devices.tolist() == [
        [devices[0:2], devices[2:4]],
        [devices[4:6], devices[6:8]],
    ]
    with pytest.raises(ValueError, match="ep 3"):
        submesh(devices[:4], 4, 1, ep=3)


def test_every_virtual_stage_has_a_submesh():
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
def test_unit_axes_follow_the_collectives_of_the_plan_and_a_fallback_is_logged_once(
    collectives, tp, sequence, matmul, caplog
):
    warn_once.cache_clear()
    unit = UnitPlan("mind", ("backbone",), tuple(range(tp)), tp=tp, collectives=collectives)
    axes = unit_axes(unit, submesh(jax.devices()[:tp], 1, tp))
    assert (axes.tensor, axes.sequence, axes.collective_matmul) == (("tensor",), sequence, matmul)
    assert axes.without_sequence.sequence == ()
    with pytest.raises(ValueError, match=r"Axes.sequence is \('data',\)"):
        dataclasses.replace(axes, sequence=("data",))
    warning = 'unit mind: collectives "ring" are used instead of "mosaic": the devices are of platform \'cpu\''
    assert (warning in caplog.text) == (collectives == "mosaic")
    unit_axes(unit, submesh(jax.devices()[:tp], 1, tp))
    assert caplog.text.count(warning) == (collectives == "mosaic")  # not a second time
