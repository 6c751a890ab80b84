import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from data.data_config import DataConfig
from data.datasets.dataset import Dataset
from data.datasets.from_records import from_records
from data.errors import DataError
from data.packing.pipeline import evaluation_batches, training_batches
from tests.data.first_samples import ids_of

MODEL = ModelConfig((VisionConfig(),), BackboneConfig(vocabulary=267), ())
CONFIG = DataConfig(rows=2, tokens=128, patches=32, images=0)


def record(number):
    image = np.full((16, 16, 3), 20 * number, np.uint8)
    return {"image": image, "question": "Which grey?", "answer": f"grey {number}"}


class Lazy:
    """A sequence that makes its records on access, and says which."""

    def __init__(self):
        self.made = set()

    def __len__(self):
        return 6

    def __getitem__(self, number):
        self.made.add(number)
        return record(number)


def test_lists_generators_and_lazy_sequences_give_the_same_samples():
    lazy = Lazy()
    datasets = [from_records(map(record, range(6))), from_records([record(n) for n in range(6)]), from_records(lazy)]
    assert not lazy.made
    answers = []
    for dataset in datasets:
        assert isinstance(dataset, Dataset)
        batches = evaluation_batches(CONFIG, MODEL, dataset)
        samples = batches.load_samples(sorted(number for batch in batches for number in ids_of(batch)))
        batches.close()
        answers.append([dataset.tokenizer.decode([int(token) for token in s.layout.tokens]) for s in samples])
    assert answers[0] == answers[1] == answers[2] and lazy.made == set(range(6))
    assert all(f"grey {number}" in answer for number, answer in enumerate(answers[0]))


def test_no_records_leave_nothing_to_evaluate_and_cannot_be_trained_on():
    empty = from_records([])
    assert empty.evaluated_kinds == ()
    with pytest.raises(DataError, match="the data set has no samples"):
        training_batches(CONFIG, MODEL, empty)
