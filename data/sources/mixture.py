"""Sources that are trained on together, and in which proportion."""

import dataclasses
import math

from data.errors import DataError
from data.sources.record_source import RecordSource


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Named sources with weights.

    Attributes:
        sources: (name, source, weight): how many records come from each is in proportion to its weight.

    Raises:
        DataError: No source, a name given twice, a source without records, or a weight that is not above zero.
    """

    sources: tuple[tuple[str, RecordSource, float], ...]

    def __post_init__(self) -> None:
        if not self.sources:
            raise DataError("Mixture.sources is empty; name at least one source")
        if len(set(self.names)) < len(self.names):
            raise DataError(f"Mixture.sources names a source twice: {', '.join(self.names)}; give each its own name")
        for name, source, weight in self.sources:
            if not (weight > 0 and math.isfinite(weight)):
                raise DataError(f"Mixture: the weight of {name} is {weight}; it must be above zero and finite")
            if not len(source):
                raise DataError(f"Mixture: {name} has no records; leave it out")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources in their order."""
        return tuple(name for name, _, _ in self.sources)

    @property
    def sizes(self) -> dict[str, int]:
        """Records of every source."""
        return {name: len(source) for name, source, _ in self.sources}

    @property
    def shares(self) -> dict[str, float]:
        """The weights, scaled to sum to one."""
        total = math.fsum(weight for _, _, weight in self.sources)
        return {name: weight / total for name, _, weight in self.sources}

    def __getitem__(self, name: str) -> RecordSource:
        """The source of a name; raises DataError if there is none."""
        for known, source, _ in self.sources:
            if known == name:
                return source
        raise DataError(f"there is no source {name!r} in the mixture; it has {', '.join(self.names)}")
