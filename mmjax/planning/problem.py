"""From a configuration to a planner's problem: of a described workload, or of a training run with its real source."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from configs.architectures import AudioConfig, ModelConfig
from configs.clusters import ClusterConfig
from configs.workloads import Workload
from data.samples.sample_format import SampleFormat
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.profiled import Profile, ProfiledCostModel
from sharding.planners.fixed_ranks import FixedRanks
from sharding.planners.problem import PlanningProblem
from sharding.plans.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics, draw_row_loads

if TYPE_CHECKING:  # it imports jax, which a described workload does without
    from mmjax.training.config import TrainConfig

SAMPLED_ROWS = 512
CHUNKS = (1, 2)


def default_data_file(model: ModelConfig) -> str:
    """The described data, a file of configs/data, that suits a model for which none is given."""
    if any(isinstance(encoder, AudioConfig) for encoder in model.encoders):
        return "speech_mix"
    return "laion_like" if model.generators else "internvl_like"


def workload_statistics(config: "Workload | TrainConfig", rows: int = SAMPLED_ROWS) -> RowLoadStatistics:
    """Loads of some rows: drawn from a workload's description, or taken from a training run's source."""
    if isinstance(config, Workload):
        return draw_row_loads(config.data, config.model, rows)
    from mmjax.training.row_loads import batch_statistics, first_batches

    taken = first_batches(config, math.ceil(rows / config.data.rows))
    return batch_statistics(taken, module_graph(config.model))


def make_problem(
    config: "Workload | TrainConfig",
    statistics: RowLoadStatistics,
    cluster: ClusterConfig,
    devices: int,
    profile: Profile | None = None,
    given: Mapping[str, FixedRanks] | None = None,
) -> PlanningProblem:
    """The problem of laying a configuration's step out on a cluster, by a roofline's costs or by a profile's.

    A planner may take what the profile measured, and no other tensor-parallel size or recomputation. It takes the
    sequence and expert ranks that are given by module; raises PlanError if these cannot be.
    """
    rows = config.rows if isinstance(config, Workload) else config.data.rows
    graph = module_graph(config.model)
    trains = trained_parts(graph, config.trainable)
    costs = AnalyticCostModel(cluster, element_bytes=config.model.element_bytes)
    problem = PlanningProblem(
        graph,
        costs,
        cluster,
        devices,
        rows,
        statistics,
        trains,
        chunk_choices=CHUNKS,
        fixed_ranks=given or {},
        row_positions={} if isinstance(config, Workload) else positions_per_row(config),
    )
    if profile is None:
        return problem
    tensor = tuple(sorted({layer.tp for layer in profile.layers}))
    recompute = tuple(dict.fromkeys(layer.recompute for layer in profile.layers))
    return dataclasses.replace(
        problem, costs=ProfiledCostModel(profile), tensor_sizes=tensor, recompute_choices=recompute
    )


def positions_per_row(config: "TrainConfig") -> dict[str, int]:
    """Positions of a row of each module that has some, as a training run's data are packed."""
    form = SampleFormat.for_model(config.model, config.data.patches, config.data.frames)
    of_encoders = {
        stream.module: stream.max_length // stream.values_per_position for stream in form.encoder_formats.values()
    }
    return of_encoders | {config.model.backbone.name: config.data.tokens}


def with_global_batch(config: "Workload | TrainConfig", rows: int) -> "Workload | TrainConfig":
    """The same with another global batch."""
    if isinstance(config, Workload):
        return dataclasses.replace(config, rows=rows)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, rows=rows))
