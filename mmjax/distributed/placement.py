"""Finds the launcher's environment that gives this process its place, and checks that other environments agree."""

from configs.common.errors import UserError
from mmjax.distributed.environments import (
    ENVIRONMENTS,
    EXPLICIT,
    JAX_VARIABLES,
    ClusterEnvironment,
    ProcessPlacement,
)
from mmjax.distributed.variables import Variables


def find_placement(variables: Variables) -> ProcessPlacement | None:
    """Returns the place that the first complete environment gives this process; None for a single process.

    A launcher may run inside another one that starts fewer processes, as torchrun once a node under Slurm. It is
    refused if the other one counts more, because the run would be started several times.

    Raises:
        UserError: A launcher started several processes, and they cannot be joined; or two of them contradict.
    """
    present = [environment for environment in ENVIRONMENTS if environment.is_present(variables)]
    complete = [environment for environment in present if not environment.missing(variables)]
    if not present:
        return None
    if not complete:
        raise UserError(_refusal(present[0], variables))
    chosen, placement = complete[0], complete[0].read(variables)
    if placement.process >= placement.processes:
        raise UserError(
            f"{chosen.describe(variables)}: this is process {placement.process}, which is not in "
            f"0..{placement.processes - 1}"
        )
    for other in present:
        _check_agreement(chosen, placement, other, variables, is_complete=other in complete)
    return placement


def _check_agreement(
    chosen: ClusterEnvironment,
    placement: ProcessPlacement,
    other: ClusterEnvironment,
    variables: Variables,
    is_complete: bool,
) -> None:
    count = other.count(variables)
    placed = other.read(variables) if is_complete else None
    differs = placed is not None and placed.processes == placement.processes and placed.process != placement.process
    if differs or (count or 0) > placement.processes:
        said = f"process {placed.process}" if placed and differs else f"one of {count} processes"
        raise UserError(
            f"{chosen.describe(variables)} says that this is process {placement.process} of {placement.processes}, but "
            f"{other.describe(variables)} says that it is {said}: unset the variables that are wrong"
        )


def _refusal(environment: ClusterEnvironment, variables: Variables) -> str:
    missing = " and ".join(environment.missing(variables))
    if environment is EXPLICIT:
        return f"{environment.describe(variables)} in the environment, but not {missing}: {environment.remedy}"
    count = environment.count(variables)
    several = f"one of {count}" if count else "one of several processes"
    return (
        f"{environment.describe(variables)} says that this is {several}, but without {missing} they can't be joined "
        f"into one run, and separate runs in one workdir are refused: {environment.remedy}, set "
        f"{', '.join(JAX_VARIABLES)}, or unset {environment.signs[0]} for a single process"
    )


def other_launchers(variables: Variables) -> str:
    """Names the other launchers whose variables count several processes; empty if there are none."""
    return ", ".join(
        environment.describe(variables) for environment in ENVIRONMENTS if environment.is_present(variables)
    )
