"""Plans of all kinds for `tests.sharding.planners.problems.MODEL`, whose rows are reordered."""

import dataclasses

from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.schedule_hints import ScheduleHints
from sharding.plans.unit_plan import UnitPlan

ROWS = 48
BACKBONE = UnitPlan(
    "backbone",
    ("backbone",),
    tuple(range(2, 10)),
    layers=(2, 2),
    recompute=("none",) * 2,
    parallelism=Parallelism(dp=4),
)
VISION = UnitPlan("vision", ("vision",), (0, 1), layers=(3,), parallelism=Parallelism(dp=2))
APART = Plan(
    (VISION, BACKBONE, UnitPlan("generator", ("generator",), (10, 11, 12, 13), parallelism=Parallelism(dp=4))),
    microbatches=6,
)
IN_CHUNKS = (
    UnitPlan(
        "backbone",
        ("backbone",),
        (2, 3, 4, 5),
        layers=(1,) * 4,
        recompute=("none",) * 4,
        parallelism=Parallelism(dp=2, chunks=2),
    ),
    UnitPlan("generator", ("generator",), (6,)),
)
INTERLEAVED = Plan((VISION, *IN_CHUNKS), microbatches=8, schedule="interleaved")
TOGETHER = Plan(
    (
        VISION,
        UnitPlan("language", ("backbone", "generator"), (0, 1), layers=(5,), parallelism=Parallelism(dp=2)),
    ),
    microbatches=12,
)
REPLICATED = UnitPlan(
    "vision",
    ("vision",),
    (0, 1, 2, 3),
    layers=(3,),
    parallelism=Parallelism(dp=2, pipeline_replicas=2),
    schedule_hints=ScheduleHints(replica_of_microbatch=(0, 1, 1, 0, 0, 1)),
)
COLOCATED = Plan(
    (
        REPLICATED,
        dataclasses.replace(BACKBONE, devices=(0, 1, 2, 3), parallelism=Parallelism(dp=2)),
        UnitPlan("generator", ("generator",), (4, 5), parallelism=Parallelism(pipeline_replicas=2)),
    ),
    microbatches=6,
)
ONE = Plan((UnitPlan("all", ("vision", "backbone", "generator"), (0,), layers=(8,)),))
DEALT_VISION = UnitPlan(
    "vision",
    ("vision",),
    (10, 11, 12),
    layers=(3,),
    parallelism=Parallelism(dp=3),
    phase_rows=3,
    capacities=(128, 192, 256, 1024),
)
DEALT = Plan(
    (
        DEALT_VISION,
        dataclasses.replace(BACKBONE, devices=(0, 1, 2, 3), parallelism=Parallelism(dp=2)),
        UnitPlan(
            "generator",
            ("generator",),
            (7, 8, 9),
            parallelism=Parallelism(dp=3),
            phase_rows=3,
            capacities=(1, 2, 3, 8),
        ),
    ),
    microbatches=8,
)
DEALT_IN_CHUNKS = Plan(
    (dataclasses.replace(DEALT_VISION, capacities=()), *IN_CHUNKS), microbatches=8, schedule="interleaved"
)
DEALT_TO_REPLICAS = dataclasses.replace(
    COLOCATED, units=(dataclasses.replace(REPLICATED, phase_rows=2), *COLOCATED.units[1:])
)
COMPILED = Plan(
    (
        VISION,
        dataclasses.replace(
            BACKBONE,
            devices=(2, 3, 4, 5),
            executor="compiled",
            recompute=("full",) * 2,
            parallelism=Parallelism(dp=2),
        ),
        UnitPlan("generator", ("generator",), (6, 7), parallelism=Parallelism(dp=2)),
    ),
    microbatches=6,
)
BUNDLED = Plan(
    (
        UnitPlan(
            "vision",
            ("vision",),
            (0, 1, 2, 3),
            layers=(3,),
            parallelism=Parallelism(tp=2, pipeline_replicas=2),
            schedule_hints=ScheduleHints(forward_seconds=(1.0,), backward_seconds=(2.0,)),
        ),
        UnitPlan(
            "backbone",
            ("backbone",),
            (0, 1, 2, 3),
            layers=(2, 2),
            recompute=("none",) * 2,
            parallelism=Parallelism(tp=2),
            schedule_hints=ScheduleHints(
                forward_seconds=(4.0,) * 2,
                backward_seconds=(8.0,) * 2,
                forward_communication=(2.0,) * 2,
                backward_communication=(4.0,) * 2,
            ),
        ),
        UnitPlan(
            "generator",
            ("generator",),
            (4,),
            schedule_hints=ScheduleHints(forward_seconds=(1.0,), backward_seconds=(2.0,)),
        ),
    ),
    microbatches=6,
    schedule="colocated",
)
ORDERED = {
    "apart": APART,
    "interleaved": INTERLEAVED,
    "together": TOGETHER,
    "colocated": COLOCATED,
    "one": ONE,
    "dealt": DEALT,
    "dealt, in chunks": DEALT_IN_CHUNKS,
    "dealt to pipeline replicas": DEALT_TO_REPLICAS,
}
"""Plans whose microbatches can be ordered."""
LOCKSTEP = {
    "compiled": COMPILED,
    "compiled and dealt": dataclasses.replace(COMPILED, units=(DEALT_VISION, *COMPILED.units[1:])),
    "bundled": BUNDLED,
}
"""Plans whose microbatches cannot be ordered."""
