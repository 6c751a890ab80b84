"""Submeshes of stages."""

import dataclasses

import jax
import numpy as np
import pytest

from pallas_kernels.fallbacks import warn_once
from sharding.axes import Axes
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from sharding.runtime.meshes import module_axes, most_nodes, stage_meshes, submesh
from sharding.runtime.replica_meshes import ReplicaMeshes


def test_a_submesh_has_all_axes_with_its_devices_in_row_major_order():
    devices = jax.devices()
    mesh = submesh(devices[:6], {"data": 3, "fsdp": 1, "expert": 1, "tensor": 2})
    assert mesh.axis_names == ("data", "fsdp", "expert", "tensor")
    assert mesh.devices.tolist() == [[[devices[0:2]]], [[devices[2:4]]], [[devices[4:6]]]]
    with pytest.raises(ValueError, match="data 3 x tensor 2 cannot be made of 5 devices"):
        submesh(devices[:5], {"data": 3, "tensor": 2})


def test_every_virtual_stage_has_a_submesh():
    devices = jax.devices()
    unit = UnitPlan(
        "mind", ("backbone",), (7, 6, 1, 0), layers=(1, 2), recompute=("none",) * 2, parallelism=Parallelism(tp=2)
    )
    meshes = stage_meshes(Plan((unit,)), devices)
    assert list(meshes) == [("mind", 0), ("mind", 1)]
    assert meshes[("mind", 1)].all_pipeline_replicas.devices.tolist() == [[[[devices[1], devices[0]]]]]
    with pytest.raises(PlanError, match="needs device 7, but there are 2 devices"):
        stage_meshes(Plan((unit,)), devices[:2])


@pytest.mark.parametrize(
    ("collectives", "tp", "sequence", "matmul"),
    [
        ("all_reduce", 2, (), "reference"),
        ("sequence_parallel", 2, ("tensor",), "reference"),
        ("ring", 2, ("tensor",), "ring"),
        ("ring", 1, (), "reference"),  # one rank divides nothing
        ("mosaic", 2, ("tensor",), "ring"),  # no GPUs
    ],
)
def test_axes_follow_the_collectives_of_the_plan_and_a_fallback_is_logged_once(
    collectives, tp, sequence, matmul, caplog
):
    warn_once.cache_clear()
    unit = UnitPlan("mind", ("backbone",), tuple(range(tp)), parallelism=Parallelism(tp=tp, collectives=collectives))
    mesh = submesh(jax.devices()[:tp], {"data": 1, "fsdp": 1, "expert": 1, "tensor": tp})
    axes = module_axes(unit, ReplicaMeshes((mesh,)))["backbone"]
    assert (axes.tensor, axes.sequence, axes.collective_matmul) == (("tensor",), sequence, matmul)
    assert axes.without_sequence.sequence == ()
    with pytest.raises(ValueError, match=r"Axes.sequence is \('data',\)"):
        dataclasses.replace(axes, sequence=("data",))
    warning = 'unit mind: collectives "ring" are used instead of "mosaic": the devices are of platform \'cpu\''
    assert (warning in caplog.text) == (collectives == "mosaic")
    module_axes(unit, ReplicaMeshes((mesh,)))
    assert caplog.text.count(warning) == (collectives == "mosaic")  # not a second time


def test_a_module_without_tensor_ranks_beside_one_with_some_divides_no_positions():
    unit = UnitPlan(
        "chain",
        ("eyes", "mind"),
        (0, 1),
        layers=(2,),
        parallelism=Parallelism(tp=2, module_tp=(1, 2), collectives="ring"),
    )
    (meshes,) = stage_meshes(Plan((unit,)), jax.devices()).values()
    axes = module_axes(unit, meshes)
    assert dict(meshes.all_pipeline_replicas.shape) == {"data": 1, "fsdp": 1, "expert": 1, "tensor/mind": 2}
    assert axes["eyes"] == Axes(data=("data", "fsdp", "expert", "tensor/mind"), expert=("expert",))
    tensor_axes = ("tensor/mind",)
    assert axes["mind"] == Axes(
        ("data", "fsdp", "expert"), tensor_axes, ("expert",), sequence=tensor_axes, collective_matmul="ring"
    )


@dataclasses.dataclass(frozen=True)
class OfProcess:
    """What a CPU's device says of its place."""

    process_index: int


@dataclasses.dataclass(frozen=True)
class OfSlice(OfProcess):
    """What a GPU says of its place."""

    slice_index: int


def test_nodes_of_expert_ranks_are_those_of_the_group_on_most():
    def mesh(nodes, kind=OfProcess):
        devices = np.empty(8, object)
        devices[:] = [kind(0, node) if kind is OfSlice else kind(node) for node in nodes]
        return jax.sharding.Mesh(devices.reshape(2, 2, 2), ("data", "expert", "tensor"))

    assert most_nodes(mesh([0, 0, 0, 0, 1, 1, 1, 1]), ("expert",)) == 1
    assert most_nodes(mesh([0, 0, 0, 0, 1, 1, 1, 1]), ("data", "expert")) == 2
    assert most_nodes(mesh([0, 0, 0, 0, 0, 0, 0, 1]), ("expert",)) == 2  # of one group alone
    assert most_nodes(mesh([0, 0, 1, 1, 2, 2, 3, 3], OfSlice), ("data", "expert")) == 4
    (unit,) = (UnitPlan("mind", ("backbone",), (0, 1), parallelism=Parallelism(dp=2, ep=2)),)
    (here,) = stage_meshes(Plan((unit,)), jax.devices()).values()
    assert module_axes(unit, here)["backbone"].expert_nodes == 1
