"""The source of a run's batches, this process or producers elsewhere, and the order of their rows.

`TrainingRun` opens them when a run starts; the timing of plans (`mmjax.training.profiling.step_times`) too.
"""

from configs.clusters import CLUSTERS
from configs.common.errors import UserError
from data.datasets.dataset import Dataset
from data.packing.batch_iterator import BatchIterator
from data.packing.batch_requirements import WHOLE_BATCHES, BatchRequirements
from data.packing.pipeline import training_batches
from data.packing.row_order import RowOrderRequest, check_profile_size, profile_of_plan
from data.samples.sample_format import SampleFormat
from mmjax.training.config import TrainConfig
from sharding.costs.profiled import Profile
from sharding.plans.plan import Plan
from sharding.plans.plan_purpose import cluster_of_run


def row_order_request(
    config: TrainConfig, plan: Plan, device_kind: str, profile: Profile | None = None, processes: int = 1
) -> RowOrderRequest | None:
    """The order of rows that a run's configuration asks for; None where rows stay as they are packed.

    Rows are ordered where batches are made, before samples are decoded, as in DistTrain (arXiv 2408.04275). Rows move
    and no sum over a batch changes, so losses and gradients stay the same.

    Args:
        config: The run.
        plan: The plan whose simulated step is to be short.
        device_kind: `jax.Device.device_kind` of its devices, by whose cluster (`cluster_of_run`) rows are costed
            without a profile.
        profile: The run's profile, whose measured times give the cost of a row; None without one.
        processes: Number of processes of the run; between several, hops occupy the devices of both their ends.

    Raises:
        DataError: There are producers, and the profile's measurements for this plan are too large to send to them.
        UserError: The configuration orders microbatches, and the microbatches of a unit run in lockstep.
    """
    if config.reordering == "none":
        return None
    compiled = [unit.name for unit in plan.units if unit.is_compiled]
    if compiled and config.reordering != "intra_microbatch":
        raise UserError(
            f'TrainConfig.reordering is {config.reordering!r}, but unit {compiled[0]} has the executor "compiled", so '
            "its microbatches run in lockstep; choose none or intra_microbatch"
        )
    measured = None if profile is None else profile_of_plan(profile, plan, config.model)
    if measured and config.producers:
        check_profile_size(measured)
    cluster = cluster_of_run(plan.made_for, device_kind) or CLUSTERS["cpu"]
    return RowOrderRequest(plan, cluster.name, config.trainable, config.reordering, measured, processes > 1)


def open_batches(
    config: TrainConfig,
    dataset: Dataset,
    order: RowOrderRequest | None = None,
    requirements: BatchRequirements = WHOLE_BATCHES,
) -> BatchIterator:
    """The run's batches, made by `TrainConfig.producers` if there are any, else in this process; they are the same.

    Args:
        config: The run.
        dataset: Its training split.
        order: Order of a step's rows; None to keep them as they are packed.
        requirements: The rows and tables that this process needs of each batch.

    Raises:
        DataError: As `training_batches` and `remote_batches`.
    """
    data, model = config.data, config.model
    if config.producers:
        from data.producers.client import remote_batches  # needs the extra `service`

        return remote_batches(data, model, dataset, config.producers, config.producer_timeout, order, requirements)
    sample_format = SampleFormat.for_model(model, data.encoder_capacities)
    row_order = order.make_row_order(model, sample_format) if order else None
    return training_batches(data, model, dataset, row_order, requirements)
