"""A few samples of easy-VQA, a configuration for them, and what comes out of its batches."""

import dataclasses

import numpy as np

from configs.architectures import ModelConfig
from data.data_config import DataConfig
from data.datasets.dataset import LazySamples
from data.datasets.easy_vqa import EasyVQA
from data.errors import BadSampleError

MODEL = ModelConfig()


class First(EasyVQA):
    """Only the first samples of every kind."""

    def __init__(self, split, count, image_paths=None):
        super().__init__(split, image_paths)
        self.count = count

    def samples_by_kind(self, form):
        return {
            kind: LazySamples(self.count, samples.__getitem__)
            for kind, samples in super().samples_by_kind(form).items()
        }


class Missing(First):
    """Samples of which some are missing, as their headers show, or are damaged within."""

    def __init__(self, count, missing, damaged):
        super().__init__("train", count)
        self.missing, self.damaged = missing, damaged

    def samples_by_kind(self, sample_format):
        samples = super().samples_by_kind(sample_format)["vqa"]
        return {"vqa": LazySamples(self.count, lambda index: self._sample(samples[index], index))}

    def _sample(self, metadata, index):
        if index in self.missing:
            raise BadSampleError(f"{index}", "missing")
        if index not in self.damaged:
            return metadata

        def load():
            raise BadSampleError(f"{index}", "damaged")

        return dataclasses.replace(metadata, items=[dataclasses.replace(item, load=load) for item in metadata.items])


CONFIG = DataConfig(rows=4, mixture=(("vqa", 1.0), ("description", 0.5), ("text", 0.2)), seed=3, window=64)

VQA = dataclasses.replace(CONFIG, mixture=(("vqa", 1.0),), window=60)


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


def ids_of(batch):
    return batch.sample_ids[batch.sample_ids >= 0].tolist()


def leaves(batch):
    arrays = {(module, name): array for module, fields in batch.arrays.items() for name, array in fields.items()}
    return arrays | {("", "sample_ids"): batch.sample_ids}


def assert_same(batches, others):
    for batch, other in zip(batches, others, strict=True):
        for key, array in leaves(batch).items():
            np.testing.assert_array_equal(array, leaves(other)[key], err_msg=str(key))
        assert (batch.real_and_capacity, batch.targets) == (other.real_and_capacity, other.targets)
