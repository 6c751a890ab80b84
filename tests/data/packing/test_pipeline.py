import collections
import dataclasses

import numpy as np
import pytest

from configs.architectures import BackboneConfig
from configs.attention.rope import LongRopeScaling
from data.data_config import DataConfig
from data.errors import DataError
from data.packing.batch_requirements import BatchRequirements
from data.packing.phases.needed_rows import NeededRows
from data.packing.pipeline import evaluation_batches, training_batches
from data.text.word_tokenizer import ANSWER, EOS
from tests.data.first_samples import CONFIG, MODEL, First, ids_of, take


def asked_in(batch):
    """(sample id, branch, first word of the answer) of every question."""
    fields = batch.arrays["backbone"]
    rows, places = np.nonzero((fields["tokens"] == ANSWER) & (fields["weights"] > 0))
    samples = batch.sample_ids[rows, fields["segments"][rows, places] - 1]
    return list(zip(samples, fields["branches"][rows, places], fields["targets"][rows, places], strict=True))


def test_a_host_decodes_only_its_rows_and_knows_the_totals(train):
    (whole,) = take(training_batches(CONFIG, MODEL, train), 1)
    (part,) = take(training_batches(CONFIG, MODEL, train, requirements=BatchRequirements(NeededRows((1, 2)))), 1)
    assert (part.real_and_capacity, part.targets, part.state) == (whole.real_and_capacity, whole.targets, whole.state)
    np.testing.assert_array_equal(part.sample_ids, whole.sample_ids)
    for module, fields in whole.arrays.items():
        for name, array in fields.items():
            np.testing.assert_array_equal(part.arrays[module][name][1:3], array[1:3])
    assert not part.arrays["backbone"]["tokens"][[0, 3]].any() and not part.arrays["vision"]["patches"][[0, 3]].any()


def test_another_seed_gives_another_order(train):
    other = dataclasses.replace(CONFIG, seed=4)
    ids, other_ids = ([ids_of(batch) for batch in take(training_batches(c, MODEL, train), 2)] for c in (CONFIG, other))
    assert ids != other_ids


def test_kinds_are_drawn_in_proportion_and_samples_once_an_epoch(train):
    iterator = training_batches(CONFIG, MODEL, train)
    numbers = [number for batch in take(iterator, 40) for number in ids_of(batch)]
    samples = iterator.counters()["samples"]
    iterator.close()
    assert sum(samples.values()) == len(numbers) == len(set(numbers))
    for kind, share in (("vqa", 1 / 1.7), ("description", 0.5 / 1.7), ("text", 0.2 / 1.7)):
        assert samples[kind] / len(numbers) == pytest.approx(share, abs=0.02)
    # Two kinds of the same pictures must not come in the same order: then one's would be all among the other's.
    asked, drawn = ({n % 4000 for n in numbers if first <= n < first + 4000} for first in (0, 4000))
    assert len(asked & drawn) < len(drawn) / 2


def test_evaluation_asks_every_question_of_the_test_split_exactly_once(held_out):
    asked = collections.Counter()
    samples = collections.Counter()
    iterator = evaluation_batches(dataclasses.replace(CONFIG, rows=16), MODEL, held_out)
    for batch in iterator:
        assert batch.sample_ids.shape[0] == 16
        samples.update(ids_of(batch))
        questions = asked_in(batch)
        for number, branch, word in questions:
            question, answer = held_out.pairs[held_out.image_ids[number]][branch - 1]
            assert held_out.tokenizer.decode([word]) == answer
            asked[(int(number), question)] += 1
        assert (
            len(questions)
            == (batch.arrays["backbone"]["targets"][batch.arrays["backbone"]["weights"] > 0] == EOS).sum()
        )
    assert samples == collections.Counter(range(1000))
    assert len(asked) == 9673
    assert set(asked.values()) == {1}
    assert iterator.counters()["samples"] == {"vqa": 1000}


def test_evaluation_of_several_kinds_takes_each_sample_once():
    iterator = evaluation_batches(CONFIG, MODEL, First("test", 50), kinds=("text", "vqa"))
    assert collections.Counter(number for batch in iterator for number in ids_of(batch)) == collections.Counter(
        [*range(50), *range(100, 150)]
    )


def test_unsuitable_models_and_kinds_are_refused(train):
    with pytest.raises(DataError, match="no samples of kind 'audio'; it has vqa, description, text"):
        training_batches(dataclasses.replace(CONFIG, mixture=(("audio", 1.0),)), MODEL, train)
    with pytest.raises(DataError, match=r"35 ids, more than backbone.vocabulary = 34; raise it"):
        training_batches(CONFIG, dataclasses.replace(MODEL, backbone=BackboneConfig(vocabulary=34)), train)
    learned = dataclasses.replace(MODEL.backbone, positions="learned", max_positions=CONFIG.tokens)
    training_batches(CONFIG, dataclasses.replace(MODEL, backbone=learned), train).close()
    short = dataclasses.replace(MODEL, backbone=dataclasses.replace(learned, max_positions=CONFIG.tokens - 1))
    factors = (1.0,) * (MODEL.backbone.head_width // 2)
    scaling = LongRopeScaling(
        short_factors=factors, long_factors=factors, original_positions=CONFIG.tokens - 1, factor=4.0
    )
    stretched = dataclasses.replace(MODEL, backbone=dataclasses.replace(MODEL.backbone, rope_scaling=scaling))
    with pytest.raises(DataError, match=rf"original_positions = {CONFIG.tokens - 1}; lower .* or set LongRopeScaling"):
        training_batches(CONFIG, stretched, train)
    for batches in (training_batches, evaluation_batches):
        with pytest.raises(DataError, match=rf"tokens = {CONFIG.tokens}, .* {CONFIG.tokens - 1} learned positions"):
            batches(CONFIG, short, train)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"tokens": 0}, "capacity of a row is 0 tokens"),
        ({"seed": -1}, "seed is -1"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"language_weight": float("nan")}, "language_weight is nan"),
        ({"generator_weight": -1.0}, "generator_weight is -1.0"),
        ({"max_refused_share": 1.0}, "max_refused_share is 1.0"),
        ({"oversized": "drop"}, "oversized is 'drop'; choose one of skip, error"),
        ({"grouping": "best"}, "grouping is 'best'; choose one of"),
        ({"workers": -1}, "workers is -1"),
        ({"mixture": (("vqa", 0.0),)}, "with a weight above zero"),
        ({"mixture": (("vqa", 1.0), ("vqa", 2.0))}, "each kind once"),
        (
            {"quadratic_cost_weights": (("patches", -0.5),)},
            "quadratic_cost_weights gives patches the weight -0.5; it must be finite and",
        ),
        ({"quadratic_cost_weights": (("patches", float("nan")),)}, "the weight nan; .* or left out for a linear cost"),
        (
            {"quadratic_cost_weights": (("frames", 0.1), ("frames", 0.2))},
            "it names frames more than once; give each field once",
        ),
        (
            {"isf_thresholds": (("tokens", 300),)},
            "accepts rows from 300 tokens, and a row holds 256 at most; give 1 to 256, or raise DataConfig.tokens",
        ),
        ({"isf_thresholds": (("patches", 0),)}, "from 0 patches, and a row holds 128 at most; give 1 to 128"),
        (
            {"isf_thresholds": (("frames", 5),)},
            "from 5 frames, of which a row holds none; leave frames out, or raise DataConfig.frames",
        ),
        (
            {"isf_thresholds": (("samples", 5),)},
            "5 samples, which are no quantity of a row; choose from tokens, patches, frames, images",
        ),
        ({"isf_thresholds": (("tokens", 5), ("tokens", 6))}, "names tokens more than once; give each quantity once"),
    ],
)
def test_invalid_configurations_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        DataConfig(**changes)
