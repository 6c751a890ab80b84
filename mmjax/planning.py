"""From a configuration to a planner's problem: of a described workload, or of a training run with its real source."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from configs.architectures import AudioConfig, ModelConfig
from configs.clusters import ClusterConfig
from configs.workloads import Workload
from data.formats import SampleFormat
from sharding.analytic_costs import AnalyticCosts
from sharding.data_statistics import DataStatistics, describe
from sharding.planners.given import Given
from sharding.planners.problem import Problem
from sharding.profiled_costs import Profile, ProfiledCosts
from sharding.specs import module_graph
from sharding.trainable import trained_parts

if TYPE_CHECKING:  # it imports jax, which a described workload does without
    from mmjax.training.config import TrainConfig

SAMPLED_ROWS = 512
CHUNKS = (1, 2)


def default_data(model: ModelConfig) -> str:
    """The described data, a file of configs/data, that suits a model for which none is given."""
    if any(isinstance(encoder, AudioConfig) for encoder in model.encoders):
        return "speech_mix"
    return "laion_like" if model.generators else "internvl_like"


def workload_statistics(config: "Workload | TrainConfig", rows: int = SAMPLED_ROWS) -> DataStatistics:
    """Loads of some rows: drawn from a workload's description, or taken from a training run's source."""
    if isinstance(config, Workload):
        return describe(config.data, config.model, rows)
    from mmjax.training.workload import first_batches, statistics_of

    taken = first_batches(config, math.ceil(rows / config.data.rows))
    return statistics_of(taken, module_graph(config.model))


def make_problem(
    config: "Workload | TrainConfig",
    statistics: DataStatistics,
    cluster: ClusterConfig,
    devices: int,
    profile: Profile | None = None,
    given: Mapping[str, Given] | None = None,
) -> Problem:
    """The problem of laying a configuration's step out on a cluster, by a roofline's costs or by a profile's.

    A planner may take what the profile measured, and no other tensor-parallel size or recomputation. It takes the
    sequence and expert ranks that are given by module; raises PlanError if these cannot be.
    """
    rows = config.rows if isinstance(config, Workload) else config.data.rows
    graph = module_graph(config.model)
    trains = trained_parts(graph, config.trainable)
    costs = AnalyticCosts(cluster, element_bytes=config.model.element_bytes)
    problem = Problem(
        graph,
        costs,
        cluster,
        devices,
        rows,
        statistics,
        trains,
        chunks=CHUNKS,
        given=given or {},
        positions={} if isinstance(config, Workload) else row_positions(config),
    )
    if profile is None:
        return problem
    tensor = tuple(sorted({layer.tp for layer in profile.layers}))
    recompute = tuple(dict.fromkeys(layer.recompute for layer in profile.layers))
    return dataclasses.replace(problem, costs=ProfiledCosts(profile), tensor=tensor, recompute=recompute)


def row_positions(config: "TrainConfig") -> dict[str, int]:
    """Positions of a row of each module that has some, as a training run's data are packed."""
    form = SampleFormat.of(config.model, config.data.patches, config.data.frames)
    of_encoders = {stream.module: stream.most // stream.stride for stream in form.streams.values()}
    return of_encoders | {config.model.backbone.name: config.data.tokens}


def with_rows(config: "Workload | TrainConfig", rows: int) -> "Workload | TrainConfig":
    """The same with another global batch."""
    if isinstance(config, Workload):
        return dataclasses.replace(config, rows=rows)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, rows=rows))
