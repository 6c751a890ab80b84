"""The division of shallow models: each module by the ranks that are to be timed, as far as they divide it.

`layer_profile.py` calls it; the plans of the shallow models (`shallow_runs.py`) follow from the divisions.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from configs.common.errors import UserError
from sharding.costs.profiled import TimedRanks
from sharding.plans.unit_checks import HEAD_SPLITS, row_chunks
from sharding.specs.layers.module_spec import ModuleSpec
from sharding.specs.modules import ModuleGraph

RanksByModule = Mapping[str, TimedRanks]


def positions_of_rows(batch: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, int]:
    """Returns the number of positions of a row, by module that has positions."""
    return {name: arrays["segments"].shape[1] for name, arrays in batch.items() if "segments" in arrays}


def divide_modules(
    graph: ModuleGraph, ranks: Sequence[TimedRanks], positions: Mapping[str, int]
) -> list[RanksByModule]:
    """Returns the divisions of every module, without repetitions, the divisions over the fewest devices first.

    A module whose positions or heads context-parallel ranks do not divide has tensor ranks alone.

    Args:
        graph: The model's modules.
        ranks: Tensor and context-parallel ranks that are to be timed.
        positions: Number of positions of a row, by module that has positions.

    Raises:
        UserError: No module has context-parallel ranks that are to be timed, at any tensor-parallel size.
    """
    divisions = []
    for timed_ranks in sorted(ranks, key=lambda timed: (timed.devices, timed)):
        division = {
            module.name: _divide(module, timed_ranks, positions.get(module.name, 0)) for module in graph.modules
        }
        if division not in divisions:
            divisions.append(division)
    timed = {
        (module_ranks.cp, module_ranks.context_transfer) for division in divisions for module_ranks in division.values()
    }
    for timed_ranks in ranks:
        if timed_ranks.cp > 1 and (timed_ranks.cp, timed_ranks.context_transfer) not in timed:
            raise UserError(
                f"no module can be timed at cp {timed_ranks.cp} ({timed_ranks.context_transfer}): 2 x cp has to "
                "divide the positions of its rows, which are "
                f"{', '.join(f'{count} of {name}' for name, count in positions.items())}, and "
                'for "all_to_all" cp x tp its heads; choose another cp'
            )
    return divisions


def _divide(module: ModuleSpec, ranks: TimedRanks, positions: int) -> TimedRanks:
    """Returns the tensor and context-parallel ranks that divide a module, at most the given ones."""
    tensor_ranks = TimedRanks(ranks.tp if module.supports_tp(ranks.tp) else 1)
    if ranks.cp == 1 or not module.supports_cp or positions % row_chunks(ranks.cp):
        return tensor_ranks
    divided = tensor_ranks._replace(cp=ranks.cp, context_transfer=ranks.context_transfer)
    heads = [size for split, size in module.tensor_splits if split in HEAD_SPLITS]
    if ranks.context_transfer == "all_to_all" and any(size % divided.devices for size in heads):
        return tensor_ranks
    return divided
