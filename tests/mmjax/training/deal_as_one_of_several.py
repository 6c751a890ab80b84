"""One of three processes that deal batches; run by test_item_agreement. In the third batch the last lacks an image."""

import dataclasses
import sys

import jax

from configs.architectures import ModelConfig
from data.packing.dealt_phases import DealtPhases, plan_phase_rows
from data.packing.global_batch import GlobalBatch
from mmjax.training.item_agreement import ItemDisagreementError, agreed_items
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.tiny_model import BACKBONE, VISION, tiny_batch

MODEL = ModelConfig((VISION,), BACKBONE, ())
PLAN = Plan((UnitPlan("vision", ("vision",), (0,), rows=2, capacities=(8, 16)),), microbatches=2)


def dealt(phases: DealtPhases, seed: int, *, without_row: bool) -> GlobalBatch:
    arrays = tiny_batch(MODEL, seed=seed)
    if without_row:
        arrays["vision"]["segments"][3] = 0
        arrays["backbone"]["vision_index"][3] = -1
    dealt_arrays = {name: dict(fields) for name, fields in phases.deal(arrays).items()}
    return GlobalBatch(arrays=dealt_arrays, sample_ids=arrays["backbone"]["tokens"], counts={}, targets=0)


if __name__ == "__main__":
    rank, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=3, process_id=rank)
    phases = plan_phase_rows(PLAN, MODEL, tiny_batch(MODEL))
    for seed in range(3):
        batch = dealt(phases, seed, without_row=seed == 2 and rank == 2)
        try:
            assert agreed_items(batch, phases, 60) is batch and seed < 2
        except ItemDisagreementError as error:
            print(f"seed {seed}: {error}")
    other = dataclasses.replace(batch, arrays={})
    assert agreed_items(other, DealtPhases(), 60) is other
    jax.distributed.shutdown()
