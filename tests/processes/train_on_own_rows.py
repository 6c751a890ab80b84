"""One of two processes that train on a plan with rows of its own; the second cannot read one of the images.

Which media it decoded, what it refused, its losses and its data state go to a file.
"""

import dataclasses
import pathlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import jax

from data.datasets.dataset import LazySamples
from data.errors import BadSampleError
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from mmjax.training.trainer import Trainer
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from tests.mmjax.training.trainer_runs import CONFIG as RUN
from tests.small_vqa import SmallVQA

STEPS = 3
PLAN = Plan(
    (
        UnitPlan("vision", ("vision",), (0, 2), phase_rows=2, parallelism=Parallelism(dp=2)),
        UnitPlan("backbone", ("backbone",), (1, 3), layers=(2,), parallelism=Parallelism(dp=2)),
        UnitPlan("generator", ("generator",), (2,), phase_rows=3),
    ),
    microbatches=2,
)
CONFIG = dataclasses.replace(RUN, steps=STEPS, data=dataclasses.replace(RUN.data, prefetch=0, max_refused_share=0.5))


class Counted(SmallVQA):
    """Keeps the (kind, index) of every sample of which media are decoded; those of some `vqa` samples are damaged."""

    def __init__(self, decoded: set[tuple[str, int]], damaged: int = -1) -> None:
        super().__init__("train")
        self.decoded, self.damaged = decoded, damaged

    def samples_by_kind(self, sample_format: SampleFormat) -> dict[str, LazySamples]:
        """The samples of `SmallVQA`."""
        return {
            kind: LazySamples(
                len(samples), lambda index, kind=kind, samples=samples: self._counted(kind, index, samples)
            )
            for kind, samples in super().samples_by_kind(sample_format).items()
        }

    def _counted(self, kind: str, index: int, samples: Any) -> SampleMetadata:
        metadata = samples[index]

        def counted(load: Callable[[], Any]) -> Callable[[], Any]:
            def loaded() -> Any:
                self.decoded.add((kind, index))
                if (kind, index) == ("vqa", self.damaged):
                    raise BadSampleError(f"image {index}", "damaged")
                return load()

            return loaded

        return dataclasses.replace(
            metadata,
            items=[dataclasses.replace(item, load=counted(item.load)) for item in metadata.items],
            target_images=[dataclasses.replace(image, load=counted(image.load)) for image in metadata.target_images],
        )


def main(rank: int, port: str, damaged: int, directory: pathlib.Path) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    decoded: set[tuple[str, int]] = set()
    config = dataclasses.replace(CONFIG, dataset=lambda split: Counted(decoded, damaged if rank == 1 else -1))
    with Trainer(config, PLAN) as trainer:
        losses = [trainer.step().losses for _ in range(STEPS)]
        seen = (losses, decoded, trainer.batches.counters(), trainer.batches.get_state())
    (directory / f"{rank}.pickle").write_bytes(pickle.dumps(seen))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4]))
