"""Runs whose encoder and generator have rows of their own, against the run without."""

import dataclasses
import logging
import re
from typing import Any

import numpy as np
import pytest

from data.packing.phases.item_tables import PhaseCapacityError
from data.packing.pipeline import training_batches
from mmjax.training.config import TrainConfig
from mmjax.training.trainer import Trainer
from sharding.plans.plan import Plan
from tests.mmjax.training.trainer_runs import CONFIG, PLAN, Recorder, run, written
from tests.unit_plans import changed_unit

pytestmark = pytest.mark.runs

OWN_ROWS = {"vision": {"phase_rows": 1}, "generator": {"phase_rows": 3, "capacities": (3,)}}


def with_own_rows(fields: dict[str, dict[str, Any]]) -> Plan:
    units = (changed_unit(unit, **fields.get(unit.name, {})) for unit in PLAN.units)
    return dataclasses.replace(PLAN, units=tuple(units))


def rows_of_steps(config: TrainConfig, module: str, name: str, first: int, last: int) -> np.ndarray:
    """An array of a module in the steps after `first`, up to `last`: [microbatches of all, rows, ...]."""
    batches = training_batches(config.data, config.model, config.dataset("train"))
    arrays = [next(batches).arrays[module][name] for _ in range(last)][first:]
    batches.close()
    whole = np.stack(arrays)
    return whole.reshape(-1, whole.shape[1] // PLAN.microbatches, *whole.shape[2:])


def seen_images(config: TrainConfig, first: int, last: int) -> np.ndarray:
    """Images that the encoder reads in each microbatch."""
    return rows_of_steps(config, "vision", "segments", first, last).max(axis=-1).sum(axis=-1)


def drawn_images(config: TrainConfig, first: int, last: int) -> np.ndarray:
    """Images to generate in each microbatch."""
    return (rows_of_steps(config, "generator", "weights", first, last) > 0).sum(axis=(-2, -1))


def test_a_run_trains_evaluates_and_resumes_as_the_run_without(tmp_path):
    config = dataclasses.replace(CONFIG, evaluation_interval=3)
    whole, losses = run(tmp_path / "without", config=config)
    weighted = dataclasses.replace(
        config, data=dataclasses.replace(config.data, quadratic_cost_weights=(("patches", 0.5),))
    )
    # Stopped by its configuration, and resumed with other capacities and a square weight.
    for shorter, vision in (
        (dataclasses.replace(config, steps=3), {}),
        (weighted, {"capacities": (48, 64)}),
    ):
        plan = with_own_rows({**OWN_ROWS, "vision": {"phase_rows": 1, **vision}})
        result, seen = run(tmp_path / "with", plan, resume=shorter is weighted, config=shorter)
        for step, step_losses in seen.items():
            for name, loss in step_losses.items():
                assert loss == pytest.approx(losses[step][name], rel=1e-5), (step, name)
    assert result.score == whole.score and result.step == 6
    # A microbatch takes the smallest capacity that holds its images, and one without any to generate takes none.
    patches, drawn = (16 * seen_images(config, 3, 6)), drawn_images(config, 3, 6)
    assert result.counts["vision"] == (patches.sum(), np.where(patches > 48, 64, 48)[patches > 0].sum())
    assert result.counts["generator"] == (drawn.sum(), 9 * (drawn > 0).sum())
    assert len(set(patches)) > 1 and not drawn_images(config, 0, 6).all()


def test_tables_of_exchanges_are_made_ahead_of_their_step():
    with Trainer(CONFIG, with_own_rows(OWN_ROWS)) as trainer:
        batch = next(trainer.batches)
        made = trainer.engine.exchanges.tables(batch.arrays)
    assert made.keys() == batch.exchange_tables.keys() and len(made) == 2
    for name, by_microbatch in made.items():
        assert len(by_microbatch) == PLAN.microbatches
        for ahead, again in zip(batch.exchange_tables[name], by_microbatch, strict=True):
            assert ahead.capacity == again.capacity
            for rank, table in again.activations.send.items() if again.activations else ():
                np.testing.assert_array_equal(ahead.activations.send[rank], table)


def test_an_evaluation_whose_items_do_not_fit_is_left_out_and_the_run_goes_on(tmp_path, caplog):
    """Batches of training hold fewer images than those of evaluations, which are all questions about one."""
    data = dataclasses.replace(CONFIG.data, mixture=(("vqa", 0.02), ("description", 1.0)))
    config = dataclasses.replace(CONFIG, data=data, steps=3)
    plan = with_own_rows({"vision": {"phase_rows": 1, "capacities": (32,)}})
    with caplog.at_level(logging.WARNING):
        result, _ = run(tmp_path, plan, config=config, recorder=Recorder())
    assert result.step == 3 and result.score is None and not result.stopped_by
    assert "no evaluation after step 3: microbatch 0 of unit vision: the" in caplog.text


def test_a_refused_batch_ends_the_run_after_a_save_from_which_it_goes_on_with_a_larger_capacity(tmp_path, caplog):
    data = dataclasses.replace(CONFIG.data, seed=24, mixture=(("vqa", 0.05), ("description", 1.0)))
    config = dataclasses.replace(CONFIG, data=data, checkpoint_interval=1000)
    small, large = (
        with_own_rows({"vision": {"phase_rows": 1, "capacities": capacities}}) for capacities in ((16,), (16, 32))
    )
    undisturbed, losses = run(tmp_path / "undisturbed", large, config=config)
    assert undisturbed.step == 6
    caplog.clear()
    before = Recorder()
    with pytest.raises(PhaseCapacityError) as refused:
        run(tmp_path / "refused", small, config=config, recorder=before)
    told = re.fullmatch(
        r"step (\d): microbatch 0 of unit vision: the 2 items of vision do not fit into 1 rows of 16 patches; raise "
        r"the largest of the unit's capacities in the plan to at least 32 \(64 suffices for any batch\), or give it "
        r"more rows; samples with the most patches: (\d+) \(16\), (\d+) \(16\); the state after step (\d) is saved",
        str(refused.value),
    )
    assert told
    step, *samples, saved = map(int, told.groups())
    assert 2 <= step <= 6 and saved == step - 1 and len(set(samples)) == 2
    assert caplog.text.count("unit vision: the largest of its capacities, 16 patches, does not suffice for any") == 1
    with (
        Trainer(config, small, tmp_path / "refused", resume=True) as trainer,
        pytest.raises(PhaseCapacityError, match=f"step {step}: .* step {saved} is saved"),
    ):
        trainer.step()
    result, after = run(tmp_path / "refused", large, resume=True, config=config)
    assert before.losses | after == losses
    assert sorted(before.losses) == [*range(1, step)] and sorted(after) == [*range(step, 7)]
    assert result.data_counters == undisturbed.data_counters
    assert written(tmp_path / "refused") == written(tmp_path / "undisturbed")
