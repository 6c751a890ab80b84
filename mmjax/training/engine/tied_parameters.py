"""Tied parameters of a plan: the stages that share one, and the hops of its weight and its gradient.

The executor sends the weight at the start of a step (send_tied_weight) and the gradient at its end
(send_tied_gradient).
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jax.sharding import NamedSharding

from mmjax.training.engine.placement import PlacedStage
from sharding.plans.resolved.stage_graph import StageId
from sharding.runtime.hops import make_hop
from sharding.runtime.pipeline import TiedParameter
from sharding.trees import get_leaf

ParameterLocation = tuple[str, str]
"""Location of a parameter in a stage: (key `module/piece`, path of the leaf under this key)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TiedParameterEndpoints:
    """A tied parameter (tied embeddings): its owner, its borrower, and its location in the parameters of each.

    The owner is the stage that holds the master weight. The borrower computes with a copy of the compute
    weight, and sends the gradient back to the owner.
    """

    owner: StageId
    borrower: StageId
    owner_path: ParameterLocation
    borrower_path: ParameterLocation


def find_tied_parameters(stages: Mapping[StageId, PlacedStage]) -> tuple[TiedParameterEndpoints, ...]:
    """Every parameter that a stage borrows from another stage."""
    owners: dict[str, StageId] = {}
    for stage_id, stage in stages.items():
        for run in stage.layout.piece_runs:
            owners.setdefault(run.parameter_key, stage_id)
    tied = []
    for stage_id, stage in stages.items():
        for run in stage.layout.piece_runs:
            for path, owner_piece, owner_path in run.piece.tied_parameters:
                owner_key = f"{run.module.name}/{owner_piece}"
                if owners[owner_key] != stage_id:
                    tied.append(
                        TiedParameterEndpoints(
                            owner=owners[owner_key],
                            borrower=stage_id,
                            owner_path=(owner_key, owner_path),
                            borrower_path=(run.parameter_key, path),
                        )
                    )
    return tuple(tied)


def make_tied_parameter(
    parameter: TiedParameterEndpoints, stages: Mapping[StageId, PlacedStage], transport: str
) -> TiedParameter:
    """A tied parameter with the hops of its compute weight to the borrower, and of its gradient to the owner."""
    owner, borrower = stages[parameter.owner].master_weights, stages[parameter.borrower].master_weights
    (owner_key, owner_path), (borrower_key, borrower_path) = parameter.owner_path, parameter.borrower_path
    weight = get_leaf(owner.compute_shapes[owner_key], owner_path)
    owner_sharding = NamedSharding(owner.mesh, get_leaf(owner.compute_specs[owner_key], owner_path))
    borrower_sharding = NamedSharding(borrower.mesh, get_leaf(borrower.compute_specs[borrower_key], borrower_path))
    gradient = get_leaf(owner.layer_stacks[owner_key].shapes, owner_path)
    gradient_sharding = NamedSharding(borrower.mesh, borrower.tied_gradient_specs[borrower_key][borrower_path])
    (owner_layer,) = owner.gradient_shardings[owner_key]
    summed_sharding = get_leaf(owner.gradient_shardings[owner_key][owner_layer], owner_path)
    return TiedParameter(
        owner=parameter.owner,
        borrower=parameter.borrower,
        owner_path=parameter.owner_path,
        borrower_path=parameter.borrower_path,
        owner_layer=owner_layer,
        weight_hop=make_hop(owner_sharding, borrower_sharding, weight.shape, weight.dtype, transport),
        gradient_hop=make_hop(gradient_sharding, summed_sharding, gradient.shape, np.dtype(np.float32), transport),
    )
