"""One of three processes that deal batches; run by test_item_agreement. In the third batch the last lacks an image."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator

import jax

from configs.architectures import ModelConfig
from data.packing.batch_requirements import BatchRequirements
from data.packing.dealt_phases import DealtPhases, plan_phase_rows
from data.packing.global_batch import GlobalBatch
from data.packing.phases.item_tables import PhaseCapacityError
from data.packing.pipeline import training_batches
from mmjax.training.heartbeat.item_agreement import (
    ItemDisagreementError,
    agreed_batch,
    agreed_batch_and_state,
    agreed_batches,
)
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.data.first_samples import CONFIG
from tests.data.packing.test_planned_phases import PHASES
from tests.small_vqa import SmallVQA
from tests.tiny_model import BACKBONE, VISION, tiny_batch

MODEL = ModelConfig((VISION,), BACKBONE, ())
PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0,), phase_rows=2, capacities=(8, 16)),
        UnitPlan("backbone", ("backbone",), (1,)),
    ),
    microbatches=2,
)


def dealt(phases: DealtPhases, seed: int, *, without_row: bool) -> GlobalBatch:
    arrays = tiny_batch(MODEL, seed=seed)
    if without_row:
        arrays["vision"]["segments"][3] = 0
        arrays["backbone"]["vision_index"][3] = -1
    dealt_arrays = {name: dict(fields) for name, fields in phases.deal(arrays).items()}
    return GlobalBatch(arrays=dealt_arrays, sample_ids=arrays["backbone"]["tokens"], real_and_capacity={}, targets=0)


def batches(batch: GlobalBatch, *, refused: bool) -> Iterator[GlobalBatch]:
    if refused:
        raise PhaseCapacityError("does not fit")
    yield batch


if __name__ == "__main__":
    rank, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=3, process_id=rank)
    phases = plan_phase_rows(PLAN, MODEL, tiny_batch(MODEL))
    for seed in range(3):
        batch = dealt(phases, seed, without_row=seed == 2 and rank == 2)
        try:
            assert agreed_batch(iter([batch]), phases, 60) is batch and seed < 2
        except ItemDisagreementError as error:
            print(f"seed {seed}: {error}")
    batch = dealt(phases, 0, without_row=False)
    for refusing in ({0, 1, 2}, {1}):
        try:
            agreed_batch(batches(batch, refused=rank in refusing), phases, 60)
        except (PhaseCapacityError, ItemDisagreementError) as error:
            print(f"{len(refusing)} refuse: {error}")
    # Batches of a run: the one that is not agreed on stays the next.
    config = dataclasses.replace(CONFIG, seed=int(rank == 2))
    requirements = BatchRequirements(phases=PHASES)
    with contextlib.closing(
        training_batches(config, ModelConfig(), SmallVQA("train"), None, requirements)
    ) as run_batches:
        next(run_batches)
        before = run_batches.get_state()
        with contextlib.suppress(ItemDisagreementError):
            agreed_batch_and_state(run_batches, PHASES, 60)
            raise AssertionError("other samples are dealt otherwise")
        assert run_batches.get_state() == before and before["batches"] == 1
    other = dataclasses.replace(batch, arrays={})
    assert [*agreed_batches([other], DealtPhases(), 60)] == [other]
    jax.distributed.shutdown()
