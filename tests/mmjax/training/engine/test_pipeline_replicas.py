"""Plans whose units have pipeline replicas, against plain differentiation of the whole model on one device."""

import collections
import dataclasses

import jax
import numpy as np
import pytest

from configs.architectures import ModelConfig
from data.packing.phases.needed_rows import NeededRows
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.compilation import compile_evaluation, compile_step
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.replica_rows import rows_of_devices
from sharding.plans.plan import Plan
from sharding.runtime.communication_check import CommunicationError, check_communication
from sharding.runtime.op_recorder import OpRecorder
from tests.mmjax.training.engine.test_capacities import sparse_batch
from tests.mmjax.training.engine.test_compilation import compilations
from tests.mmjax.training.engines import (
    SETTINGS,
    STEP,
    TIED_EMBEDDINGS,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    noisy_parameters,
    noisy_state,
    reference,
    shared_engine,
)
from tests.mmjax.training.short_runs import assembled, assert_same, local_arrays
from tests.tiers import first_in_default
from tests.tiny_model import AUDIO, BACKBONE, TRANSFORMER_GENERATOR, VISION, tiny_batch
from tests.unit_plans import module_unit

EVERY_MODULE = ModelConfig((VISION, AUDIO), dataclasses.replace(BACKBONE, depth=2), (TRANSFORMER_GENERATOR,))
FOUR_LAYERS = ModelConfig((VISION,), dataclasses.replace(BACKBONE, depth=4), ())


def backbone(devices, layers, **fields):
    return module_unit("backbone", devices, layers=layers, **fields)


ON_PIPELINE_RANKS = Plan(
    (
        module_unit("vision", range(8), layers=(2,), tp=2, pipeline_replicas=4),
        backbone(range(8), (1, 2), dp=2, tp=2),
    ),
    microbatches=4,
)
UNEQUAL_SHARES = Plan(
    (
        module_unit(
            "vision",
            (0, 1, 2, 3, 4, 5),
            layers=(1, 1),
            name="eyes",
            recompute=("full", "none"),
            pipeline_replicas=3,
            replica_of_microbatch=(2, 0, 2, 1),
        ),
        module_unit("audio", (6, 7), layers=(2,), name="ears", dp=2),
        backbone((0, 1, 2, 3), (1, 1), tp=2),
        module_unit(
            "generator", (4, 5, 6, 7), name="painter", dp=2, pipeline_replicas=2, replica_of_microbatch=(0, 1, 1, 1)
        ),
    ),
    microbatches=4,
)
OWN_ROWS = Plan(
    (
        module_unit(
            "vision",
            range(8),
            layers=(1, 1),
            name="eyes",
            phase_rows=2,
            capacities=(4, 8),
            dp=2,
            fsdp=2,
            chunks=2,
            pipeline_replicas=4,
            extra_microbatches=2,
        ),
        backbone((0, 1, 2, 3), (1, 1, 1, 1), dp=2, chunks=2, extra_microbatches=2),
    ),
    microbatches=4,
    schedule="interleaved",
)
TIED_IN_COPIES = Plan(
    (
        module_unit("vision", (4, 5), layers=(2,), dp=2),
        backbone(range(8), (1, 2), dp=2, pipeline_replicas=2),
    ),
    microbatches=2,
)
SMALL = ModelConfig((dataclasses.replace(VISION, depth=1),), dataclasses.replace(BACKBONE, depth=1), ())
SMALL_COPIES = Plan(
    (
        module_unit("vision", (0, 1, 2, 3), dp=2, pipeline_replicas=2),
        backbone((2, 3), (1,), tp=2),
    ),
    microbatches=2,
)
SMALL_WHOLE = Plan((module_unit("vision", (0,)), backbone((1,), (1,))), microbatches=2)

PLANS = {
    "on the devices of each pipeline rank": (WITHOUT_GENERATOR, ON_PIPELINE_RANKS),
    "unequal shares of two stages, beside others": (EVERY_MODULE, UNEQUAL_SHARES),
    "tied embeddings in pipeline replicas of the backbone": (TIED_EMBEDDINGS, TIED_IN_COPIES),
}


@pytest.mark.parametrize("name", first_in_default(PLANS))
def test_losses_and_gradients_are_those_of_one_device(name):
    config, plan = PLANS[name]
    assert_step_of_one_device(shared_engine(plan, config))


@pytest.mark.layouts
def test_fully_sharded_chunks_with_rows_of_their_own_exchange_with_the_copy_that_takes_a_microbatch():
    engine, batch = shared_engine(OWN_ROWS, FOUR_LAYERS), sparse_batch(FOUR_LAYERS)
    assert engine.place_batch(batch, STEP).capacities == {"eyes": (1, None, 0, 0)}
    (channels,) = engine.exchanges.channels.values()
    channel_counts = collections.Counter(
        (channel.source_replica, channel.target_replica, channel.capacity) for channel in channels
    )
    assert channel_counts == collections.Counter(
        (pipeline_replica, 0, capacity) for pipeline_replica in range(4) for capacity in range(2)
    )
    assert_step_of_one_device(engine, batch=batch)
    assert_step_of_one_device(engine)


@pytest.mark.layouts
def test_a_frozen_encoder_runs_forward_alone_and_an_evaluation_agrees_too():
    settings = dataclasses.replace(SETTINGS, trainable=("backbone",))
    engine, batch = shared_engine(ON_PIPELINE_RANKS, WITHOUT_GENERATOR, settings), tiny_batch(WITHOUT_GENERATOR)
    assert all(
        pipeline_replica.largest.backward is None
        for pipeline_replica in engine.executor.stages["vision", 0].pipeline_replicas
    )
    assert_step_of_one_device(engine)
    weights = engine.executor.compute_weights(noisy_state(engine))
    results = engine.executor.evaluate(weights, engine.place_batch(batch, STEP))
    assert {stage: sorted(outputs) for stage, outputs in results.items()} == dict.fromkeys(engine.stages, [0, 1, 2, 3])
    losses, _ = reference(WITHOUT_GENERATOR)(noisy_parameters(WITHOUT_GENERATOR), batch)
    total_loss = sum(float(np.sum(loss["backbone"])) for loss, _ in results["backbone", 1].values())
    np.testing.assert_allclose(total_loss, losses["backbone"], rtol=1e-5)


def test_an_update_keeps_what_copies_share_and_divides_it_over_them():
    engine = shared_engine(ON_PIPELINE_RANKS, WITHOUT_GENERATOR)
    batch = engine.place_batch(tiny_batch(WITHOUT_GENERATOR), STEP)
    gradients, _ = engine.executor.gradients(noisy_state(engine), batch)
    after, _ = engine.executor.step(noisy_state(engine), batch)
    expected, _ = engine.executor.update(noisy_state(engine), gradients)
    jax.tree.map(np.testing.assert_array_equal, vars(after), vars(expected))
    weight = after.master_weights["vision", 0]["vision/blocks"]["000"]["mlp"]["up"]["kernel"]
    (held,) = {shard.data.size for shard in weight.addressable_shards}
    assert held * 8 == weight.size  # 4 pipeline replicas x tp 2
    for moment in jax.tree.leaves(after.optimizer_state["vision", 0]):
        if moment.shape == weight.shape:
            assert moment.sharding == weight.sharding


def test_each_copy_has_the_rows_of_its_microbatches_and_no_others():
    engine, batch = shared_engine(UNEQUAL_SHARES, EVERY_MODULE), tiny_batch(EVERY_MODULE)
    placed = engine.place_batch(batch, STEP)
    rows = batch["vision"]["patches"].reshape(4, 2, *batch["vision"]["patches"].shape[1:])
    for pipeline_replica, taken in enumerate(([1], [3], [0, 2])):
        arrays = placed.stages[("eyes", 0), pipeline_replica].arrays["vision"]
        np.testing.assert_array_equal(arrays["patches"], rows[taken])
    images = batch["generator"]["images"].reshape(4, 2, *batch["generator"]["images"].shape[1:])
    for pipeline_replica, taken in enumerate(([0], [1, 2, 3])):
        np.testing.assert_array_equal(
            placed.stages[("painter", 0), pipeline_replica].arrays["generator"]["images"], images[taken]
        )


@pytest.mark.parametrize(
    ("plan", "config", "devices", "rows", "phase_rows"),
    [
        (
            UNEQUAL_SHARES,
            EVERY_MODULE,
            (4,),
            (0, 1, 4, 5),
            None,
        ),  # microbatches 0 and 2 of the eyes' pipeline replica 2
        (UNEQUAL_SHARES, EVERY_MODULE, (4, 6), (0, 1, 2, 4, 5, 6), None),  # and half the clips
        (UNEQUAL_SHARES, EVERY_MODULE, (6, 7), None, None),
        (OWN_ROWS, FOUR_LAYERS, (5,), (), (5,)),  # one replica of pipeline replica 2
        (OWN_ROWS, FOUR_LAYERS, (0, 6, 7), (0, 2, 4, 6), (0, 6, 7)),  # and a replica of the backbone
    ],
)
def test_a_process_asks_for_the_rows_of_its_copies_alone(plan, config, devices, rows, phase_rows):
    engine = shared_engine(plan, config)
    needed = rows_of_devices(
        engine.stages,
        engine.executor.training_schedule.op_graph,
        engine.phases,
        8,
        frozenset(engine.devices[number] for number in devices),
    )
    assert needed == NeededRows(rows, {} if phase_rows is None else {"vision": phase_rows})


def test_weights_are_not_copied_from_all_copies_to_each():
    engine = shared_engine(ON_PIPELINE_RANKS, WITHOUT_GENERATOR)
    stage = engine.executor.stages["vision", 0]
    weights = engine.executor.compute_weights(noisy_state(engine))["vision", 0]

    def pointers(tree):
        return collections.Counter(
            shard.data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards
        )

    assert pointers(stage.meshes.split(weights)) == pointers(weights)
    gradients = [pipeline_replica.largest.zero_gradients() for pipeline_replica in stage.pipeline_replicas]
    assert pointers(stage.join_gradients(gradients)) == pointers(gradients)


@pytest.mark.layouts
def test_a_run_goes_on_with_or_without_copies_from_the_same_checkpoint(tmp_path):
    batch = tiny_batch(SMALL)
    replicated, whole = (shared_engine(plan, SMALL) for plan in (SMALL_COPIES, SMALL_WHOLE))
    for number, (saving, resuming) in enumerate(((replicated, whole), (whole, replicated))):
        state, _ = saving.executor.step(noisy_state(saving), saving.place_batch(batch, STEP))
        checkpoints = CheckpointManager(tmp_path / str(number), SMALL)
        checkpoints.save(1, saving, state, {})
        restored, _, _ = checkpoints.restore(resuming)
        checkpoints.close()
        assert_same(assembled(local_arrays(restored)), assembled(local_arrays(state)))
        losses = [
            np.sum(engine.executor.step(engine_state, engine.place_batch(batch, STEP + 1))[1].losses)
            for engine, engine_state in ((saving, state), (resuming, restored))
        ]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.layouts
def test_programs_of_all_copies_are_compiled_ahead_and_their_hops_tried():
    batch = tiny_batch(SMALL)
    engine = Engine(SMALL, SMALL_COPIES, batch, SETTINGS)
    with compilations() as compiled:
        compile_step(engine, lambda done, total: None)
        compile_evaluation(engine, lambda done, total: None)
    # Of 2 stages gather, reduce, loss_and_norm, update, optimizer_init; of their 3 pipeline replicas forward, backward,
    # 2 of zeros and evaluate.
    assert sum(compiled.values()) == 2 * 5 + 3 * 5 + 1, compiled
    check_communication(engine.executor)
    with compilations() as compiled:
        state, _ = engine.executor.step(engine.initial_state(), engine.place_batch(batch, STEP))
        engine.executor.evaluate(engine.executor.compute_weights(state), engine.place_batch(batch, STEP))
    assert not compiled


@pytest.mark.layouts
def test_the_communication_check_names_the_copies_of_a_hop_that_fails(monkeypatch):
    engine = shared_engine(UNEQUAL_SHARES, EVERY_MODULE)
    channel = next(
        channel
        for channel in engine.executor.channels
        if channel.name == "backbone>generator" and channel.target_replica
    )

    def fail():
        raise RuntimeError("no link")

    monkeypatch.setattr(channel.activation_hop, "send_zeros", fail)
    with pytest.raises(
        CommunicationError, match=r"the hop backbone>generator \(pipeline replica 1 of painter\) from unit"
    ):
        check_communication(engine.executor)


@pytest.mark.layouts
def test_a_recorded_step_says_when_each_copy_had_finished():
    engine = shared_engine(SMALL_COPIES, SMALL)
    placed = engine.place_batch(tiny_batch(SMALL), STEP)
    schedule = engine.executor.training_schedule
    with OpRecorder(engine.executor, engine.devices) as recorder:
        engine.executor.step(noisy_state(engine), placed, recorder)
    assert recorder.failure is None
    for op in schedule.ops:
        if op.kind in ("gather", "forward", "backward", "reduce", "global_norm", "update"):
            assert recorder.finished[op].keys() == schedule.op_graph.devices_of(op), op
