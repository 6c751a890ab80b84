"""From a configuration to a planning problem: of a described workload, or of a training run with its real data set.

Every plan of the commands, of `plan = "auto"` and of the Python interface starts here; planners take the problem.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from configs.architectures import ModelConfig
from configs.clusters import ClusterConfig
from configs.common.errors import UserError
from configs.cost_effects import EffectName
from configs.workloads import Workload
from data.samples.sample_format import SampleFormat
from mmjax.planning.samples.sources import DatasetSamples, DescribedSamples, GroupedSamples
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.optimizer_memory import OptimizerMemory
from sharding.costs.profiled import Profile, ProfiledCostModel
from sharding.planners.problem import PlanningProblem
from sharding.planners.tables.fixed_ranks import FixedRanks
from sharding.plans.plan_purpose import NamedConfiguration
from sharding.plans.resolved.trained_parts import trained_parts
from sharding.specs.modules import module_graph
from sharding.specs.row_load_statistics import RowLoadStatistics, draw_row_loads

if TYPE_CHECKING:  # it imports the data pipeline, which a described workload does without
    from mmjax.training.config import TrainConfig

SAMPLED_ROWS = 512


def default_data_file(model: ModelConfig) -> str:
    """Name of the described data in configs/data that suits a model for which none is given."""
    if any(encoder.field == "frames" for encoder in model.encoders):
        return "speech_mix"
    return "laion_like" if model.generators else "internvl_like"


def workload_statistics(config: "Workload | TrainConfig", rows: int = SAMPLED_ROWS) -> RowLoadStatistics:
    """Draws the loads of some rows from the description of a workload, or from a training run's data set.

    Samples of a data set are planned from their sizes, and not decoded.

    Raises:
        DataError: As of `data.packing.pipeline.training_batches`.
    """
    if isinstance(config, Workload):
        return draw_row_loads(config.data, config.model, rows)
    # Their import takes seconds.
    from data.packing.pipeline import training_pipeline
    from data.packing.planned_row_loads import planned_row_loads, planned_rows

    pipeline = training_pipeline(config.data, config.model, config.dataset("train"))
    sizes = planned_rows(pipeline, math.ceil(rows / config.data.rows) * config.data.rows)
    loads = planned_row_loads(sizes, pipeline.sample_index.sample_format, module_graph(config.model))
    return RowLoadStatistics(loads)


def make_problem(
    config: "Workload | TrainConfig",
    statistics: RowLoadStatistics,
    cluster: ClusterConfig,
    devices: int,
    profile: Profile | None = None,
    fixed_ranks: Mapping[str, FixedRanks] | None = None,
    without: Collection[EffectName] = (),
) -> PlanningProblem:
    """Makes the problem of laying out a configuration's step on a cluster.

    Args:
        config: A described workload or a training run.
        statistics: Loads of its rows.
        cluster: The devices.
        devices: Number of devices.
        profile: Measured times of layers, from which the costs of plans come; without one, the analytic costs of the
            cluster. With a profile, a planner considers only its recomputation policies, and the tensor-parallel sizes
            that it has for the context-parallel ranks of all modules.
        fixed_ranks: Context-parallel and expert ranks by module, which a planner takes as they are.
        without: Effects to leave out of the analytic costs.

    Raises:
        PlanError: A module of `fixed_ranks` cannot have those ranks.
        UserError: There is no such effect, or costs are measured, which have no effects to leave out.
    """
    graph, optimizer = module_graph(config.model), OptimizerMemory.of(config.optimizer)
    problem = PlanningProblem(
        graph=graph,
        costs=AnalyticCostModel(
            cluster.without(without), element_bytes=config.model.element_bytes, optimizer=optimizer
        ),
        cluster=cluster,
        devices=devices,
        rows=global_batch_rows(config),
        data=statistics,
        trained_parts=trained_parts(graph, config.trainable),
        chunk_choices=tuple(range(1, max(2, sum(module.layer_count for module in graph.modules) // 2 + 1))),
        fixed_ranks=fixed_ranks or {},
        configuration=NamedConfiguration(trainable=config.trainable),
        row_positions={} if isinstance(config, Workload) else positions_per_row(config),
        row_capacities={} if isinstance(config, Workload) else capacities_of_rows(config),
        without=tuple(without),
    )
    if profile is None:
        return problem
    if without:
        raise UserError(
            f"effects ({', '.join(without)}) are left out of analytic costs; a profile's costs are measured"
        )
    return dataclasses.replace(
        problem,
        costs=ProfiledCostModel(profile, optimizer),
        tensor_sizes=_measured_tensor_sizes(profile, {problem.fixed_ranks_of(name).cp for name in graph.names}),
        recompute_choices=tuple(dict.fromkeys(layer.recompute for layer in profile.layers)),
    )


def _measured_tensor_sizes(profile: Profile, cps: Collection[int]) -> tuple[int, ...]:
    """Returns the tensor-parallel sizes that a profile has for each of some numbers of context-parallel ranks.

    If it has none, they are all of its sizes; the costs of a plan then say what is missing.
    """
    tensor_sizes = [{layer.tp for layer in profile.layers if layer.cp == cp} for cp in cps]
    return tuple(sorted(set.intersection(*tensor_sizes) or {layer.tp for layer in profile.layers}))


def positions_per_row(config: "TrainConfig") -> dict[str, int]:
    """Returns the number of positions of a packed row, by module that has positions."""
    sample_format = SampleFormat.for_model(config.model, config.data.encoder_capacities)
    encoder_positions = {
        encoder.module: encoder.max_length // encoder.values_per_position
        for encoder in sample_format.encoder_formats.values()
    }
    return encoder_positions | {config.model.backbone.name: config.data.tokens}


def capacities_of_rows(config: "TrainConfig") -> dict[str, int]:
    """Returns the number of patches, frames or target images that a packed row holds, by encoder and generator."""
    sample_format = SampleFormat.for_model(config.model, config.data.encoder_capacities)
    encoders = {encoder.module: encoder.max_length for encoder in sample_format.encoder_formats.values()}
    return encoders | {generator.name: config.data.images for generator in config.model.generators}


def global_batch_rows(config: "Workload | TrainConfig") -> int:
    """Returns the number of rows of a configuration's global batch."""
    return config.rows if isinstance(config, Workload) else config.data.rows


def with_global_batch(config: "Workload | TrainConfig", rows: int, grouping: str = "") -> "Workload | TrainConfig":
    """Returns the same configuration with a global batch of `rows` rows; a training run's by a grouping, if named."""
    if isinstance(config, Workload):
        return dataclasses.replace(config, rows=rows)
    data = dataclasses.replace(config.data, rows=rows, grouping=grouping or config.data.grouping)
    return dataclasses.replace(config, data=data)


def grouped_samples(config: "Workload | TrainConfig") -> GroupedSamples:
    """The samples of a configuration, to be grouped into rows."""
    if isinstance(config, Workload):
        return DescribedSamples(config.data, config.model)
    return DatasetSamples(config, positions_per_row(config))
