"""Verification: faults that were planted are found and named, and what is right passes."""

import dataclasses
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from data.data_config import DataConfig
from data.packing.pipeline import training_batches
from data.samples.sample_format import SampleFormat
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.verification import comparison
from mmjax.training.verification.comparison import compare_with_reference
from mmjax.training.verification.reference import run_reference, shuffle_rows
from mmjax.training.verification.reports import (
    Difference,
    LayoutReport,
    ModuleReport,
    print_report,
    print_verdict,
)
from mmjax.training.verification.unpacked_batches import unpacked_batch, unpacked_shape
from sharding.plans.plan import Plan
from tests.faulty_hop import faulty
from tests.small_vqa import SmallVQA
from tests.tiny_model import LATENT_GENERATOR, VISION, tiny_model
from tests.unit_plans import module_unit

DATA = DataConfig(rows=6, tokens=160, patches=32, images=3, samples=8)
MODEL = dataclasses.replace(
    tiny_model(tie_embeddings=True, vocabulary=48),
    encoders=(dataclasses.replace(VISION, patch=8),),
    generators=(dataclasses.replace(LATENT_GENERATOR, name="generator"),),  # with an autoencoder, which is frozen
)
PLAN = Plan(
    (
        module_unit("vision", (0, 1, 2), layers=(2,), dp=3),
        module_unit("backbone", (3, 4, 5, 6), layers=(1, 2), recompute=("none", "selective"), dp=2),
        module_unit("generator", (7,)),
    ),
)
SEED = 5


@functools.cache
def batch_and_samples():
    batches = training_batches(DATA, MODEL, SmallVQA("train"))
    batch = next(batches)
    samples = batches.load_samples(batch.sample_ids[batch.sample_ids >= 0])
    batches.close()
    return batch, samples


@functools.cache
def reference():
    batches = training_batches(DATA, MODEL, SmallVQA("train"))
    with jax.default_matmul_precision("highest"):
        done = run_reference(MODEL, DATA, batches, 2, EngineSettings(seed=SEED))
    batches.close()
    return done


def first_step():
    both = reference()
    return dataclasses.replace(both, inputs=both.inputs[:1], steps=both.steps[:1])


@functools.cache
def tied_over_two_stages():
    return Engine(MODEL, PLAN, reference().batch_spec, reference().settings)


@pytest.mark.layouts
def test_a_correct_layout_passes_with_embeddings_tied_across_stages():
    assert tied_over_two_stages().executor.tied_parameters
    reports = compare_with_reference(tied_over_two_stages(), reference(), "float32")
    assert all(report.ok for report in reports.values()), reports
    assert reports["vision"].loss is None
    assert reports["backbone"].loss is not None and reports["generator"].loss is not None
    assert max(report.gradient.error for report in reports.values()) > 0


def planted(monkeypatch, node, **changes):
    """The engine with functions of one stage wrapped."""
    engine = tied_over_two_stages()
    stage = engine.executor.stages[node]
    wrapped = {name: functools.partial(change, getattr(stage, name)) for name, change in changes.items()}
    monkeypatch.setitem(engine.executor.stages, node, dataclasses.replace(stage, **wrapped))
    return engine


def wrong(reports):
    return {name for name, report in reports.items() if not report.ok}


@pytest.mark.layouts
def test_a_doubled_gradient_is_found_and_named(monkeypatch):
    def doubled(reduce, gradients):
        found = reduce(gradients)
        layers = found["vision/projector"]
        return {**found, "vision/projector": jax.tree.map(lambda leaf: 2 * leaf, layers)}

    reports = compare_with_reference(planted(monkeypatch, ("vision", 0), reduce=doubled), first_step(), "float32")
    assert wrong(reports) == {"vision"}
    assert reports["vision"].gradient.error == pytest.approx(1, rel=1e-3)
    assert reports["vision"].gradient.what.startswith("projector/000/mlp/")


@pytest.mark.layouts
def test_a_missing_reduction_is_found_and_named(monkeypatch):
    def first_instance_only(reduce, gradients):
        return reduce(jax.tree.map(lambda leaf: leaf.at[1:].set(0), gradients))

    reports = compare_with_reference(
        planted(monkeypatch, ("backbone", 0), reduce=first_instance_only), first_step(), "float32"
    )
    assert wrong(reports) == {"backbone"}
    assert reports["backbone"].loss.error <= reports["backbone"].loss.tolerance
    assert reports["backbone"].gradient.error > 0.1
    assert reports["backbone"].gradient.what.startswith(("blocks/000/", "embed/"))


@pytest.mark.layouts
def test_a_lost_gradient_of_a_tied_embedding_is_found_and_named(monkeypatch):
    engine = tied_over_two_stages()
    (share,) = engine.executor.tied_parameters
    lost = dataclasses.replace(share, gradient_hop=faulty(share.gradient_hop, jnp.zeros_like))
    monkeypatch.setattr(engine.executor, "tied_parameters", (lost,))
    reports = compare_with_reference(engine, first_step(), "float32")
    assert wrong(reports) == {"backbone"}
    assert reports["backbone"].gradient.what == "embed/000/embedding"


@pytest.mark.layouts
def test_samples_permuted_in_one_modules_batch_are_found(monkeypatch):
    engine = tied_over_two_stages()
    place = engine.place_batch

    def swapped(arrays, step):
        return place({**arrays, "vision": {name: array[::-1] for name, array in arrays["vision"].items()}}, step)

    monkeypatch.setattr(engine, "place_batch", swapped)
    reports = compare_with_reference(engine, first_step(), "float32")
    assert {"vision", "backbone"} <= wrong(reports)
    assert reports["backbone"].loss.excess > 1


@pytest.mark.layouts
def test_samples_permuted_in_a_gradient_hop_are_found_in_the_module_it_leads_to(monkeypatch):
    engine = tied_over_two_stages()

    def reversed_rows(array):
        return jax.device_put(array[::-1], array.sharding)

    channels = [
        dataclasses.replace(each, gradient_hop=faulty(each.gradient_hop, reversed_rows))
        if each.name == "vision>backbone"
        else each
        for each in engine.executor.channels
    ]
    between = {(each.source, each.target): [each] for each in channels}
    monkeypatch.setattr(engine.executor.microbatch_ops, "channels_between", between)
    reports = compare_with_reference(engine, first_step(), "float32")
    assert wrong(reports) == {"vision"}


@pytest.mark.layouts
def test_noise_keyed_by_position_instead_of_sample_is_found(monkeypatch):
    engine = tied_over_two_stages()
    place = engine.place_batch

    def numbered(arrays, step):
        samples = np.arange(arrays["generator"]["samples"].size, dtype=np.int32)
        of = {**arrays["generator"], "samples": samples.reshape(arrays["generator"]["samples"].shape)}
        return place({**arrays, "generator": of}, step)

    monkeypatch.setattr(engine, "place_batch", numbered)
    reports = compare_with_reference(engine, first_step(), "float32")
    assert reports["generator"].loss.excess > 1 and not reports["generator"].ok


# ---------------------------------------------------------------------- the reference's own batch


def test_every_sample_has_a_row_of_its_own_with_all_its_arrays():
    batch, samples = batch_and_samples()
    form = SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    shape = unpacked_shape([samples], form)
    arrays = unpacked_batch(samples, MODEL, DATA, form, shape)
    backbone = arrays["backbone"]
    assert backbone["tokens"].shape == (len(samples), max(len(sample.layout.tokens) for sample in samples))
    assert np.count_nonzero(backbone["segments"]) == batch.real_and_capacity["backbone"][0]
    assert np.count_nonzero(arrays["vision"]["segments"]) == batch.real_and_capacity["vision"][0]
    assert np.count_nonzero(arrays["generator"]["weights"]) == batch.real_and_capacity["generator"][0] > 0
    assert np.count_nonzero(backbone["weights"]) == batch.targets
    assert backbone["weights"].sum() == pytest.approx(DATA.language_weight, rel=1e-5)
    assert arrays["generator"]["weights"].sum() == pytest.approx(DATA.generator_weight, rel=1e-5)
    for row, sample in enumerate(samples):
        np.testing.assert_array_equal(
            backbone["vision_index"][row][: len(sample.layout.tokens)], sample.layout.encoder_indices["patches"]
        )
        assert set(arrays["generator"]["samples"][row][: len(sample.target_images)].tolist()) <= {sample.id}


def test_shuffling_moves_whole_rows():
    batch, _ = batch_and_samples()
    other = shuffle_rows(batch, seed=1)
    assert not np.array_equal(other.sample_ids, batch.sample_ids)
    order = [batch.sample_ids.tolist().index(row) for row in other.sample_ids.tolist()]
    assert sorted(order) == list(range(DATA.rows))
    for module, arrays in batch.arrays.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(other.arrays[module][name], array[order])


def test_a_batch_without_images_has_room_for_one_of_no_weight():
    batches = training_batches(DATA, MODEL, SmallVQA("train"))
    text = batches.load_samples([80, 81])  # after 40 questioned and 40 described pictures
    batches.close()
    assert {sample.kind for sample in text} == {"text"}
    form = SampleFormat.for_model(MODEL, DATA.encoder_capacities)
    shape = unpacked_shape([text], form)
    arrays = unpacked_batch(text, MODEL, DATA, form, shape)
    assert (shape.lengths["patches"], shape.images) == (4, 1)
    assert not arrays["vision"]["segments"].any() and not arrays["generator"]["weights"].any()


RIGHT = ModuleReport(Difference(1e-7, 1e-5), Difference(3e-6, 2e-4, "blocks/000/mlp/up/kernel"))
WRONG = ModuleReport(None, Difference(1.0, 2e-4, "projector/000/mlp/up/bias"))


def printed(reports):
    console = Console(file=io.StringIO(), width=160)
    for report in reports:
        print_report(report, console)
    print_verdict(reports, console)
    return console.file.getvalue()


def test_a_wrong_module_is_named_with_its_worst_parameter():
    text = printed(
        [LayoutReport("dp 2", {"backbone": RIGHT}), LayoutReport("tp 2", {"vision": WRONG, "backbone": RIGHT})]
    )
    (row,) = [line.split() for line in text.splitlines() if "WRONG" in line]
    assert row == [
        "vision",
        "-",
        "-",
        "1.0e+00",
        "-",
        "WRONG",
        *["gradient:", "at", "most", "2.0e-04", "projector/000/mlp/up/bias"],
    ]
    assert "1 of 2 layouts are wrong: tp 2" in text
    assert text.index("dp 2") < text.index("tp 2") < text.index("WRONG")


def test_the_tolerances_that_are_told_are_those_of_the_differences(monkeypatch):
    told = (
        "Allowed: loss and evaluation 1.0e-05, gradient 2.0e-04, each plus 3 times the rounding error of one device; "
        "update 1.0e-04."
    )
    assert comparison.tolerances_in_words().endswith(told)
    monkeypatch.setattr(comparison, "LOSS_TOLERANCE", 5e-3)
    assert "evaluation 5.0e-03" in comparison.tolerances_in_words()


def test_agreement_of_all_layouts_is_printed():
    for layouts, verdict in ((("dp 2",), "the layout agrees"), (("dp 2", "tp 2"), "all 2 layouts agree")):
        text = printed([LayoutReport(name, {"backbone": RIGHT}) for name in layouts])
        assert f"\n{verdict} with the single-device reference" in text and "WRONG" not in text


def test_the_worst_loss_and_gradient_of_several_steps_count():
    worse = RIGHT.worse(ModuleReport(Difference(2e-7, 1e-5), Difference(1e-6, 2e-4)))
    assert (worse.loss.error, worse.gradient.error) == (2e-7, 3e-6)
