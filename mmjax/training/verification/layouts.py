"""The layouts that `python -m mmjax.verify` compares by default: every kind of division that a model allows.

`configured_run.py` takes the layouts that a configuration allows.
"""

import dataclasses

from mmjax.training.verification.divided_plans import UNDIVIDED, GlobalRows, ModuleDivision, ModuleRole
from mmjax.training.verification.layout_kinds import (
    SEVERAL,
    LayoutKind,
    NamedLayout,
    all_alike,
    each_its_own,
    either,
    in_one_unit,
    one_device,
)
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved_plan import resolve_plan
from sharding.specs.modules import ModuleGraph


def default_layouts(graph: ModuleGraph, rows: GlobalRows, devices: int) -> tuple[list[NamedLayout], dict[str, str]]:
    """Makes one layout of every kind for a model, and gives the reason for each kind that is impossible.

    Args:
        graph: The model's modules.
        rows: Rows of the global batch.
        devices: Number of available devices.
    """
    layouts, refused = [], {}
    for kind, alternatives in kinds_for(graph).items():
        for make in alternatives(graph, rows):
            try:
                layout = make()
                resolve_plan(layout.plan, graph, devices, rows.count)
            except PlanError as error:
                refused[kind] = str(error)
                continue
            layouts.append(layout)
            refused.pop(kind, None)
            break
    return layouts, refused


def kinds_for(graph: ModuleGraph) -> dict[str, LayoutKind]:
    """Returns the kinds of layouts for a model, some only for models with experts or a generator that can be cut."""
    generators = [module for module in graph.modules if module.inputs and not module.is_backbone]
    return (
        LAYOUT_KINDS
        | (EXPERT_LAYOUT_KINDS if any(module.expert_count for module in graph.modules) else {})
        | (GENERATOR_LAYOUT_KINDS if any(module.divisible for module in generators) else {})
    )


_DP2, _DP3, _DP4 = (
    ModuleDivision(parallelism=Parallelism(dp=2)),
    ModuleDivision(parallelism=Parallelism(dp=3)),
    ModuleDivision(parallelism=Parallelism(dp=4)),
)
_TP2, _PP2, _PP3 = ModuleDivision(parallelism=Parallelism(tp=2)), ModuleDivision(pp=2), ModuleDivision(pp=3)
_TWO_CAPACITIES = ModuleDivision(
    pp=2,
    phase_rows=2,
    two_capacities=True,
    parallelism=Parallelism(dp=2),
    extra_microbatches=1,
)
_CHUNKS, _TP2_PP2 = (
    ModuleDivision(pp=2, parallelism=Parallelism(chunks=2)),
    ModuleDivision(pp=2, parallelism=Parallelism(tp=2)),
)
_EXTRA, _EXTRA_PP2, _EXTRA_PP3 = (ModuleDivision(pp=pp, extra_microbatches=1) for pp in (1, 2, 3))
_GATHER, _RING = (
    ModuleDivision(parallelism=Parallelism(tp=2, collectives="sequence_parallel")),
    ModuleDivision(parallelism=Parallelism(tp=2, collectives="ring")),
)
_RING_PP = ModuleDivision(pp=2, parallelism=Parallelism(tp=2, collectives="ring"))
_SELECTIVE, _FULL = (
    ModuleDivision(recompute=("selective",)),
    ModuleDivision(recompute=("full",), parallelism=Parallelism(dp=2)),
)
_SELECTIVE_RING = ModuleDivision(recompute=("selective",), parallelism=Parallelism(tp=2, collectives="ring"))
_HEADS = ModuleDivision(parallelism=Parallelism(cp=2, context_transfer="all_to_all"))
_FSDP2 = ModuleDivision(parallelism=Parallelism(dp=2, fsdp=2))
_HYBRID = ModuleDivision(recompute=("none", "selective"), parallelism=Parallelism(dp=6, fsdp=2))
_BY_TURNS = ModuleDivision(recompute=("full", "offload", "none", "selective"))
_COMPILED = ModuleDivision(pp=2, executor="compiled")

# Compilation takes most of the time, so each layout combines several features whose errors can be told apart.
LAYOUT_KINDS: dict[str, LayoutKind] = {
    "one device": one_device,
    "data parallelism": all_alike([ModuleDivision(parallelism=Parallelism(dp=n)) for n in (8, 6, 4, 3, 2)]),
    "fully sharded": either(
        *(all_alike([ModuleDivision(parallelism=Parallelism(dp=n, fsdp=n))], SEVERAL) for n in (8, 4)),
        all_alike([ModuleDivision(parallelism=Parallelism(dp=2, fsdp=2))]),
    ),
    "fully sharded in groups of replicas, and with tensor ranks in a pipeline": each_its_own(
        (
            _HYBRID,
            ModuleDivision(pp=2, recompute=("full",), parallelism=Parallelism(dp=2, tp=2, fsdp=2, collectives="ring")),
            _FSDP2,
        ),
        (_FSDP2, ModuleDivision(pp=2, recompute=("full",), parallelism=Parallelism(dp=2, tp=2, fsdp=2)), UNDIVIDED),
        (UNDIVIDED, _FSDP2, UNDIVIDED),
        together=True,
    ),
    "fully sharded with rows of their own": each_its_own(
        (
            ModuleDivision(phase_rows=6, parallelism=Parallelism(dp=6, fsdp=2)),
            ModuleDivision(recompute=("selective", "none"), parallelism=Parallelism(dp=3, tp=2, fsdp=3)),
            ModuleDivision(phase_rows=6, parallelism=Parallelism(dp=6, fsdp=6)),
        ),
        (
            ModuleDivision(phase_rows=2, parallelism=Parallelism(dp=2, fsdp=2)),
            _FSDP2,
            ModuleDivision(phase_rows=2, parallelism=Parallelism(dp=2, fsdp=2)),
        ),
        together=True,
    ),
    "tensor parallelism": all_alike([ModuleDivision(parallelism=Parallelism(tp=n)) for n in (8, 4, 2)]),
    "uneven pipeline, 1F1B": each_its_own(
        (_EXTRA, _EXTRA_PP3, UNDIVIDED), (_EXTRA, _EXTRA_PP2, UNDIVIDED), microbatches=(4, *SEVERAL)
    ),
    "uneven pipeline, GPipe": each_its_own(
        (_PP2, _PP3, UNDIVIDED), (UNDIVIDED, _PP2, UNDIVIDED), microbatches=(4, *SEVERAL), schedule="gpipe"
    ),
    "interleaved pipeline": either(
        each_its_own((UNDIVIDED, _CHUNKS, UNDIVIDED), microbatches=(4, *SEVERAL), schedule="interleaved"),
        in_one_unit((ModuleRole.BACKBONE,), _CHUNKS, cut_in_encoder=True, schedule="interleaved"),
    ),
    "fewer replicas downstream": each_its_own(
        (_DP3, _DP2, UNDIVIDED), (_DP4, _DP2, UNDIVIDED), (_DP2, UNDIVIDED, UNDIVIDED), transport="device_put"
    ),
    "more replicas downstream": each_its_own((_DP2, _DP3, _DP2), (UNDIVIDED, _DP2, _DP4), (UNDIVIDED, _DP2, _DP2)),
    "rows of their own, fewer replicas downstream": each_its_own(
        (ModuleDivision(phase_rows=3, parallelism=Parallelism(dp=3)), _DP2, ModuleDivision(phase_rows=5)),
        (ModuleDivision(phase_rows=4, parallelism=Parallelism(dp=2)), UNDIVIDED, UNDIVIDED),
    ),
    "rows of their own, more replicas than the batch has rows": each_its_own(
        (
            ModuleDivision(phase_rows=1, parallelism=Parallelism(tp=2)),
            UNDIVIDED,
            ModuleDivision(phase_rows=5, parallelism=Parallelism(dp=5)),
        ),
        (ModuleDivision(phase_rows=1, parallelism=Parallelism(tp=2)), UNDIVIDED, UNDIVIDED),
        microbatches=(12, 8, 4, *SEVERAL),  # of one row, if it can be, so that some have no image
    ),
    "rows of their own of two capacities": each_its_own(
        (_TWO_CAPACITIES, _PP2, ModuleDivision(phase_rows=2, two_capacities=True)),
        (
            ModuleDivision(phase_rows=1, two_capacities=True),
            UNDIVIDED,
            ModuleDivision(phase_rows=1, two_capacities=True),
        ),
        microbatches=(6, 4, *SEVERAL),
        transport="ppermute",
    ),
    "rows of their own on shared devices": each_its_own(
        (
            ModuleDivision(phase_rows=8, parallelism=Parallelism(dp=8)),
            ModuleDivision(pp=2, parallelism=Parallelism(dp=2)),
            ModuleDivision(phase_rows=2, parallelism=Parallelism(dp=2, tp=2)),
        ),
        (
            ModuleDivision(phase_rows=2, parallelism=Parallelism(dp=2)),
            UNDIVIDED,
            ModuleDivision(phase_rows=2, parallelism=Parallelism(dp=2)),
        ),
        together=True,
    ),
    "fewer and more tensor ranks": each_its_own((_TP2, UNDIVIDED, _TP2), transport="ppermute"),
    "sequence parallelism": each_its_own(
        (_GATHER, ModuleDivision(parallelism=Parallelism(tp=4, collectives="ring")), _RING),
        (_GATHER, _RING_PP, _RING),
        (_GATHER, _RING, UNDIVIDED),
        (UNDIVIDED, _RING, UNDIVIDED),
        attention="blocked",
    ),
    "context parallelism, by a ring": each_its_own(
        (
            ModuleDivision(parallelism=Parallelism(cp=2, tp=2)),
            ModuleDivision(pp=2, parallelism=Parallelism(cp=2, tp=2, collectives="ring")),
            UNDIVIDED,
        ),
        (
            ModuleDivision(parallelism=Parallelism(cp=2)),
            ModuleDivision(parallelism=Parallelism(cp=2, tp=2, collectives="ring")),
            UNDIVIDED,
        ),
        (UNDIVIDED, ModuleDivision(parallelism=Parallelism(cp=2)), UNDIVIDED),
    ),
    "context parallelism, by a ring of four, interleaved": each_its_own(
        (
            ModuleDivision(recompute=("full",), parallelism=Parallelism(dp=2, cp=2)),
            ModuleDivision(pp=2, parallelism=Parallelism(chunks=2, cp=4)),
            UNDIVIDED,
        ),
        (UNDIVIDED, ModuleDivision(parallelism=Parallelism(cp=4)), UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="interleaved",
        together=True,
    ),
    "context parallelism, by heads": each_its_own(
        (
            _HEADS,
            ModuleDivision(
                pp=2, recompute=("selective",), parallelism=Parallelism(dp=2, cp=2, context_transfer="all_to_all")
            ),
            UNDIVIDED,
        ),
        (_HEADS, _HEADS, UNDIVIDED),
        together=True,
    ),
    "more and fewer tensor ranks, selective recomputation": each_its_own(
        (_SELECTIVE, dataclasses.replace(_SELECTIVE_RING, pp=2), _SELECTIVE),
        (_SELECTIVE, _SELECTIVE_RING, _SELECTIVE),
    ),
    "fewer and more replicas, full recomputation": each_its_own(
        (_FULL, ModuleDivision(pp=2, recompute=("full",), parallelism=Parallelism(tp=2)), _FULL),
        (_FULL, ModuleDivision(recompute=("full",)), _FULL),
    ),
    "zero-bubble pipeline, recomputation and offload that change along it and within a stage": each_its_own(
        (_BY_TURNS, dataclasses.replace(_BY_TURNS, pp=2).with_parallelism(tp=2), UNDIVIDED),
        (_BY_TURNS, dataclasses.replace(_BY_TURNS, pp=2), UNDIVIDED),
        (_BY_TURNS, _BY_TURNS, UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="zb-h1",
    ),
    "replicas and tensor ranks differ": each_its_own(
        (_TP2, ModuleDivision(parallelism=Parallelism(dp=2, tp=2)), UNDIVIDED),
        (_TP2, _DP2, UNDIVIDED),
        transport="ppermute",
    ),
    "shared devices": each_its_own((_DP2, _PP2, _TP2), (_DP2, UNDIVIDED, _DP2), together=True),
    "beside the backbone in its idle time": each_its_own(
        (ModuleDivision(pp=2, parallelism=Parallelism(tp=2)), _TP2_PP2, UNDIVIDED),
        (_TP2, _PP2, UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="colocated",
        together=True,
    ),
    "pipeline replicas beside the backbone, one on each device": each_its_own(
        (
            ModuleDivision(parallelism=Parallelism(pipeline_replicas=4)),
            _TP2_PP2,
            ModuleDivision(parallelism=Parallelism(pipeline_replicas=4)),
        ),
        (
            ModuleDivision(parallelism=Parallelism(pipeline_replicas=2)),
            _PP2,
            ModuleDivision(parallelism=Parallelism(pipeline_replicas=2)),
        ),
        microbatches=(4, *SEVERAL),
        schedule="colocated",
        together=True,
    ),
    "pipeline replicas beside the backbone, in slices and bundles": each_its_own(
        (
            ModuleDivision(parallelism=Parallelism(pipeline_replicas=2, tp=2, chunks=2)),
            ModuleDivision(pp=2, parallelism=Parallelism(tp=2, chunks=2, collectives="sequence_parallel")),
            ModuleDivision(parallelism=Parallelism(pipeline_replicas=2, tp=2)),
        ),
        (
            ModuleDivision(parallelism=Parallelism(pipeline_replicas=2, tp=2)),
            ModuleDivision(pp=2, parallelism=Parallelism(tp=2)),
            UNDIVIDED,
        ),
        (ModuleDivision(parallelism=Parallelism(pipeline_replicas=2)), _PP2, UNDIVIDED),
        microbatches=(4, *SEVERAL),
        schedule="colocated",
        together=True,
        bundled=True,
    ),
    "pipeline replicas on devices of their own, with rows of their own": each_its_own(
        (
            ModuleDivision(pp=2, phase_rows=2, two_capacities=True, parallelism=Parallelism(pipeline_replicas=2)),
            ModuleDivision(parallelism=Parallelism(dp=2)),
            ModuleDivision(phase_rows=1, parallelism=Parallelism(pipeline_replicas=2)),
        ),
        (
            ModuleDivision(phase_rows=1, parallelism=Parallelism(pipeline_replicas=2)),
            UNDIVIDED,
            ModuleDivision(phase_rows=1, parallelism=Parallelism(pipeline_replicas=2)),
        ),
        microbatches=(6, 3, 2),
    ),
    "chain cut in the backbone": in_one_unit((ModuleRole.BACKBONE,), _PP2, cut_in_encoder=False),
    "chain cut in the encoder": in_one_unit(
        (ModuleRole.BACKBONE, ModuleRole.GENERATOR),
        ModuleDivision(pp=2, parallelism=Parallelism(dp=2)),
        cut_in_encoder=True,
    ),
    "chain cut in the backbone, more tensor ranks there": in_one_unit(
        (ModuleRole.BACKBONE,), _RING_PP, cut_in_encoder=False, tensor_ranks=(1, 2, 1)
    ),
    "chain cut in the encoder, more tensor ranks in the backbone": either(
        *(
            in_one_unit(
                (ModuleRole.BACKBONE, ModuleRole.GENERATOR),
                _RING_PP.with_parallelism(dp=dp),
                cut_in_encoder=True,
                tensor_ranks=(1, 2, 1),
            )
            for dp in (2, 1)
        )
    ),
    "pipeline in one program, with replicas and rings of tensor ranks": each_its_own(
        (_DP2, _COMPILED.with_parallelism(dp=2, tp=2, collectives="ring"), _DP2),
        (UNDIVIDED, _COMPILED, UNDIVIDED),
        microbatches=(3, 2),
        together=True,
    ),
    "interleaved pipeline in one program, beside rows of their own": each_its_own(
        (
            ModuleDivision(phase_rows=1, two_capacities=True, parallelism=Parallelism(tp=2)),
            dataclasses.replace(_COMPILED.with_parallelism(chunks=2), recompute=("selective",)),
            ModuleDivision(phase_rows=1),
        ),
        (UNDIVIDED, _COMPILED.with_parallelism(chunks=2), UNDIVIDED),
        microbatches=(12, 8, 4, *SEVERAL),  # of one row, if it can be, so that some have no image
        schedule="interleaved",
    ),
    "pipeline in one program, on shared devices": each_its_own(
        (_TP2, dataclasses.replace(_COMPILED.with_parallelism(tp=2), pp=4, recompute=("full",)), _TP2),
        (UNDIVIDED, _COMPILED.with_parallelism(dp=2), UNDIVIDED),
        (UNDIVIDED, _COMPILED, UNDIVIDED),
        microbatches=(4, *SEVERAL),
        together=True,
    ),
}

_EP_TP_PP = ModuleDivision(
    pp=2, recompute=("selective",), parallelism=Parallelism(dp=2, tp=2, ep=2, collectives="ring")
)

EXPERT_LAYOUT_KINDS: dict[str, LayoutKind] = {
    "expert ranks that are all replicas": each_its_own(
        (UNDIVIDED, ModuleDivision(parallelism=Parallelism(dp=4, ep=4, expert_transfer="all_to_all")), UNDIVIDED),
        (UNDIVIDED, ModuleDivision(parallelism=Parallelism(dp=2, ep=2, expert_transfer="all_to_all")), UNDIVIDED),
        microbatches=(3, 2),
    ),
    "expert ranks that are some of the replicas": each_its_own(
        (_DP2, ModuleDivision(parallelism=Parallelism(dp=4, ep=2, expert_transfer="gather")), UNDIVIDED)
    ),
    "expert ranks, fully sharded": each_its_own(
        (_DP2, ModuleDivision(recompute=("selective",), parallelism=Parallelism(dp=4, ep=2, fsdp=4)), UNDIVIDED),
        (UNDIVIDED, ModuleDivision(parallelism=Parallelism(dp=2, ep=2, fsdp=2)), UNDIVIDED),
    ),
    "expert and tensor ranks in a pipeline": each_its_own(
        (_DP2, _EP_TP_PP, _TP2),
        (_DP2, ModuleDivision(pp=2, parallelism=Parallelism(dp=2, ep=2)), UNDIVIDED),
        together=True,
    ),
}

GENERATOR_LAYOUT_KINDS: dict[str, LayoutKind] = {
    "generator cut into stages, with tensor ranks": each_its_own(
        (UNDIVIDED, UNDIVIDED, _TP2_PP2), (UNDIVIDED, UNDIVIDED, _PP2), together=True
    ),
}
