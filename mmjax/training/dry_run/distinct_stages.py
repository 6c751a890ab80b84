"""Stages whose programs are the same, so that one of them stands for the others.

Stages of the same layers, mesh and operand shapes compile to programs that differ in names and in constants, such as
the number of their first layer, alone.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from mmjax.training.dry_run.abstract_stages import AbstractStage
from mmjax.training.engine.stage_layouts import piece_key
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.meshes import node_of


def distinct_stages(stages: Mapping[StageId, AbstractStage]) -> dict[StageId, tuple[StageId, ...]]:
    """The stages to compile: the first of each group of alike ones, with all stages of the group."""
    groups: dict[Hashable, list[StageId]] = {}
    for stage_id, stage in stages.items():
        groups.setdefault(program_key(stage), []).append(stage_id)
    return {group[0]: tuple(group) for group in groups.values()}


def program_key(stage: AbstractStage) -> Hashable:
    """A key that is equal for stages whose programs are the same."""
    replicas = stage.executable.pipeline_replicas
    return (
        tuple(
            (run.module.name, run.piece.name, run.last - run.first, run.recompute, run.is_continued)
            for run in stage.placed.layout.piece_runs
        ),
        tuple(sorted(piece_key(key) for key in stage.placed.trained_keys)),
        _mesh_key(stage.placed.mesh),
        tuple(_programs_key(programs) for programs in replicas[0].by_capacity),
        len(replicas),
    )


def _programs_key(programs: Any) -> Hashable:
    """What the programs of a microbatch depend on besides the layers: shapes, specs and gradients that are needed."""
    passes = ("step", "forward", "backward", "split_backward")
    shapes = [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(programs.operand_shapes)]
    specs = jax.tree.leaves(programs.operand_specs, is_leaf=lambda leaf: isinstance(leaf, jax.P))
    outputs = [(shape.shape, str(shape.dtype)) for _, shape in sorted(programs.output_shapes.items())]
    return (
        tuple(shapes),
        tuple(map(str, specs)),
        tuple(outputs),
        tuple(name for name in passes if getattr(programs, name, None) is not None),
        tuple(sorted((module, str(axes)) for module, axes in programs.axes.items())),
        len(programs.differentiated_inputs),
        programs.loss_names,
        _mesh_key(programs.mesh),
    )


def _mesh_key(mesh: Mesh) -> Hashable:
    """The axes of a mesh, and where its devices and their nodes lie beside the first."""
    ids = np.array([device.id for device in mesh.devices.flat])
    nodes = np.array([node_of(device) for device in mesh.devices.flat])
    return tuple(mesh.shape.items()), tuple(ids - ids[0]), tuple(nodes - nodes[0])
