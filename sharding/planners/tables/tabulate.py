"""Makes the table of a module: every tensor-parallel size, recomputation policy, number of stages and of chunks.

`PlanningProblem.module_tables` calls `module_table` once for each module.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sharding.costs.cost_model import CostModel
from sharding.planners.stages.exact_partition import partition_by
from sharding.planners.tables.fixed_ranks import SINGLE_RANKS, FixedRanks
from sharding.planners.tables.layer_groups import LayerGroupCosts, LayerGroups
from sharding.planners.tables.module_table import ModuleTable
from sharding.planners.tables.partition import balanced_layers
from sharding.planners.tables.row_bytes import RowBytes
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.trained_parts import RequiredGradients
from sharding.specs.layers.layer import Loads, RecomputePolicy
from sharding.specs.layers.module_spec import ModuleSpec


class _Stage(NamedTuple):
    """One stage of a candidate; tuples count (leading layers, layers of each kind of the stack, trailing layers).

    Attributes:
        on_device: Layers on its device, in all chunks.
        per_microbatch: Layers whose activations every microbatch in flight saves.
        saved_by_one_chunk: Leading and trailing layers, which only one chunk of the rank has, times the microbatches in
            flight in that chunk.
        in_flight: Microbatches in flight where no stage is downstream of the module.
    """

    on_device: tuple[int, ...]
    per_microbatch: tuple[int, ...]
    saved_by_one_chunk: tuple[int, ...]
    in_flight: int


class _Candidate(NamedTuple):
    """One layout of a module; `stages` are its distinct ones."""

    tp: int
    recompute: RecomputePolicy
    pp: int
    chunks: int
    layers: tuple[int, ...]
    stages: list[_Stage]
    groups: tuple[LayerGroupCosts, ...]


def module_table(
    module: ModuleSpec,
    required: RequiredGradients,
    costs: CostModel,
    loads: Loads,
    rows: Float[np.ndarray, " k"],
    *,
    recompute: tuple[RecomputePolicy, ...],
    chunks: tuple[int, ...],
    tensor_sizes: tuple[int, ...],
    fixed_ranks: FixedRanks = SINGLE_RANKS,
) -> ModuleTable:
    """Tables every candidate layout of a module.

    Args:
        module: The module.
        required: The gradients that its layers compute.
        costs: The cost model.
        loads: Loads of representative rows.
        rows: Rows' worth of load of a replica's microbatch, ascending from 0.
        recompute: Recomputation policies to choose from.
        chunks: Numbers of virtual stages per pipeline rank to choose from.
        tensor_sizes: Tensor-parallel sizes to choose from; sizes that do not divide the module are left out.
        fixed_ranks: Context-parallel and expert ranks.

    Raises:
        PlanError: The module takes none of the tensor-parallel sizes.
    """
    sizes = [tp for tp in tensor_sizes if module.supports_tp(tp)]
    if not sizes:
        splits = ", ".join(f"{dimension} {size}" for dimension, size in module.tensor_splits)
        raise PlanError(
            f"{module.name} takes none of the tensor-parallel sizes {', '.join(map(str, tensor_sizes))}, because none "
            f"divides {splits}; add one that does"
        )
    depth = module.layer_count if module.divisible else 1
    layer_groups = LayerGroups(module, required, costs, loads, rows, fixed_ranks)
    candidates = []
    distinct_stages = functools.cache(functools.partial(_distinct_stages, module))
    for tp, policy in itertools.product(sizes, recompute):
        groups = layer_groups.costs(tp, policy)
        partitions: dict[int, tuple[int, ...]] = {}
        for pp, count in itertools.product(range(1, depth + 1), chunks):
            if count > 1 and not 1 < pp <= depth // count:
                continue
            if pp * count not in partitions:
                partitions[pp * count] = _partition(module, groups, rows, pp * count)
            layers = partitions[pp * count]
            stages = distinct_stages(layers, pp)
            candidates.append(_Candidate(tp, policy, pp, count, layers, stages, groups))
    return _tabulate(module, costs, rows, candidates, fixed_ranks)


def _partition(
    module: ModuleSpec, groups: tuple[LayerGroupCosts, ...], rows: Float[np.ndarray, " k"], stages: int
) -> tuple[int, ...]:
    """How many layers each virtual stage owns, such that the slowest is as fast as possible for the mean row."""
    leading, *kinds, trailing = (float(np.interp(1.0, rows, group.seconds)) for group in groups)
    if len(kinds) == 1:
        return balanced_layers(leading, kinds[0], trailing, module.layer_count, stages)
    seconds = np.array(kinds)[list(module.kind_of_layer)]
    seconds[0] += leading
    seconds[-1] += trailing
    layers = partition_by(seconds, stages)
    assert layers is not None  # stages are at most as many as layers
    return layers


def _distinct_stages(module: ModuleSpec, layers: tuple[int, ...], pp: int) -> list[_Stage]:
    """The distinct stages of a module; of equal ones the first, which holds the most microbatches.

    Of a stage with chunks, every chunk of a microbatch counts as one microbatch in flight (`interleaved_in_flight`),
    with as many layers of each kind as any chunk has; what only one chunk has is counted for the microbatches in it.
    """
    stages: dict[tuple[tuple[int, ...], tuple[int, ...]], _Stage] = {}
    starts = list(itertools.accumulate(layers, initial=0))
    kind_counts = [module.count_kinds(*borders) for borders in itertools.pairwise(starts)]
    for rank in range(pp):
        chunks = np.array(kind_counts[rank::pp])  # [v, kinds]
        first, last = int(rank == 0), int(rank == pp - 1)
        total, most = tuple(chunks.sum(axis=0).tolist()), tuple(chunks.max(axis=0).tolist())
        on_device = (first, *total, last)
        if len(chunks) == 1:
            stage = _Stage(on_device, on_device, (0,) * len(on_device), pp - rank)
        else:
            saved_by_one_chunk = (2 * pp * first, *(0 for _ in most), 2 * last)
            stage = _Stage(on_device, (0, *most, 0), saved_by_one_chunk, len(layers) + pp - 2 * rank - 1)
        stages.setdefault((on_device, most), stage)
    return list(stages.values())


def _tabulate(
    module: ModuleSpec,
    costs: CostModel,
    rows: Float[np.ndarray, " k"],
    candidates: list[_Candidate],
    fixed_ranks: FixedRanks,
) -> ModuleTable:
    """Stacks the candidates; one with fewer distinct stages than another repeats its last."""
    width = max(len(candidate.stages) for candidate in candidates)
    stages = [candidate.stages + candidate.stages[-1:] * (width - len(candidate.stages)) for candidate in candidates]
    on_device = np.array([[stage.on_device for stage in row] for row in stages], float)  # [o, g, groups]
    per_microbatch = np.array([[stage.per_microbatch for stage in row] for row in stages], float)
    saved_by_one_chunk = np.array([[stage.saved_by_one_chunk for stage in row] for row in stages], float)
    seconds = np.array([[group.seconds for group in candidate.groups] for candidate in candidates])  # [o, groups, k]
    group_parameters = np.array(
        [[group.parameters for group in candidate.groups] for candidate in candidates]
    )  # [o, groups, 4]
    group_saved = np.array([[group.saved for group in candidate.groups] for candidate in candidates])
    workspace = np.array(
        [[group.workspace for group in candidate.groups] for candidate in candidates]
    )  # [o, groups, 3]
    chunks = np.array([candidate.chunks for candidate in candidates])
    parameters, trained, experts, trained_experts = np.moveaxis(on_device @ group_parameters, 2, 0)
    whole_module = np.array([1, *module.count_kinds(0, module.layer_count), 1]) @ seconds
    return ModuleTable(
        module=module,
        costs=costs,
        rows=rows,
        tp=np.array([candidate.tp for candidate in candidates]),
        pp=np.array([candidate.pp for candidate in candidates]),
        chunks=chunks,
        recompute=tuple(candidate.recompute for candidate in candidates),
        layers=tuple(candidate.layers for candidate in candidates),
        slowest_stage=(on_device @ seconds).max(axis=1),
        fill=whole_module / chunks[:, None],
        parameters=parameters,
        trained=trained,
        experts=experts,
        trained_experts=trained_experts,
        in_flight=np.array([[stage.in_flight for stage in row] for row in stages], float),
        saved=RowBytes(*np.moveaxis(per_microbatch @ group_saved, 2, 0)),
        saved_by_one_chunk=RowBytes(*np.moveaxis(saved_by_one_chunk @ group_saved, 2, 0)),
        workspace=RowBytes(*np.moveaxis(workspace.max(axis=1), 1, 0)),
        fixed_ranks=fixed_ranks,
    )
