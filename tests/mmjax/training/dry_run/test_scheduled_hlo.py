import pytest

from mmjax.training.dry_run.scheduled_hlo import parse_scheduled_hlo, result_arrays, result_bytes

PROGRAM = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, num_partitions=4

FileNames
1 "f.py"

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[], f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%state), index=1
  %y = f32[4]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
  %n = s32[] get-tuple-element(%state), index=0
  ROOT %next = (s32[], /*index=1*/f32[4]{0}) tuple(%n, %y)
}, execution_thread="main"

%condition (state.1: (s32[], f32[4])) -> pred[] {
  %state.1 = (s32[], f32[4]{0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %negated = f32[4]{0} negate(%p), metadata={op_name="neg (a)" source_line=3}
}

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0), sharding={replicated}
  %zero = s32[] constant(0)
  %fusion = f32[4]{0} fusion(%x.1), kind=kLoop, calls=%fused
  %start = (s32[], f32[4]{0}) tuple(%zero, %fusion)
  %while = (s32[], f32[4]{0}) while(%start), condition=%condition, body=%body
  ROOT %result = f32[4]{0} get-tuple-element(%while), index=1
}
"""


def test_instructions_keep_their_order_their_operands_and_what_they_call():
    program = parse_scheduled_hlo(PROGRAM)
    entry = program.computations[program.entry]
    assert program.entry == "main"
    assert [instruction.opcode for instruction in entry.instructions] == [
        "parameter", "constant", "fusion", "tuple", "while", "get-tuple-element",
    ]  # fmt: skip
    assert entry["start"].operands == ("zero", "fusion")
    assert entry["while"].called == ("condition", "body")
    assert entry["while"].type == "(s32[], f32[4]{0})"
    assert [called.name for called in program.called_by(entry["fusion"])] == ["fused"]


def test_only_what_runs_in_turn_is_issued():
    assert [computation.name for computation in parse_scheduled_hlo(PROGRAM).issued()] == ["main", "condition", "body"]


def test_a_program_without_a_schedule_is_refused():
    with pytest.raises(ValueError, match="was not scheduled"):
        parse_scheduled_hlo(PROGRAM.replace("is_scheduled=true, ", ""))


def test_a_program_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse_scheduled_hlo(PROGRAM.replace("ENTRY ", ""))


def test_branches_of_a_conditional_are_called():
    program = parse_scheduled_hlo(
        PROGRAM.replace("condition=%condition, body=%body", "branch_computations={%condition, %body}")
    )
    assert program.computations["main"]["while"].called == ("condition", "body")


@pytest.mark.parametrize(
    ("type_", "size"),
    [
        ("bf16[2048,8192]{1,0}", 2048 * 8192 * 2),
        ("(bf16[4]{0:T(256)}, f32[2,3]{1,0}, u32[])", 8 + 24 + 4),
        ("pred[5]{0}", 5),
        ("f8e4m3fn[3]{0}", 3),
        ("s4[8]{0:E(4)}", 4),
        ("()", 0),
        ("token[]", 0),
    ],
)
def test_sizes(type_, size):
    assert result_bytes(type_) == size


def test_shapes():
    assert result_arrays("(bf16[4,2]{1,0}, u32[])") == [("bf16", (4, 2)), ("u32", ())]
