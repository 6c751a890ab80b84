"""Which divisions of a model's modules `python -m mmjax.verify` tries, kind by kind, the most divided first.

`default_layouts.py` makes those that a model and its devices allow.
"""

from mmjax.training.verification.layouts.divided_plans import UNDIVIDED, ModuleRole, divided
from mmjax.training.verification.layouts.layout_kinds import (
    SEVERAL,
    LayoutKind,
    all_alike,
    each_its_own,
    either,
    in_one_unit,
    one_device,
    with_optimizer,
)
from sharding.specs.layers.layer import RecomputePolicy

_BY_TURNS: tuple[RecomputePolicy, ...] = ("full", "offload", "none", "selective")
_BY_HEADS = divided(cp=2, context_transfer="all_to_all")
_SELECTIVE = divided(recompute=("selective",))
_FULL = divided(dp=2, recompute=("full",))

# Compilation takes most of the time, so each layout combines several features whose errors can be told apart.
LAYOUT_KINDS: dict[str, LayoutKind] = {
    "one device": one_device,
    "data parallelism": all_alike([divided(dp=n) for n in (8, 6, 4, 3, 2)]),
    "fully sharded": either(
        *(all_alike([divided(dp=n, fsdp=n)], SEVERAL) for n in (8, 4)), all_alike([divided(dp=2, fsdp=2)])
    ),
    "fully sharded in groups of replicas, and with tensor ranks in a pipeline": each_its_own(
        (
            divided(dp=6, fsdp=2, recompute=("none", "selective")),
            divided(dp=2, fsdp=2, tp=2, collectives="ring", pp=2, recompute=("full",)),
            divided(dp=2, fsdp=2),
        ),
        (divided(dp=2, fsdp=2), divided(dp=2, fsdp=2, tp=2, pp=2, recompute=("full",)), UNDIVIDED),
        (UNDIVIDED, divided(dp=2, fsdp=2), UNDIVIDED),
        together=True,
    ),
    "fully sharded with rows of their own": each_its_own(
        (
            divided(dp=6, fsdp=2, phase_rows=6),
            divided(dp=3, fsdp=3, tp=2, recompute=("selective", "none")),
            divided(dp=6, fsdp=6, phase_rows=6),
        ),
        (divided(dp=2, fsdp=2, phase_rows=2), divided(dp=2, fsdp=2), divided(dp=2, fsdp=2, phase_rows=2)),
        together=True,
    ),
    "tensor parallelism": all_alike([divided(tp=n) for n in (8, 4, 2)]),
    "uneven pipeline, 1F1B": each_its_own(
        (divided(extra_microbatches=1), divided(pp=3, extra_microbatches=1), UNDIVIDED),
        (divided(extra_microbatches=1), divided(pp=2, extra_microbatches=1), UNDIVIDED),
        microbatches=(4, *SEVERAL),
    ),
    "uneven pipeline, GPipe": each_its_own(
        (divided(pp=2), divided(pp=3), UNDIVIDED),
        (UNDIVIDED, divided(pp=2), UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="gpipe",
    ),
    "interleaved pipeline": either(
        each_its_own(
            (UNDIVIDED, divided(pp=2, chunks=2), UNDIVIDED), microbatches=(4, *SEVERAL), schedule="interleaved"
        ),
        in_one_unit((ModuleRole.BACKBONE,), divided(pp=2, chunks=2), cut_in_encoder=True, schedule="interleaved"),
    ),
    "fewer replicas downstream": each_its_own(
        (divided(dp=3), divided(dp=2), UNDIVIDED),
        (divided(dp=4), divided(dp=2), UNDIVIDED),
        (divided(dp=2), UNDIVIDED, UNDIVIDED),
        transport="device_put",
    ),
    "more replicas downstream": each_its_own(
        (divided(dp=2), divided(dp=3), divided(dp=2)),
        (UNDIVIDED, divided(dp=2), divided(dp=4)),
        (UNDIVIDED, divided(dp=2), divided(dp=2)),
    ),
    "rows of their own, fewer replicas downstream": each_its_own(
        (divided(dp=3, phase_rows=3), divided(dp=2), divided(phase_rows=5)),
        (divided(dp=2, phase_rows=4), UNDIVIDED, UNDIVIDED),
    ),
    "rows of their own, more replicas than the batch has rows": each_its_own(
        (divided(tp=2, phase_rows=1), UNDIVIDED, divided(dp=5, phase_rows=5)),
        (divided(tp=2, phase_rows=1), UNDIVIDED, UNDIVIDED),
        microbatches=(12, 8, 4, *SEVERAL),  # of one row, if it can be, so that some have no image
    ),
    "rows of their own of two capacities": each_its_own(
        (
            divided(dp=2, pp=2, extra_microbatches=1, phase_rows=2, two_capacities=True),
            divided(pp=2),
            divided(phase_rows=2, two_capacities=True),
        ),
        (divided(phase_rows=1, two_capacities=True), UNDIVIDED, divided(phase_rows=1, two_capacities=True)),
        microbatches=(6, 4, *SEVERAL),
        transport="ppermute",
    ),
    "rows of their own on shared devices": each_its_own(
        (divided(dp=8, phase_rows=8), divided(dp=2, pp=2), divided(dp=2, tp=2, phase_rows=2)),
        (divided(dp=2, phase_rows=2), UNDIVIDED, divided(dp=2, phase_rows=2)),
        together=True,
    ),
    "fewer and more tensor ranks": each_its_own((divided(tp=2), UNDIVIDED, divided(tp=2)), transport="ppermute"),
    "sequence parallelism": each_its_own(
        (
            divided(tp=2, collectives="sequence_parallel"),
            divided(tp=4, collectives="ring"),
            divided(tp=2, collectives="ring"),
        ),
        (
            divided(tp=2, collectives="sequence_parallel"),
            divided(tp=2, collectives="ring", pp=2),
            divided(tp=2, collectives="ring"),
        ),
        (divided(tp=2, collectives="sequence_parallel"), divided(tp=2, collectives="ring"), UNDIVIDED),
        (UNDIVIDED, divided(tp=2, collectives="ring"), UNDIVIDED),
        attention="blocked",
    ),
    "context parallelism, by a ring": each_its_own(
        (divided(cp=2, tp=2), divided(cp=2, tp=2, collectives="ring", pp=2), UNDIVIDED),
        (divided(cp=2), divided(cp=2, tp=2, collectives="ring"), UNDIVIDED),
        (UNDIVIDED, divided(cp=2), UNDIVIDED),
    ),
    "context parallelism, by a ring of four, interleaved": each_its_own(
        (divided(dp=2, cp=2, recompute=("full",)), divided(cp=4, pp=2, chunks=2), UNDIVIDED),
        (UNDIVIDED, divided(cp=4), UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="interleaved",
        together=True,
    ),
    "context parallelism, by heads": each_its_own(
        (_BY_HEADS, divided(dp=2, cp=2, context_transfer="all_to_all", pp=2, recompute=("selective",)), UNDIVIDED),
        (_BY_HEADS, _BY_HEADS, UNDIVIDED),
        together=True,
    ),
    "more and fewer tensor ranks, selective recomputation": each_its_own(
        (_SELECTIVE, divided(tp=2, collectives="ring", pp=2, recompute=("selective",)), _SELECTIVE),
        (_SELECTIVE, divided(tp=2, collectives="ring", recompute=("selective",)), _SELECTIVE),
    ),
    "fewer and more replicas, full recomputation": each_its_own(
        (_FULL, divided(tp=2, pp=2, recompute=("full",)), _FULL), (_FULL, divided(recompute=("full",)), _FULL)
    ),
    "zero-bubble pipeline, recomputation and offload that change along it and within a stage": each_its_own(
        (divided(recompute=_BY_TURNS), divided(tp=2, pp=2, recompute=_BY_TURNS), UNDIVIDED),
        (divided(recompute=_BY_TURNS), divided(pp=2, recompute=_BY_TURNS), UNDIVIDED),
        (divided(recompute=_BY_TURNS), divided(recompute=_BY_TURNS), UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="zb-h1",
    ),
    "replicas and tensor ranks differ": each_its_own(
        (divided(tp=2), divided(dp=2, tp=2), UNDIVIDED), (divided(tp=2), divided(dp=2), UNDIVIDED), transport="ppermute"
    ),
    "shared devices": each_its_own(
        (divided(dp=2), divided(pp=2), divided(tp=2)), (divided(dp=2), UNDIVIDED, divided(dp=2)), together=True
    ),
    "optimizer state on the hosts, moments in bfloat16": with_optimizer(
        each_its_own(
            (divided(dp=2), divided(dp=2, tp=2, pp=2), UNDIVIDED),
            (divided(dp=2), divided(tp=2), UNDIVIDED),
            together=True,
        ),
        "bfloat16",
        "host",
    ),
    "beside the backbone in its idle time": each_its_own(
        (divided(tp=2, pp=2), divided(tp=2, pp=2), UNDIVIDED),
        (divided(tp=2), divided(pp=2), UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="colocated",
        together=True,
    ),
    "pipeline replicas beside the backbone, one on each device": each_its_own(
        (divided(pipeline_replicas=4), divided(tp=2, pp=2), divided(pipeline_replicas=4)),
        (divided(pipeline_replicas=2), divided(pp=2), divided(pipeline_replicas=2)),
        microbatches=(4, *SEVERAL),
        schedule="colocated",
        together=True,
    ),
    "pipeline replicas beside the backbone, in slices and bundles": each_its_own(
        (
            divided(pipeline_replicas=2, tp=2, chunks=2),
            divided(tp=2, collectives="sequence_parallel", pp=2, chunks=2),
            divided(pipeline_replicas=2, tp=2),
        ),
        (divided(pipeline_replicas=2, tp=2), divided(tp=2, pp=2), UNDIVIDED),
        (divided(pipeline_replicas=2), divided(pp=2), UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="colocated",
        together=True,
        bundled=True,
    ),
    "pipeline replicas on devices of their own, with rows of their own": each_its_own(
        (
            divided(pipeline_replicas=2, pp=2, phase_rows=2, two_capacities=True),
            divided(dp=2),
            divided(pipeline_replicas=2, phase_rows=1),
        ),
        (divided(pipeline_replicas=2, phase_rows=1), UNDIVIDED, divided(pipeline_replicas=2, phase_rows=1)),
        microbatches=(6, 3, 2),
    ),
    "chain cut in the backbone": in_one_unit((ModuleRole.BACKBONE,), divided(pp=2), cut_in_encoder=False),
    "chain cut in the encoder": in_one_unit(
        (ModuleRole.BACKBONE, ModuleRole.GENERATOR), divided(dp=2, pp=2), cut_in_encoder=True
    ),
    "chain cut in the backbone, more tensor ranks there": in_one_unit(
        (ModuleRole.BACKBONE,), divided(tp=2, collectives="ring", pp=2), cut_in_encoder=False, tensor_ranks=(1, 2, 1)
    ),
    "chain cut in the encoder, more tensor ranks in the backbone": either(
        *(
            in_one_unit(
                (ModuleRole.BACKBONE, ModuleRole.GENERATOR),
                divided(dp=dp, tp=2, collectives="ring", pp=2),
                cut_in_encoder=True,
                tensor_ranks=(1, 2, 1),
            )
            for dp in (2, 1)
        )
    ),
    "pipeline in one program, with replicas and rings of tensor ranks": each_its_own(
        (divided(dp=2), divided(dp=2, tp=2, collectives="ring", pp=2, executor="compiled"), divided(dp=2)),
        (UNDIVIDED, divided(pp=2, executor="compiled"), UNDIVIDED),
        microbatches=(3, 2),
        together=True,
    ),
    "interleaved pipeline in one program, beside rows of their own": each_its_own(
        (
            divided(tp=2, phase_rows=1, two_capacities=True),
            divided(pp=2, chunks=2, executor="compiled", recompute=("selective",)),
            divided(phase_rows=1),
        ),
        (UNDIVIDED, divided(pp=2, chunks=2, executor="compiled"), UNDIVIDED),
        microbatches=(12, 8, 4, *SEVERAL),  # of one row, if it can be, so that some have no image
        schedule="interleaved",
    ),
    "pipeline in one program, on shared devices": each_its_own(
        (divided(tp=2), divided(tp=2, pp=4, executor="compiled", recompute=("full",)), divided(tp=2)),
        (UNDIVIDED, divided(dp=2, pp=2, executor="compiled"), UNDIVIDED),
        (UNDIVIDED, divided(pp=2, executor="compiled"), UNDIVIDED),
        microbatches=(4, *SEVERAL),
        together=True,
    ),
}

EXPERT_LAYOUT_KINDS: dict[str, LayoutKind] = {
    "expert ranks that are all replicas": each_its_own(
        (UNDIVIDED, divided(dp=4, ep=4, expert_transfer="all_to_all"), UNDIVIDED),
        (UNDIVIDED, divided(dp=2, ep=2, expert_transfer="all_to_all"), UNDIVIDED),
        microbatches=(3, 2),
    ),
    "expert ranks that are some of the replicas": each_its_own(
        (divided(dp=2), divided(dp=4, ep=2, expert_transfer="gather"), UNDIVIDED)
    ),
    "expert ranks, fully sharded": each_its_own(
        (divided(dp=2), divided(dp=4, fsdp=4, ep=2, recompute=("selective",)), UNDIVIDED),
        (UNDIVIDED, divided(dp=2, fsdp=2, ep=2), UNDIVIDED),
    ),
    "expert and tensor ranks in a pipeline": each_its_own(
        (divided(dp=2), divided(dp=2, ep=2, tp=2, collectives="ring", pp=2, recompute=("selective",)), divided(tp=2)),
        (divided(dp=2), divided(dp=2, ep=2, pp=2), UNDIVIDED),
        together=True,
    ),
}

GENERATOR_LAYOUT_KINDS: dict[str, LayoutKind] = {
    "generator cut into stages, with tensor ranks": each_its_own(
        (UNDIVIDED, UNDIVIDED, divided(tp=2, pp=2)), (UNDIVIDED, UNDIVIDED, divided(pp=2)), together=True
    ),
}
