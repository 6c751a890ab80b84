"""Whole steps on plans against plain differentiation of the whole model on one device."""

import dataclasses
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import ExpertsConfig, LatentAttentionConfig, ModelConfig
from configs.attention.attention_kinds import AttentionTemperature
from configs.attention.attention_windows import AttentionWindows
from configs.attention.vision_rope import VisionRope
from configs.modules.projectors import (
    AdapterProjectorConfig,
    LinearProjectorConfig,
    MLPProjectorConfig,
    ResamplerConfig,
)
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.stage_layouts import trees_by_module, trees_by_stage
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.training.engines import (
    BACKBONE_UNIT,
    STEP,
    TIED_EMBEDDINGS,
    TWO_UNITS,
    WITHOUT_GENERATOR,
    assert_step_of_one_device,
    gradients_and_summary,
    noisy_parameters,
    noisy_state,
    reference,
    shared_engine,
    single_unit_plan,
)
from tests.tiers import first_in_default
from tests.tiny_model import AUDIO, BACKBONE, GENERATOR, LATENT_GENERATOR, VISION, tiny_batch
from tests.unit_plans import module_unit


@pytest.mark.parametrize(("microbatches", "recompute"), first_in_default([(2, "selective"), (1, "none"), (4, "full")]))
def test_neither_accumulation_nor_recomputation_changes_a_gradient(microbatches, recompute):
    assert_step_of_one_device(
        shared_engine(single_unit_plan(WITHOUT_GENERATOR, microbatches, recompute), WITHOUT_GENERATOR)
    )


@pytest.mark.layouts
def test_two_encoders_and_two_generators_on_shared_devices_and_stages_that_span_modules():
    """One generator has an autoencoder, which is frozen; the other draws pixels."""
    adapted = dataclasses.replace(VISION, projector=AdapterProjectorConfig(width=6))
    averaged = LinearProjectorConfig(norm=True)
    other = dataclasses.replace(VISION, name="document", width=16, depth=1, ffn=8, projector=averaged)
    config = ModelConfig((adapted, other), BACKBONE, (GENERATOR, LATENT_GENERATOR))
    plan = Plan(
        (
            UnitPlan(
                "eyes",
                ("vision", "backbone"),
                (3, 2, 1, 0),
                layers=(3, 2),
                recompute=("full", "none"),
                parallelism=Parallelism(dp=2),
            ),
            module_unit("document", (4, 5), recompute=("selective",), tp=2),
            module_unit("generator", (0,), recompute=("full",)),
            module_unit("painter", (4, 5, 6, 7), dp=2, tp=2),
        ),
        microbatches=2,
        schedule="gpipe",
    )
    engine = shared_engine(plan, config)
    assert_step_of_one_device(engine)
    assert "painter/vae" not in engine.stages["painter", 0].trained_keys


@pytest.mark.layouts
def test_an_audio_encoder_split_over_stages_and_ranks_beside_another_feeds_a_backbone_without_gates():
    """Both encoders have options of published ones, and the backbone a newline vector."""
    vision = dataclasses.replace(
        VISION,
        class_token=True,
        registers=2,
        positions="learned",
        grid=3,
        interpolation="bicubic_antialiased",
        patch_bias=False,
        input_norm=True,
        final_norm=False,
        rope=VisionRope(100.0, grid=5),
        norms="after",
        qk_norm="width",
        inner_norms=("attention", "mlp"),
        layer_scale=0.5,
        activation="quick_gelu",
        projector=MLPProjectorConfig(norm=True, activation="gelu"),
    )
    audio = dataclasses.replace(
        AUDIO, norm="rmsnorm", biases=("mlp",), qk_norm="head", parallel_block=True, projector=ResamplerConfig(heads=4)
    )
    config = ModelConfig((vision, audio), dataclasses.replace(BACKBONE, depth=1, gated=False, newline=True), ())
    plan = Plan(
        (
            module_unit("vision", (0, 1, 2, 3), layers=(2,), dp=2, tp=2, collectives="ring"),
            module_unit(
                "audio",
                (4, 5, 6, 7),
                layers=(1, 1),
                recompute=("full", "none"),
                dp=1,
                tp=2,
                collectives="sequence_parallel",
            ),
            module_unit("backbone", (2, 3), tp=2),
        ),
        microbatches=2,
    )
    assert_step_of_one_device(shared_engine(plan, config))


@pytest.mark.layouts
def test_windows_chunks_and_averages_on_stages_that_cut_the_encoders():
    """Which layers attend within windows is known by their numbers, which a stage begins anywhere."""
    vision = dataclasses.replace(
        VISION,
        depth=3,
        positions="none",
        rope=VisionRope(100.0),
        windows=AttentionWindows(2, full_layers=(1,)),
        projector=MLPProjectorConfig(activation="gelu", hidden="positions"),
    )
    audio = dataclasses.replace(AUDIO, pool=2, chunk=2, projector=LinearProjectorConfig())
    config = ModelConfig((vision, audio), dataclasses.replace(BACKBONE, depth=1), ())
    plan = Plan(
        (
            module_unit("vision", (0, 1, 2, 3), layers=(1, 2), recompute=("full", "none"), tp=2),
            module_unit(
                "audio",
                (4, 5, 6, 7),
                layers=(1, 1),
                recompute=("none", "selective"),
                tp=2,
                collectives="sequence_parallel",
            ),
            module_unit("backbone", (2, 3), tp=2),
        ),
        microbatches=2,
    )
    assert_step_of_one_device(shared_engine(plan, config))


@pytest.mark.layouts
def test_local_and_global_layers_with_norms_on_both_sides_on_stages_that_begin_with_either():
    """What Gemma 2 and 3 and gpt-oss have, each an option of the block."""
    gemma = dataclasses.replace(
        BACKBONE,
        depth=3,
        attention_width=24,
        norms="both",
        norm_offset=True,
        score_scale=0.3,
        score_softcap=2.0,
        qk_norm="head",
        attention_pattern=("local", "global"),
        attention_window=3,
        local_rope_base=100.0,
        embedding_scale=3.0,
        attention_sinks=True,
        logit_softcap=4.0,
        activation="gelu_tanh",
    )
    config = ModelConfig((VISION,), gemma, ())
    plan = Plan(
        (
            module_unit("vision", (0,), layers=(VISION.depth,)),
            module_unit(
                "backbone",
                (4, 5, 6, 7),
                layers=(1, 2),
                recompute=("none", "full"),
                tp=2,
                collectives="sequence_parallel",
            ),
        ),
        microbatches=2,
    )
    assert_step_of_one_device(shared_engine(plan, config))


@pytest.mark.layouts
def test_chunked_and_unrotated_layers_in_runs_of_one_with_experts_between():
    """What Llama 4 has: which layers attend in which way is known by their numbers, not by those in their run."""
    backbone = dataclasses.replace(
        BACKBONE,
        experts=ExpertsConfig(count=4, top_k=1, ffn=12, interval=2),
        qk_norm="rotated",
        attention_pattern=("chunked", "unrotated"),
        attention_chunk=3,
        attention_temperature=AttentionTemperature(0.7, 2),
    )
    assert_step_of_one_device(shared_engine(TWO_UNITS, ModelConfig((VISION,), backbone, ())))


@pytest.mark.layouts
@pytest.mark.parametrize(("collectives", "query_rank"), [("sequence_parallel", 6), ("all_reduce", 0)])
def test_latent_attention_on_two_stages_of_two_tensor_ranks(collectives, query_rank):
    """Tensor ranks have whole latent vectors, of which each expands its own heads; or they divide the positions."""
    latent = LatentAttentionConfig(query_rank=query_rank, kv_rank=8, nope_width=4, rope_width=2, value_width=3)
    config = ModelConfig((), dataclasses.replace(BACKBONE, kv_heads=4, latent_attention=latent), ())
    unit = dataclasses.replace(
        BACKBONE_UNIT,
        devices=(0, 1, 2, 3),
        parallelism=dataclasses.replace(BACKBONE_UNIT.parallelism, collectives=collectives),
    )
    assert_step_of_one_device(shared_engine(Plan((unit,), 2), config))


@pytest.mark.layouts
def test_positions_along_three_axes():
    backbone = dataclasses.replace(BACKBONE, width=32, rope_sections=(2, 1, 1), rope_interleaved=True)
    assert_step_of_one_device(shared_engine(TWO_UNITS, ModelConfig((VISION,), backbone, ())))


@pytest.mark.layouts
def test_blocks_of_tokens_that_attend_both_ways():
    config = ModelConfig((VISION,), dataclasses.replace(BACKBONE, bidirectional="images"), ())
    assert_step_of_one_device(shared_engine(TWO_UNITS, config))


@pytest.mark.layouts
@pytest.mark.parametrize("experts", [None, ExpertsConfig(count=4, ffn=16, dense_layers=1)], ids=["plain", "experts"])
def test_features_of_encoder_layers_on_stages_that_cut_encoder_and_backbone(experts):
    """Taps cross from one stage of the encoder to the next; tensor ranks divide the backbone's positions."""
    vision = dataclasses.replace(VISION, depth=3, deepstack_layers=(0, 2))
    config = ModelConfig((vision,), dataclasses.replace(BACKBONE, depth=4, experts=experts), ())
    units = (
        module_unit("vision", (0, 1), layers=(1, 2), recompute=("full", "none")),
        dataclasses.replace(
            BACKBONE_UNIT,
            layers=(1, 1),
            parallelism=dataclasses.replace(BACKBONE_UNIT.parallelism, collectives="sequence_parallel"),
        ),
    )
    assert_step_of_one_device(shared_engine(Plan(units, 2), config))


def test_an_embedding_tied_over_two_stages_has_one_gradient_one_master_and_counts_once_in_the_norm():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    assert_step_of_one_device(engine)  # the reference's tree has the embedding once, and the norm is that of the tree
    state = noisy_state(engine)
    assert "embedding" in state.master_weights["backbone", 0]["backbone/embed"]["000"]
    assert set(state.master_weights["backbone", 1]["backbone/head"]["000"]) == {"norm"}
    assert set(trees_by_module(state.master_weights)["backbone"]["head"]["000"]) == {"norm"}


def test_virtual_stages_on_the_same_devices_tie_an_embedding_and_evaluate():
    layers = (2, 1, 1, 1)  # vision | embed, backbone | backbone | backbone, head; the second and fourth share devices
    unit = UnitPlan(
        "chain",
        ("vision", "backbone"),
        (0, 1, 2, 3),
        layers=layers,
        recompute=("none",) * 4,
        parallelism=Parallelism(tp=2, chunks=2, collectives="ring"),
    )
    engine = shared_engine(Plan((unit,), microbatches=2, schedule="interleaved"), TIED_EMBEDDINGS)
    assert_step_of_one_device(engine)
    batch = tiny_batch(TIED_EMBEDDINGS)
    results = engine.executor.evaluate(
        engine.executor.compute_weights(noisy_state(engine)), engine.place_batch(batch, STEP)
    )
    losses, _ = reference(TIED_EMBEDDINGS)(noisy_parameters(TIED_EMBEDDINGS), batch)
    np.testing.assert_allclose(
        sum(float(np.sum(loss["backbone"])) for loss, _ in results["chain", 3].values()), losses["backbone"], rtol=1e-5
    )


def test_a_tied_weight_equals_its_owners_after_every_update():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    state = noisy_state(engine)
    before = np.asarray(state.master_weights["backbone", 0]["backbone/embed"]["000"]["embedding"])
    for step in range(2):
        state, _ = engine.executor.step(state, engine.place_batch(tiny_batch(TIED_EMBEDDINGS, seed=step), step))
    master = np.asarray(state.master_weights["backbone", 0]["backbone/embed"]["000"]["embedding"])
    weights = engine.executor.compute_weights(state)
    assert np.max(np.abs(master - before)) > 1e-3
    np.testing.assert_array_equal(weights["backbone", 0]["backbone/embed"]["embedding"], master)
    np.testing.assert_array_equal(weights["backbone", 1]["backbone/head"]["embedding"], master)


GATHERED = dataclasses.replace(
    TWO_UNITS, units=(TWO_UNITS.units[0], TWO_UNITS.units[1].with_parallelism(collectives="sequence_parallel"))
)


def test_bfloat16_gradients_are_as_good_as_those_of_one_device():
    half = dataclasses.replace(TIED_EMBEDDINGS, dtype="bfloat16")
    with jax.numpy_dtype_promotion("standard"):
        engine, batch = shared_engine(GATHERED, half), tiny_batch(half)
    _, exact = reference(TIED_EMBEDDINGS)(noisy_parameters(TIED_EMBEDDINGS), batch)
    with jax.numpy_dtype_promotion("standard"):  # jax's own attention mixes precisions in its derivative
        _, coarse = reference(half)(noisy_parameters(half), batch)
        gradients, _ = gradients_and_summary(engine, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.float32)}

    def error(tree):
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(exact), strict=True)
        return np.sqrt(sum(np.sum(np.square(np.asarray(one) - np.asarray(other))) for one, other in pairs))

    assert 0 < error(gradients) < 1.5 * error(coarse)


def test_bfloat16_trains():
    half = dataclasses.replace(TIED_EMBEDDINGS, dtype="bfloat16")
    with jax.numpy_dtype_promotion("standard"):
        engine = shared_engine(GATHERED, half)
        state, batch, losses = noisy_state(engine), tiny_batch(half), []
        for step in range(8):
            state, decision = engine.executor.step(state, engine.place_batch(batch, step))
            losses.append(float(np.sum(decision.losses)))
    assert losses[-1] < 0.9 * losses[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.master_weights)} == {jnp.dtype(jnp.float32)}


def test_a_step_leaves_no_arrays_behind():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    placed = engine.place_batch(tiny_batch(TIED_EMBEDDINGS), STEP)

    def live(state):
        jax.block_until_ready((state.master_weights, state.optimizer_state))
        gc.collect()
        return len(jax.live_arrays()), sum(array.nbytes for array in jax.live_arrays())

    state, decision = engine.executor.step(noisy_state(engine), placed)
    counts = []
    for _ in range(3):
        state, decision = engine.executor.step(state, placed)
        counts.append(live(state))
    assert counts[0] == counts[1] == counts[2]
    jax.block_until_ready(decision)


def test_evaluation_gives_the_losses_of_the_step():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    state, batch = noisy_state(engine), tiny_batch(TIED_EMBEDDINGS)
    results = engine.executor.evaluate(engine.executor.compute_weights(state), engine.place_batch(batch, STEP))
    losses, _ = reference(TIED_EMBEDDINGS)(noisy_parameters(TIED_EMBEDDINGS), batch)
    outputs = results["backbone", 1].values()
    np.testing.assert_allclose(
        sum(float(np.sum(loss["backbone"])) for loss, _ in outputs), losses["backbone"], rtol=1e-5
    )
    assert [judged["backbone/correct"].shape for _, judged in outputs] == [(4, 12)] * 2


def test_positions_that_the_tensor_ranks_do_not_divide_are_refused():
    eyes, mind = TWO_UNITS.units
    ringed = dataclasses.replace(TWO_UNITS, units=(eyes, mind.with_parallelism(collectives="ring")))
    batch = {name: dict(arrays) for name, arrays in tiny_batch(WITHOUT_GENERATOR, 4).items()}
    batch["backbone"] = {name: array[:, :11] for name, array in batch["backbone"].items()}
    message = r'backbone: its 2 tensor ranks do not divide the 11 positions .*"ring".* multiple of 2 .*"all_reduce"'
    with pytest.raises(PlanError, match=message):
        Engine(WITHOUT_GENERATOR, ringed, batch, EngineSettings())


def test_trees_by_stage_and_by_module_are_inverses():
    engine = shared_engine(TWO_UNITS, TIED_EMBEDDINGS)
    tree = noisy_parameters(TIED_EMBEDDINGS)
    cut = trees_by_stage(tree, {stage_id: stage.layout for stage_id, stage in engine.stages.items()})
    assert {node: set(keys) for node, keys in cut.items()} == {
        ("vision", 0): {"vision/embed", "vision/blocks", "vision/norm", "vision/projector"},
        ("backbone", 0): {"backbone/embed", "backbone/blocks"},
        ("backbone", 1): {"backbone/blocks", "backbone/head"},
    }
    assert set(cut["backbone", 1]["backbone/blocks"]) == {"001", "002"}
    jax.tree.map(np.testing.assert_array_equal, trees_by_module(cut), tree)
