import dataclasses

import numpy as np
import pytest

from data.data_config import RowCapacity
from data.datasets.dataset import SampleIndex
from data.datasets.easy_vqa import text_sample
from data.datasets.from_records import from_records
from data.errors import BadSampleError, DataError
from data.media.clips.video_sampling import VideoSampling
from data.packing.rows.refusals import Refusal
from data.report.dataset_statistics import collect_statistics, flops_per_unit, quadratic_cost_weights
from data.samples.image_format import PatchFormat
from data.samples.sample_format import SampleFormat
from data.text.prompt_format import PromptFormat
from data.text.video_layout import VideoLayout
from data.text.word_tokenizer import WordTokenizer
from tests.clips import clip_file
from tests.small_vqa import SmallVQA
from tests.tiny_model import AUDIO, VISION, tiny_model

ROOMY = RowCapacity(tokens=1000, lengths={"patches": 1000}, images=4, samples=16)


@dataclasses.dataclass
class Texts:
    """Text samples of 4, 5, 6... tokens; those named are bad."""

    counts: dict[str, int]
    bad: tuple[int, ...] = ()
    tokenizer: WordTokenizer = WordTokenizer(("a", "b"))
    evaluated_kinds: tuple[str, ...] = ()
    prompt_format: PromptFormat = PromptFormat()

    def samples_by_kind(self, form):
        return {kind: _Texts(self, count, form) for kind, count in self.counts.items()}


class _Texts:
    def __init__(self, source, count, form):
        self.source, self.count, self.form = source, count, form

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.source.bad:
            raise BadSampleError(f"line {index}", "cut in the middle")
        return text_sample("a " * index, "b", self.source.tokenizer, self.form)


def surveyed(source, capacity, shares, samples):
    return collect_statistics(SampleIndex(source, SampleFormat()), capacity, shares, samples, seed=0)


def test_kinds_are_drawn_by_share_without_early_repetition():
    statistics = surveyed(Texts({"short": 3, "long": 40, "idle": 2}), ROOMY, {"short": 2.0, "long": 1.0}, 10)
    assert statistics.kinds == {"short": 7, "long": 3}
    assert statistics.counts == {"short": 3, "long": 40, "idle": 2}
    assert len(statistics.fits) == 10 and {len(units) for units in statistics.units.values()} == {10}
    assert statistics.fits.all() and statistics.refused == ()
    seen, index = [], SampleIndex(Texts({"short": 3}), SampleFormat())
    only = collect_statistics(index, ROOMY, {"short": 1.0}, 7, 0, lambda *counts: seen.append(counts))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert sorted(np.unique(only.columns("tokens"), return_counts=True)[1].tolist()) == [2, 2, 3]


def test_refused_samples_are_listed_once_and_unreadable_ones_left_out():
    statistics = surveyed(
        Texts({"text": 4}, bad=(1,)), RowCapacity(tokens=6, lengths={"patches": 0}, samples=4), {"text": 1.0}, 8
    )
    assert sorted(statistics.columns("tokens")[:, 0].tolist()) == [4, 4, 6, 6, 7, 7]
    assert sorted(statistics.columns("tokens")[statistics.fits, 0].tolist()) == [4, 4, 6, 6]
    assert sorted(statistics.refused) == [
        Refusal("oversized", "text", "sample 3", "7 tokens where a row holds 6; raise the row's capacity"),
        Refusal("unreadable", "text", "line 1", "cut in the middle"),
    ]


def test_data_sets_without_readable_samples_are_refused():
    with pytest.raises(DataError, match="not one of 5 samples can be read; the first: line 0: cut in the middle"):
        surveyed(Texts({"text": 1}, bad=(0,)), ROOMY, {"text": 1.0}, 5)
    with pytest.raises(DataError, match="0 samples"):
        surveyed(Texts({"text": 1}), ROOMY, {"text": 1.0}, 0)


def test_tokens_are_counted_by_modality_and_images_by_item():
    shares = {"vqa": 1.0, "description": 1.0, "text": 1.0}
    statistics = surveyed(SmallVQA("train", 4), ROOMY, shares, 12)
    assert (statistics.columns(*statistics.token_modalities).sum(axis=1) == statistics.columns("tokens")[:, 0]).all()
    pictures = statistics.columns("encoder_images")[:, 0] > 0
    assert statistics.columns("patches", "vision", "encoder_images")[pictures].tolist() == [[64, 16, 1]] * 4
    drawn = statistics.columns("images")[:, 0] > 0
    assert statistics.columns("images", "generation")[drawn].tolist() == [[1, 4]] * 4
    assert not (pictures & drawn).any()


def test_work_grows_with_the_module_and_only_with_it():
    model = tiny_model()
    form = SampleFormat.for_model(model, {"patches": 8})
    work, deeper = (flops_per_unit(config, form) for config in (model, tiny_model(depth=6)))
    assert set(work) == {"tokens", "patches", "images"} and min(work.values()) > 0
    assert deeper["tokens"] > work["tokens"]
    assert {name: deeper[name] for name in ("patches", "images")} == {
        name: work[name] for name in ("patches", "images")
    }


def test_a_frame_is_half_of_a_position():
    model = dataclasses.replace(tiny_model(), encoders=(AUDIO,), generators=())
    work = flops_per_unit(model, SampleFormat.for_model(model, {"frames": 8}))
    deeper = dataclasses.replace(model, encoders=(dataclasses.replace(AUDIO, depth=AUDIO.depth + 1),))
    more = flops_per_unit(deeper, SampleFormat.for_model(deeper, {"frames": 8}))
    layer = 4 * AUDIO.width**2 + 2 * AUDIO.width * AUDIO.ffn  # multiply-adds of a position
    assert set(work) == {"tokens", "frames"}
    assert more["frames"] - work["frames"] == 2 * layer / 2


@pytest.mark.parametrize(("encoder", "length"), [(VISION, 8), (AUDIO, 16)])
def test_a_square_weight_divides_the_flops_of_an_item_as_the_encoder_has_them(encoder, length):
    model = dataclasses.replace(tiny_model(), encoders=(encoder,), generators=())
    form = SampleFormat.for_model(model, {encoder.field: length})
    positions = form.encoder_formats[encoder.field].attended_positions(length)
    weight, linear = quadratic_cost_weights(model, form)[encoder.field], flops_per_unit(model, form)[encoder.field]
    assert weight > 0
    attention = 4 * encoder.width * encoder.depth * positions**2  # scores and values, 2 FLOPs a multiply-add
    np.testing.assert_allclose(weight * length**2 * linear, attention, rtol=1e-12)


def test_clips_and_their_frames_are_counted():
    rows = [
        {"video": [clip_file(12, 6), clip_file(6, 6)], "question": "Alike?", "answer": "no"},
        {"question": "What?", "answer": "nothing"},
    ]
    form = SampleFormat((PatchFormat(patch=4, temporal_patch=2, max_length=512),), None)
    data = from_records(rows, video=VideoLayout(sampling=VideoSampling(rate=3.0, min_frames=1)))
    capacity = RowCapacity(tokens=999, lengths={"patches": 999}, samples=9)
    statistics = collect_statistics(SampleIndex(data, form), capacity, {"records": 1.0}, 2, 0)
    counted = statistics.columns("tokens", "video_clips", "video_frames", "encoder_images")
    order = np.argsort(counted[:, 0])
    assert counted[order, 1:].tolist() == [[0, 0, 0], [2, 9, 5]]  # 6 and 3 frames, two of them an item
