"""The element spec of a global batch: names, shapes and dtypes of its arrays, known before any sample is read.

They follow from the data configuration and the model alone, so that programs can be compiled without an example batch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from configs.architectures import ModelConfig
from data.data_config import DataConfig, RowCapacity
from data.packing.global_batch import GlobalBatch, build_global_batch, capacity_for_model
from data.packing.rows.packed_rows import empty_rows
from data.samples.sample_format import SampleFormat


@runtime_checkable
class HasShapeAndDtype(Protocol):
    """An array, or something that only describes one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every dimension."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        ...


BatchSpec = Mapping[str, Mapping[str, HasShapeAndDtype]]
"""`{module: {name: [n, ...]}}`: shape and dtype of every array of a global batch of n rows."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array; it reads like an array of a batch and like a `jax.ShapeDtypeStruct`.

    Attributes:
        shape: Sizes of the dimensions.
        dtype: NumPy's type of the elements.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class GlobalBatchSpec:
    """Shapes and dtypes of the arrays of a global batch.

    Attributes:
        arrays: By module name, then field, as in `GlobalBatch.arrays`. The first dimension of each is the rows n.
    """

    arrays: Mapping[str, Mapping[str, ArraySpec]]

    @classmethod
    def from_batch(cls, batch: GlobalBatch) -> "GlobalBatchSpec":
        """The spec of a batch at hand."""
        return cls(
            {
                module: {field: ArraySpec(array.shape, array.dtype) for field, array in fields.items()}
                for module, fields in batch.arrays.items()
            }
        )

    @property
    def rows(self) -> int:
        """Number of rows n."""
        fields = next(iter(self.arrays.values()))
        return next(iter(fields.values())).shape[0]

    def with_rows(self, rows: int) -> "GlobalBatchSpec":
        """The spec of a batch of another number of rows, each of the same capacity."""
        return GlobalBatchSpec(
            {
                module: {field: ArraySpec((rows, *spec.shape[1:]), spec.dtype) for field, spec in fields.items()}
                for module, fields in self.arrays.items()
            }
        )


def global_batch_spec(config: DataConfig, model: ModelConfig) -> GlobalBatchSpec:
    """The spec of every global batch that a data configuration makes for a model.

    Raises:
        DataError: The data pipeline does not fit the model (`SampleFormat.for_model`).
    """
    return batch_spec_of_rows(config.capacity, model, config.rows)


def batch_spec_of_rows(row: RowCapacity, model: ModelConfig, rows: int) -> GlobalBatchSpec:
    """The spec of a global batch of so many rows of a capacity.

    It is read from a batch of one empty row, so that it cannot differ from the batches of `build_global_batch`.

    Raises:
        DataError: The data pipeline does not fit the model (`SampleFormat.for_model`).
    """
    sample_format = SampleFormat.for_model(model, row.lengths)
    capacity = capacity_for_model(row, sample_format)
    one_row = build_global_batch(empty_rows(1, capacity, sample_format), model, sample_format)
    return GlobalBatchSpec.from_batch(one_row).with_rows(rows)
