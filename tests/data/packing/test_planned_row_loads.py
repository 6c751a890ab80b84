"""Loads from planned sizes are those of the batches, and nothing is decoded for them."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from configs.architectures import ModelConfig
from configs.attention.attention_windows import AttentionWindows
from data.data_config import DataConfig
from data.datasets.dataset import RandomAccessSamples
from data.packing.pipeline import training_batches, training_pipeline
from data.packing.planned_row_loads import planned_row_loads, planned_rows
from data.samples.encoder_format import EncoderInputs
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from sharding.specs.layers.layer import LoadColumn
from sharding.specs.modules import module_graph
from tests.filled_row_loads import filled_row_loads
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model

DATA = DataConfig(rows=8, tokens=160, patches=80, images=3, samples=8, window=64)
PLAIN = tiny_model(vocabulary=48)
BATCHES = 3


def with_vision(**fields: object) -> ModelConfig:
    (vision,) = PLAIN.encoders
    return dataclasses.replace(PLAIN, encoders=(dataclasses.replace(vision, patch=16, **fields),))


@pytest.mark.parametrize(
    ("model", "exactly_local"),
    [
        pytest.param(with_vision(), (), id="whole images"),
        pytest.param(with_vision(class_token=True), (), id="class token"),
        pytest.param(with_vision(windows=AttentionWindows(2, (1,))), ("vision",), id="windows of square images"),
        pytest.param(
            dataclasses.replace(
                with_vision(),
                backbone=dataclasses.replace(
                    PLAIN.backbone, attention_pattern=("local", "global", "local"), attention_window=8
                ),
            ),
            ("backbone",),
            id="sliding window",
        ),
    ],
)
def test_loads_of_planned_rows_are_those_of_the_batches(model, exactly_local):
    graph = module_graph(model)
    pipeline = training_pipeline(DATA, model, SmallVQA("train"))
    rows = planned_rows(pipeline, BATCHES * DATA.rows)
    planned = planned_row_loads(rows, pipeline.sample_index.sample_format, graph)
    batches = training_batches(DATA, model, SmallVQA("train"))
    try:
        by_batch = [filled_row_loads(next(batches).arrays, graph) for _ in range(BATCHES)]
    finally:
        batches.close()
    decoded = {name: np.concatenate([loads[name] for loads in by_batch]) for name in graph.names}
    assert planned.keys() == decoded.keys() == set(graph.names)
    for name, loads in decoded.items():
        assert loads[:, LoadColumn.ITEMS].any()
        np.testing.assert_allclose(planned[name], loads, rtol=1e-12)
    for name in graph.names:
        assert planned[name][:, LoadColumn.LOCAL_PAIRS].any() == (name in exactly_local)


class UndecodableVQA(SmallVQA):
    """Images of which the sizes are known, and that nobody may decode."""

    def samples_by_kind(self, sample_format: SampleFormat) -> Mapping[str, RandomAccessSamples]:
        return {
            kind: [self._without_pixels(samples[index]) for index in range(len(samples))]
            for kind, samples in super().samples_by_kind(sample_format).items()
        }

    def _without_pixels(self, metadata: SampleMetadata) -> SampleMetadata:
        def load() -> EncoderInputs:
            raise AssertionError("an image was decoded")

        return dataclasses.replace(metadata, items=[dataclasses.replace(item, load=load) for item in metadata.items])


def test_rows_are_planned_without_decoding():
    pipeline = training_pipeline(DATA, with_vision(), UndecodableVQA("train", images=8))
    rows = planned_rows(pipeline, 20)
    assert len(rows) == 20 and any(sizes.items["patches"] for row in rows for sizes in row)
