"""The figures of pipelines that are compiled for H100s, of a small program, and their tables."""

import json

import pytest

from benchmarks.pipelines.schedules import (
    CASES,
    PipelineBytes,
    PipelineCase,
    PipelineReport,
    find_sends,
    format_pipelines,
)
from mmjax.training.dry_run.scheduled_hlo import parse_scheduled_hlo

COMPILED = PipelineCase(ranks=4, recompute="full", executor="compiled", schedule="1f1b", generator=False, gemms="XLA")
PERMUTED = "(bf16[8192,4096]{1,0}, bf16[8192,4096]{1,0}) collective-permute-start(%h), source_target_pairs="
PROGRAM = f"""HloModule jit_step, is_scheduled=true

%gemm (p.0: bf16[8192,4096], p.1: bf16[4096,4096]) -> bf16[8192,4096] {{
  %p.0 = bf16[8192,4096]{{1,0}} parameter(0)
  %p.1 = bf16[4096,4096]{{1,0}} parameter(1)
  ROOT %dot = bf16[8192,4096]{{1,0}} dot(%p.0, %p.1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

%added (p.2: f32[4,8192,8192]) -> f32[4,8192,8192] {{
  %p.2 = f32[4,8192,8192]{{2,1,0}} parameter(0)
  ROOT %sum = f32[4,8192,8192]{{2,1,0}} add(%p.2, %p.2)
}}

%tick (s: (bf16[8192,4096], bf16[4096,4096], f32[4,8192,8192])) -> (bf16[8192,4096], bf16[4096,4096], f32[4,8192,8192]) {{
  %s = (bf16[8192,4096]{{1,0}}, bf16[4096,4096]{{1,0}}, f32[4,8192,8192]{{2,1,0}}) parameter(0)
  %h = bf16[8192,4096]{{1,0}} get-tuple-element(%s), index=0
  %w = bf16[4096,4096]{{1,0}} get-tuple-element(%s), index=1
  %g = f32[4,8192,8192]{{2,1,0}} get-tuple-element(%s), index=2
  %up = {PERMUTED}{{{{0,2}},{{1,3}}}}
  %product = bf16[8192,4096]{{1,0}} fusion(%h, %w), kind=kCustom, calls=%gemm
  %there = bf16[8192,4096]{{1,0}} collective-permute-done(%up)
  %down = {PERMUTED}{{{{2,0}},{{3,1}}}}
  %total = f32[4,8192,8192]{{2,1,0}} fusion(%g), kind=kLoop, calls=%added
  %back = bf16[8192,4096]{{1,0}} collective-permute-done(%down)
  ROOT %t = (bf16[8192,4096]{{1,0}}, bf16[4096,4096]{{1,0}}, f32[4,8192,8192]{{2,1,0}}) tuple(%there, %w, %total)
}}

%condition (c: (bf16[8192,4096], bf16[4096,4096], f32[4,8192,8192])) -> pred[] {{
  %c = (bf16[8192,4096]{{1,0}}, bf16[4096,4096]{{1,0}}, f32[4,8192,8192]{{2,1,0}}) parameter(0)
  ROOT %always = pred[] constant(true)
}}

ENTRY %main (x: (bf16[8192,4096], bf16[4096,4096], f32[4,8192,8192])) -> (bf16[8192,4096], bf16[4096,4096], f32[4,8192,8192]) {{
  %x = (bf16[8192,4096]{{1,0}}, bf16[4096,4096]{{1,0}}, f32[4,8192,8192]{{2,1,0}}) parameter(0)
  ROOT %loop = (bf16[8192,4096]{{1,0}}, bf16[4096,4096]{{1,0}}, f32[4,8192,8192]{{2,1,0}}) while(%x), condition=%condition, body=%tick, backend_config={{"known_trip_count":{{"n":"8"}}}}
}}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("ranks", "stage", "generator", "expected"), [(4, 0, False, 4), (4, 3, False, 1), (8, 0, False, 8), (4, 3, True, 2)]
)
def test_a_stage_has_as_many_microbatches_in_flight_as_stages_follow_with_itself(ranks, stage, generator, expected):
    assert COMPILED._replace(ranks=ranks, generator=generator).in_flight(stage) == expected


def test_plans_use_all_devices():
    for case in CASES:
        unit, *generators = case.plan(32).units
        assert len(generators) == case.generator
        assert unit.parallelism.tp * case.ranks == len(unit.devices) == 8


def test_sends_are_told_apart_by_direction_and_by_what_runs_beside_them():
    forward, backward = find_sends(parse_scheduled_hlo(PROGRAM))
    assert (forward.forward, forward.ticks, forward.collective.hidden, forward.beside_writes) == (True, 8, True, False)
    assert (backward.forward, backward.ticks, backward.collective.hidden) == (False, 8, False)
    assert backward.written == 4 * 4 * 8192**2 and backward.beside_writes


def test_tables_have_a_line_a_case_and_one_a_direction():
    dispatched = PipelineReport(COMPILED._replace(executor="dispatched"), PipelineBytes(3, 2**20, 2**21, 2**22), [])
    compiled = PipelineReport(COMPILED, PipelineBytes(-1, 2**20, 0, 2**23), find_sends(parse_scheduled_hlo(PROGRAM)))
    memory, permutes = (table.splitlines()[2:] for table in format_pipelines([dispatched, compiled]).split("\n\n"))
    assert memory == [
        "| 4 | full | dispatched | 1f1b |  | XLA | 3 | 1 | 2 | 4 | 6 |",
        "| 4 | full | compiled | 1f1b |  | XLA |  | 1 | 0 | 8 | 8 |",
    ]
    assert permutes == [
        "| 4 | full | compiled | 1f1b |  | XLA | forward | 8 | 64 | 8 | 0 | 0 |",
        "| 4 | full | compiled | 1f1b |  | XLA | backward | 8 | 64 | 0 | 8 | 0 |",
    ]
    json.dumps(compiled.as_json())
