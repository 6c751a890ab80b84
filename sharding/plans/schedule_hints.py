"""Hints of a planner to the schedule about a unit; they change the order of ops, and not what a step computes."""

import dataclasses
import math

from configs.common.short_repr import short_repr
from sharding.plans.plan_error import UnitFieldError
from sharding.plans.text import bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleHints:
    """Hints for the order of a unit's ops.

    Attributes:
        extra_microbatches: How many microbatches each pipeline rank may hold at once beyond what the schedule needs;
            one that is in several of its chunks counts in each.
        forward_seconds: Seconds of a microbatch's forward on each virtual stage, by which `interleaved` and `colocated`
            order ops; only the proportions between stages matter. Empty: as long as any other op.
        backward_seconds: Seconds of a microbatch's backward on each virtual stage, likewise.
        forward_communication: Seconds among `forward_seconds` in which a virtual stage's devices only wait for
            collectives. Where they are given, `colocated` runs ops of other units in one program with the stage's, so
            that these compute meanwhile. Empty: none.
        backward_communication: Seconds among `backward_seconds`, likewise.
        replica_of_microbatch: Which pipeline replica takes each microbatch of a step. Empty: microbatch i goes to
            replica i % pipeline_replicas.
    """

    extra_microbatches: int = 0
    forward_seconds: tuple[float, ...] = ()
    backward_seconds: tuple[float, ...] = ()
    forward_communication: tuple[float, ...] = ()
    backward_communication: tuple[float, ...] = ()
    replica_of_microbatch: tuple[int, ...] = ()

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.extra_microbatches < 0:
            raise UnitFieldError(
                f"extra_microbatches is {self.extra_microbatches}; it must be at least 0, because with fewer "
                "microbatches in flight than the schedule needs its stages would wait for each other"
            )
        for key in ("extra_microbatches", "forward_seconds", "backward_seconds"):
            if fault := bounds.excess(key, getattr(self, key)):
                raise UnitFieldError(fault)
        for key in ("forward_seconds", "backward_seconds"):
            seconds = getattr(self, key)
            if not all(math.isfinite(value) and value >= 0 for value in seconds):
                raise UnitFieldError(f"{key} {list(seconds)} must be finite and not negative")
        if len(self.forward_seconds) != len(self.backward_seconds):
            raise UnitFieldError(
                f"forward_seconds has {len(self.forward_seconds)} entries, but backward_seconds "
                f"{len(self.backward_seconds)}; give both for every stage, or neither"
            )
        for kind in ("forward", "backward"):
            self._check_communication(kind)

    def _check_communication(self, kind: str) -> None:
        waits, seconds = getattr(self, f"{kind}_communication"), getattr(self, f"{kind}_seconds")
        if len(waits) not in (0, len(seconds)):
            raise UnitFieldError(
                f"{kind}_communication has {len(waits)} entries for {len(seconds)} of {kind}_seconds; give one for "
                "each, or none"
            )
        for stage, (wait, total) in enumerate(zip(waits, seconds, strict=False)):
            if not 0 <= wait <= total:
                raise UnitFieldError(
                    f"{kind}_communication of stage {stage} is {wait}; it must be from 0 to its {kind}_seconds, {total}"
                )

    def check_replicas(self, replicas: int) -> None:
        """Raises PlanError unless `replica_of_microbatch` is empty or names each of several pipeline replicas."""
        given = self.replica_of_microbatch
        if given and replicas == 1:
            raise UnitFieldError(
                "replica_of_microbatch is given, but pipeline_replicas is 1; set pipeline_replicas, or leave it out"
            )
        for microbatch, replica in enumerate(given):
            if not 0 <= replica < replicas:
                raise UnitFieldError(
                    f"replica_of_microbatch gives microbatch {microbatch} to pipeline replica {replica}, but the "
                    f"{replicas} replicas are 0 to {replicas - 1}"
                )
        if given and len(set(given)) < replicas:
            idle = min(set(range(replicas)) - set(given))
            raise UnitFieldError(
                f"replica_of_microbatch gives pipeline replica {idle} of {replicas} no microbatch; use fewer replicas"
            )
