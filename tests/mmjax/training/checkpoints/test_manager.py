import dataclasses
import gc
import logging
import os
import re
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs.common.errors import UserError
from configs.optimizer import (
    Adafactor,
    AdamW,
    ConstantRate,
    LinearDecay,
    Lion,
    Muon,
    OptimizerConfig,
    PartOptimizer,
)
from data.data_config import DataConfig
from data.datasets.easy_vqa import EasyVQA
from data.packing.pipeline import training_batches
from mmjax.training.checkpoints.discovery import (
    SET_ASIDE,
    UNFINISHED_MARK,
    damage_found_by_any_process,
    refuse_existing_checkpoints,
    saved_steps,
)
from mmjax.training.checkpoints.file_checksums import FILE_LIST
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.checkpoints.restoring import restore_parameters
from mmjax.training.checkpoints.retention import Retention
from mmjax.training.engine.engine import Engine
from tests.mmjax.training import short_runs as runs
from tests.tiers import first_in_default
from tests.tiny_model import tiny_batch, tiny_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with steps 2 and 4 of a run of six, the losses of 2 to 5, and the states after 2, 4 and 6."""
    directory = tmp_path_factory.mktemp("saved")
    engine = runs.engine("spread")
    checkpoints = CheckpointManager(directory, runs.MODEL)
    state, losses, states = engine.initial_state(), [], {}
    for first in (0, 2, 4):
        # No wait between a save and the next step, which takes over the state's buffers.
        state, more = runs.run(engine, state, range(first, first + 2))
        losses += list(more)
        states[first + 2] = runs.assembled(runs.local_arrays(state))
        if first < 4:
            checkpoints.save(first + 2, engine, state, {"batches": first + 2})
    checkpoints.close()
    return directory, np.array(losses[2:]), states


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of the saved directory that a test may spoil."""
    return shutil.copytree(saved[0], tmp_path / "checkpoints")


def test_resumed_training_is_the_training_that_never_stopped(saved):
    directory, losses, states = saved
    engine = runs.engine("spread")
    state, data, step = CheckpointManager(directory, runs.MODEL).restore(engine, 2)
    assert (data, step) == ({"batches": 2}, 2)
    runs.assert_same(runs.assembled(runs.local_arrays(state)), states[2])
    state, again = runs.run(engine, state, range(2, 6))
    np.testing.assert_array_equal(again, losses)
    runs.assert_same(runs.assembled(runs.local_arrays(state)), states[6])


@pytest.mark.layouts
def test_another_plan_continues_with_the_same_losses(saved):
    directory, losses, states = saved
    engine = runs.engine("one")
    state, data, step = CheckpointManager(directory, runs.MODEL).restore(engine)
    assert (data, step) == ({"batches": 4}, 4)
    runs.assert_same(runs.assembled(runs.local_arrays(state)), states[4])
    _, again = runs.run(engine, state, range(4, 6))
    np.testing.assert_allclose(again, losses[2:], rtol=1e-5)


def test_a_padded_vocabulary_has_its_real_rows_in_a_checkpoint(saved):
    """Two tensor ranks wrote it."""
    parameters, _ = restore_parameters(saved[0], runs.MODEL, jax.devices()[0])
    assert parameters["backbone"]["embed"]["000"]["embedding"].shape == (23, 16)


@pytest.mark.layouts
def test_more_tensor_ranks_continue_with_the_same_bits(tmp_path):
    """From one, without padding, to two that do not divide the vocabulary."""
    one, spread = runs.engine("one"), runs.engine("spread")
    checkpoints = CheckpointManager(tmp_path, runs.MODEL)
    state, _ = runs.run(one, one.initial_state(), range(2))
    checkpoints.save(2, one, state, {})
    checkpoints.wait()
    restored, _, _ = checkpoints.restore(spread)
    checkpoints.close()
    runs.assert_same(runs.assembled(runs.local_arrays(restored)), runs.assembled(runs.local_arrays(state)))
    _, losses = runs.run(one, state, range(2, 4))
    _, again = runs.run(spread, restored, range(2, 4))
    np.testing.assert_allclose(again, losses, rtol=1e-5)


def test_the_data_iterator_continues_with_the_batches_that_remain(tmp_path):
    source, config = EasyVQA("train"), DataConfig(rows=2)
    engine = runs.engine("one")
    model = tiny_model(vocabulary=64)
    checkpoints = CheckpointManager(tmp_path, runs.MODEL)
    batches = training_batches(config, model, source)
    for _ in range(3):
        next(batches)
    checkpoints.save(3, engine, engine.initial_state(), batches.get_state())
    checkpoints.wait()
    remaining = [next(batches) for _ in range(3)]
    _, data, step = checkpoints.restore(engine)
    restored = training_batches(config, model, source)
    restored.set_state(data)
    assert (step, restored.counters()["batches"]) == (3, 3)
    for batch in remaining:
        again = next(restored)
        np.testing.assert_array_equal(again.sample_ids, batch.sample_ids)
        jax.tree.map(np.testing.assert_array_equal, again.arrays, batch.arrays)
    checkpoints.close()


def test_a_save_takes_no_more_device_memory_than_a_layer(tmp_path):
    engine = runs.engine("spread")
    state = engine.initial_state()
    checkpoints = CheckpointManager(tmp_path, runs.MODEL)
    checkpoints.save(1, engine, state, {})
    checkpoints.wait()
    layers = [
        layer for keys in state.master_weights.values() for key_layers in keys.values() for layer in key_layers.values()
    ]
    largest = max(sum(leaf.nbytes for leaf in jax.tree.leaves(layer)) for layer in layers)
    before = live_bytes()
    checkpoints.save(2, engine, state, {})
    writing = live_bytes()
    checkpoints.close()
    assert writing - before <= largest
    assert live_bytes() - before <= largest


def live_bytes():
    gc.collect()
    return sum(shard.data.nbytes for array in jax.live_arrays() for shard in array.addressable_shards)


@pytest.mark.processes
def test_a_run_killed_while_saving_resumes_from_the_checkpoint_before(tmp_path, caplog):
    command = [sys.executable, "-m", "tests.mmjax.training.checkpoints.killed_while_saving", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    (unfinished,) = tmp_path.glob(f"*{UNFINISHED_MARK}*")
    checkpoints = CheckpointManager(tmp_path, runs.MODEL)
    assert saved_steps(tmp_path) == [1]
    engine = runs.engine("one")
    state, data, step = checkpoints.restore(engine)
    assert (data, step) == ({"batches": 1}, 1)
    assert f"{unfinished} passed over: half-written" in caplog.text
    runs.assert_same(
        runs.assembled(runs.local_arrays(state)), runs.assembled(runs.local_arrays(engine.initial_state()))
    )
    # And it saves where the killed one could not.
    checkpoints.save(2, engine, state, {"batches": 2})
    checkpoints.close()
    assert saved_steps(tmp_path) == [1, 2] and not unfinished.exists()


def truncate(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def largest_file(checkpoint, part):
    return max(
        (file for file in (checkpoint / part).rglob("*") if file.is_file()), key=lambda file: file.stat().st_size
    )


DAMAGE = {
    "a truncated data file": (lambda path: truncate(largest_file(path, "optimizer/ocdbt.process_0")), "of .* bytes"),
    "truncated metadata": (lambda path: truncate(path / "parameters" / "_METADATA"), "parameters/_METADATA has"),
    "a missing file": (lambda path: (path / "host.json").unlink(), "host.json is missing"),
    "an empty folder": (lambda path: (shutil.rmtree(path), path.mkdir()), "half-written"),
    "a truncated list of files": (lambda path: truncate(path / FILE_LIST), "half-written"),
}


def flip_bit(path):
    """Flips one bit in the middle of a file, as a failing disk does: its size and its times stay."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(times.st_size // 2)
        (byte,) = file.read(1)
        file.seek(times.st_size // 2)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_flipped_bit_in_any_file_is_found_and_the_checkpoint_before_is_taken(copy, caplog):
    engine, newest = runs.engine("one"), copy / "4"
    files = sorted(file for file in newest.rglob("*") if file.is_file() and file.name != FILE_LIST)
    assert {"parameters", "optimizer", "host.json", "model.json"} == {
        file.relative_to(newest).parts[0] for file in files
    }
    for file in files:
        flip_bit(file)
        damage = damage_found_by_any_process(newest)
        assert damage and f"damaged, {file.relative_to(newest)} is not as it was written" in damage
        flip_bit(file)
    assert damage_found_by_any_process(newest) is None
    flip_bit(newest / FILE_LIST)
    assert FILE_LIST in (damage_found_by_any_process(newest) or "")
    flip_bit(newest / FILE_LIST)

    spoilt = largest_file(newest, "optimizer/ocdbt.process_0")
    flip_bit(spoilt)
    _, data, step = CheckpointManager(copy, runs.MODEL).restore(engine)
    assert (data, step) == ({"batches": 2}, 2)
    assert f"{newest} passed over: damaged, {spoilt.relative_to(newest)} is not as it was written" in caplog.text
    _, step = restore_parameters(copy, runs.MODEL, jax.devices()[0])
    assert step == 4  # the parameters are whole, and nothing else is read
    flip_bit(largest_file(newest, "parameters/ocdbt.process_0"))
    _, step = restore_parameters(copy, runs.MODEL, jax.devices()[0])
    assert step == 2


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_newest_checkpoint_is_passed_over(saved, copy, caplog, kind):
    spoil, reason = DAMAGE[kind]
    spoil(copy / "4")
    checkpoints = CheckpointManager(copy, runs.MODEL)
    state, data, step = checkpoints.restore(runs.engine("spread"))
    assert (data, step) == ({"batches": 2}, 2)
    runs.assert_same(runs.assembled(runs.local_arrays(state)), saved[2][2])
    (passed_over,) = checkpoints.passed_over
    assert re.search(f"{re.escape(str(copy / '4'))} passed over: .*{reason}", passed_over)
    assert re.search(f"{re.escape(str(copy / '4'))} passed over: .*{reason}", caplog.text)


def test_no_whole_checkpoint_is_an_error_that_says_why(copy):
    truncate(copy / "2" / "host.json")
    (copy / "4" / "model.json").unlink()
    with pytest.raises(
        UserError, match="(?s)no checkpoint is whole.*4 passed over.*model.json.*2 passed over.*host.json"
    ):
        CheckpointManager(copy, runs.MODEL).restore(runs.engine("spread"))


def test_no_checkpoint_at_all(tmp_path, saved):
    engine = runs.engine("spread")
    for directory in (tmp_path, tmp_path / "not there"):
        checkpoints = CheckpointManager(directory, runs.MODEL)
        assert saved_steps(directory) == []
        with pytest.raises(UserError, match="no checkpoint to continue from; start without --resume"):
            checkpoints.restore(engine)
        refuse_existing_checkpoints(directory)
    with pytest.raises(UserError, match=re.escape("no checkpoint of step 3; it has checkpoints of [2, 4]")):
        CheckpointManager(saved[0], runs.MODEL).restore(engine, 3)


def test_a_checkpoint_of_another_model_is_refused_by_the_field(saved):
    engine = runs.engine("spread")
    backbone = runs.MODEL.backbone
    wider = dataclasses.replace(runs.MODEL, backbone=dataclasses.replace(backbone, ffn=32))
    with pytest.raises(UserError, match=r"another model: backbone.ffn is 24 there, 32 here; use the configuration"):
        CheckpointManager(saved[0], wider).restore(engine)
    untied = dataclasses.replace(
        runs.MODEL, backbone=dataclasses.replace(backbone, tie_embeddings=False), dtype="bfloat16"
    )
    with pytest.raises(UserError, match=r"backbone.tie_embeddings is True there, False here; use"):
        CheckpointManager(saved[0], untied).restore(engine)


def test_another_algorithm_is_refused_and_other_learning_rates_go_on(saved):
    def engine(**optimizer):
        changed = dataclasses.replace(runs.SETTINGS.optimizer, **optimizer)
        settings = dataclasses.replace(runs.SETTINGS, optimizer=changed)
        return Engine(runs.MODEL, runs.PLANS["one"], tiny_batch(runs.MODEL), settings)

    with pytest.raises(UserError, match=r"the optimizer state of AdamW and this run trains with Lion: set [^\n]*$"):
        CheckpointManager(saved[0], runs.MODEL).restore(engine(algorithm=Lion()))
    slower = PartOptimizer(learning_rate=1e-5, weight_decay=0.0, schedule=ConstantRate())
    state, _, _ = CheckpointManager(saved[0], runs.MODEL).restore(
        engine(algorithm=AdamW(beta2=0.9), learning_rate=1.0, schedule=LinearDecay(), parts=(("vision", slower),))
    )
    runs.assert_same(runs.assembled(runs.local_arrays(state)), saved[2][4])


@pytest.mark.parametrize("algorithm", first_in_default([Adafactor(), Muon()]), ids=["Adafactor", "Muon"])
def test_the_state_of_another_algorithm_is_restored_on_another_plan(tmp_path, algorithm):
    """Statistics of rows and columns, and moments of some parameters only."""
    settings = dataclasses.replace(runs.SETTINGS, optimizer=OptimizerConfig(algorithm=algorithm))
    engines = [Engine(runs.MODEL, runs.PLANS[plan], tiny_batch(runs.MODEL), settings) for plan in ("spread", "one")]
    state = engines[0].initial_state()
    checkpoints = CheckpointManager(tmp_path, runs.MODEL)
    checkpoints.save(3, engines[0], state, {})
    restored, _, _ = checkpoints.restore(engines[1])
    checkpoints.close()
    runs.assert_same(*(runs.assembled(runs.local_arrays(engine_state)) for engine_state in (restored, state)))


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_moments_are_converted_to_the_type_of_the_run_and_that_is_said(tmp_path, caplog, dtypes):
    engines = []
    for dtype in dtypes:
        optimizer = OptimizerConfig(algorithm=AdamW(moment_dtype=dtype), warmup_steps=0)
        settings = dataclasses.replace(runs.SETTINGS, optimizer=optimizer)
        engines.append(Engine(runs.MODEL, runs.PLANS["one"], tiny_batch(runs.MODEL), settings))
    state, _ = runs.run(engines[0], engines[0].initial_state(), [0])
    checkpoints = CheckpointManager(tmp_path, runs.MODEL)
    checkpoints.save(1, engines[0], state, {})
    restored, _, _ = checkpoints.restore(engines[1])
    checkpoints.close()
    assert f"moments are converted from {dtypes[0]} to {dtypes[1]}" in caplog.text
    found, saved_arrays = (runs.assembled(runs.local_arrays(each)) for each in (restored, state))
    moments = [name for name in found if ".mu" in name or ".nu" in name]
    assert {found[name].dtype.name for name in moments} == {dtypes[1]}
    for name in found:
        np.testing.assert_array_equal(found[name], saved_arrays[name].astype(found[name].dtype), err_msg=name)


def test_a_directory_in_use_is_refused_without_resume(saved):
    with pytest.raises(
        UserError, match="newest of step 4; add --resume to continue from it, or choose another workdir"
    ):
        refuse_existing_checkpoints(saved[0])


def test_only_the_newest_are_kept(tmp_path):
    engine = runs.engine("one")
    state = engine.initial_state()
    checkpoints = CheckpointManager(tmp_path, runs.MODEL, Retention(newest=2))
    for step in (1, 2, 3, 3, 5):
        checkpoints.save(step, engine, state, {})
    checkpoints.close()
    assert saved_steps(tmp_path) == [3, 5]
    with pytest.raises(UserError, match="keep at least 1"):
        Retention(newest=0)


def test_checkpoints_that_a_run_does_not_continue_are_set_aside(copy, caplog):
    engine = runs.engine("one")
    checkpoints = CheckpointManager(copy, runs.MODEL)
    state, _, _ = checkpoints.restore(engine, 2)
    assert saved_steps(copy) == [2, 4]
    for step in (3, 4):
        checkpoints.save(step, engine, state, {"batches": step})
    checkpoints.close()
    assert saved_steps(copy) == [3, 4]
    assert saved_steps(copy / SET_ASIDE) == [4]
    assert "does not continue the checkpoint of step 4" in caplog.text
    assert CheckpointManager(copy, runs.MODEL).restore(engine)[1] == {"batches": 4}


def test_parts_that_newly_train_start_with_fresh_moments_and_frozen_ones_lose_theirs(saved, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    everything, projectors = runs.engine("one"), runs.engine("one", ("projectors",))
    trained = {"vision/projector", "generator/projector"}
    state, _, _ = CheckpointManager(saved[0], runs.MODEL).restore(projectors)
    held = runs.assembled(runs.local_arrays(state))
    assert {key for stage_state in state.optimizer_state.values() for key in stage_state} == trained
    assert "vision/norm is left out" in caplog.text and "vision/projector" not in caplog.text
    runs.assert_same(held, {name: array for name, array in saved[2][4].items() if name in held})

    checkpoints = CheckpointManager(tmp_path, runs.MODEL)
    checkpoints.save(4, projectors, state, {})
    state, _, _ = checkpoints.restore(everything)
    checkpoints.close()
    assert "vision/norm starts fresh" in caplog.text
    again, fresh = (
        runs.assembled(runs.local_arrays(engine_state)) for engine_state in (state, everything.initial_state())
    )
    kept = {name for name in again if "masters" in name or any(key in name for key in trained)}
    runs.assert_same({n: again[n] for n in kept}, {n: saved[2][4][n] for n in kept})
    runs.assert_same({n: again[n] for n in again.keys() - kept}, {n: fresh[n] for n in fresh.keys() - kept})
