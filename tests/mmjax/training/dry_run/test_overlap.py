import pytest

from mmjax.training.dry_run.overlap import (
    Collective,
    Matmul,
    MatmulProduct,
    covered_by,
    executions,
    find_collectives,
    find_matmuls,
)
from mmjax.training.dry_run.scheduled_hlo import parse_scheduled_hlo

COMPUTATIONS = """HloModule jit_f, is_scheduled=true

%gemm (p.0: bf16[8,16], p.1: bf16[16,32]) -> bf16[8,32] {
  %p.0 = bf16[8,16]{1,0} parameter(0)
  %p.1 = bf16[16,32]{1,0} parameter(1)
  ROOT %dot = bf16[8,32]{1,0} dot(%p.0, %p.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%turned (p.2: bf16[8,16]) -> bf16[8,16] {
  %p.2 = bf16[8,16]{1,0} parameter(0)
  ROOT %negated = bf16[8,16]{1,0} negate(%p.2)
}

%scattered (p.3: f32[8,16]) -> f32[4,16] {
  %p.3 = f32[8,16]{1,0} parameter(0)
  ROOT %scatter = f32[4,16]{1,0} reduce-scatter(%p.3), dimensions={0}, to_apply=%add
}

%body (s: (s32[], bf16[8,16], bf16[16,32])) -> (s32[], bf16[8,16], bf16[16,32]) {
  %s = (s32[], bf16[8,16]{1,0}, bf16[16,32]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %h = bf16[8,16]{1,0} get-tuple-element(%s), index=1
  %v = bf16[16,32]{1,0} get-tuple-element(%s), index=2
  %inner = (bf16[8,16]{1,0}, bf16[8,16]{1,0}) collective-permute-start(%h), source_target_pairs={{0,1},{1,0}}
  %product = bf16[8,32]{1,0} fusion(%h, %v), kind=kCustom, calls=%gemm
  %moved = bf16[8,16]{1,0} collective-permute-done(%inner)
  ROOT %t = (s32[], bf16[8,16]{1,0}, bf16[16,32]{1,0}) tuple(%n, %moved, %v)
}

%condition (c: (s32[], bf16[8,16], bf16[16,32])) -> pred[] {
  %c = (s32[], bf16[8,16]{1,0}, bf16[16,32]{1,0}) parameter(0)
  ROOT %always = pred[] constant(true)
}

ENTRY %main (x: bf16[8,16], w: bf16[16,32], g: f32[8,16]) -> bf16[8,32] {
  %x = bf16[8,16]{1,0} parameter(0)
  %w = bf16[16,32]{1,0} parameter(1)
  %g = f32[8,16]{1,0} parameter(2)
"""

START = "%ps = (bf16[8,16]{1,0}, bf16[8,16]{1,0}) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}"
DONE = "%pd = bf16[8,16]{1,0} collective-permute-done(%ps)"
GEMM = "%y = bf16[8,32]{1,0} fusion(%x, %w), kind=kCustom, calls=%gemm"
OTHER = "%z = bf16[8,16]{1,0} fusion(%x), kind=kLoop, calls=%turned"
LIBRARY = (
    '%y = (bf16[8,32]{1,0}, s8[1024]{0}) custom-call(%x, %w), custom_call_target="__cublas$lt$matmul", '
    'backend_config={"gemm_backend_config":{"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
    '"rhs_contracting_dimensions":["0"]}}}'
)
SCATTER_START = "%rs = ((f32[8,16]{1,0}), f32[4,16]{1,0}) async-start(%g), calls=%scattered"
SCATTER_DONE = "%rd = f32[4,16]{1,0} async-done(%rs)"
TUPLE = "%state = (s32[], bf16[8,16]{1,0}, bf16[16,32]{1,0}) tuple(%zero, %x, %w)"
FLOPS = 2 * 8 * 16 * 32


def scheduled(*lines):
    return parse_scheduled_hlo(COMPUTATIONS + "".join(f"  {line}\n" for line in lines) + "}\n")


def test_a_permute_is_hidden_by_the_matmul_between_its_start_and_its_done():
    (permute,) = find_collectives(scheduled(START, OTHER, GEMM, DONE))
    assert permute.hidden
    assert (permute.kind, permute.size, permute.flops) == ("collective-permute", 8 * 16 * 2, FLOPS)
    assert [matmul.name for matmul in permute.concurrent_matmuls] == ["y"]


@pytest.mark.parametrize("lines", [(GEMM, START, DONE), (START, DONE, GEMM), (START, OTHER, DONE, GEMM)])
def test_a_permute_with_no_matmul_meanwhile_is_exposed(lines):
    (permute,) = find_collectives(scheduled(*lines))
    assert permute.kind == "collective-permute" and not permute.hidden
    assert permute.flops == 0


def test_a_permute_that_is_waited_for_is_exposed_whatever_follows():
    waited = START + ', backend_config={"collective_backend_config":{"is_sync":true}}'
    (permute,) = find_collectives(scheduled(waited, GEMM, DONE))
    assert not permute.hidden
    assert permute.synchronous and permute.flops == 0


def test_a_matmul_by_the_library_counts_without_its_workspace():
    (permute,) = find_collectives(scheduled(START, LIBRARY, DONE))
    assert permute.hidden
    assert permute.flops == FLOPS


def test_a_plain_dot_and_a_gemm_with_leading_dimensions_count():
    dot = "%b = f32[3,8,32]{2,1,0} dot(%u, %v), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"  # noqa: E501
    operands = "%u = f32[3,8,16]{2,1,0} broadcast(%x)", "%v = f32[3,16,32]{2,1,0} broadcast(%w)"
    (matmul,) = find_matmuls(scheduled(*operands, dot))
    assert matmul.flops == 3 * FLOPS
    assert [str(product) for product in matmul.products] == ["[3, 8, 32] over 16"]


@pytest.mark.parametrize("target", ["__cudnn$fmhaSoftmax", "mosaic_gpu_v2"])
def test_a_kernel_counts_as_a_matmul_of_unknown_work(target):
    kernel = f'%a = bf16[8,16]{{1,0}} custom-call(%x), custom_call_target="{target}"'
    (permute,) = find_collectives(scheduled(START, kernel, DONE))
    assert permute.hidden
    assert permute.flops == 0


def test_other_custom_calls_are_no_matmuls():
    kernel = '%a = bf16[8,16]{1,0} custom-call(%x), custom_call_target="__cub$DeviceRadixSort"'
    (permute,) = find_collectives(scheduled(START, kernel, DONE))
    assert not permute.hidden


def test_two_that_run_at_once_are_both_hidden_by_the_matmul_and_listed_in_the_order_of_their_starts():
    lines = START, START.replace("%ps", "%qs"), GEMM, DONE.replace("%pd", "%qd").replace("%ps", "%qs"), DONE
    permutes = find_collectives(scheduled(*lines))
    assert [(permute.name, permute.flops) for permute in permutes] == [("ps", FLOPS), ("qs", FLOPS)]


def test_a_wrapped_collective_has_its_own_kind_and_the_larger_of_its_sides():
    (scatter,) = find_collectives(scheduled(SCATTER_START, GEMM, SCATTER_DONE))
    assert (scatter.kind, scatter.size, scatter.smaller) == ("reduce-scatter", 8 * 16 * 4, 4 * 16 * 4)
    assert scatter.hidden


def test_a_wrapped_collective_ends_at_its_done():
    (scatter,) = find_collectives(scheduled(SCATTER_START, SCATTER_DONE, GEMM))
    assert not scatter.hidden


def test_an_update_leads_back_to_the_start():
    update = "%ru = ((f32[8,16]{1,0}), f32[4,16]{1,0}) async-update(%rs), calls=%scattered"
    done = SCATTER_DONE.replace("%rs", "%ru")
    assert [scatter.hidden for scatter in find_collectives(scheduled(SCATTER_START, GEMM, update, done))] == [True]
    assert [scatter.hidden for scatter in find_collectives(scheduled(SCATTER_START, update, done, GEMM))] == [False]


def test_a_collective_that_is_one_instruction_is_waited_for():
    (gather,) = find_collectives(scheduled("%a = bf16[16,16]{1,0} all-gather(%x), dimensions={0}", GEMM))
    assert (gather.kind, gather.size, gather.hidden) == ("all-gather", 16 * 16 * 2, False)


def test_a_loop_has_collectives_of_its_own_and_hides_others_by_the_matmuls_of_all_its_turns():
    loop = '%l = (s32[], bf16[8,16]{1,0}, bf16[16,32]{1,0}) while(%state), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}'  # noqa: E501
    outer, inner = find_collectives(scheduled("%zero = s32[] constant(0)", TUPLE, START, loop, DONE))
    assert outer.flops == 5 * FLOPS
    assert (inner.computation, inner.flops) == ("body", FLOPS)
    assert [matmul.name for matmul in find_matmuls(scheduled(TUPLE, loop))] == ["product"]


def test_what_a_loop_issues_runs_in_every_iteration_of_it_and_of_the_loop_around_it():
    state = "(s32[], bf16[8,16]{1,0}, bf16[16,32]{1,0})"

    def loop(name, body, trips):
        counted = f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
        return f"{name} = {state} while(%state), condition=%condition, body=%{body}, {counted}"

    around = f"%around (state: {state}) -> {state} {{\n  %state = {state} parameter(0)\n  {loop('%i', 'body', 3)}\n}}\n"
    before, main = COMPUTATIONS.split("ENTRY")
    program = parse_scheduled_hlo(f"{before}{around}\nENTRY{main}  {TUPLE}\n  {loop('%o', 'around', 5)}\n}}\n")
    times = executions(program)
    assert (times["main"], times["around"], times["body"]) == (1, 5, 15)


def test_what_the_next_turn_ends_is_under_way_to_the_end_of_this_one():
    ends = "%before = bf16[8,16]{1,0} collective-permute-done(%carried)"
    (permute,) = find_collectives(scheduled("%carried = bf16[8,16]{1,0} copy(%x)", ends, START, GEMM))
    assert permute.hidden


def test_where_the_model_says_it_is_named():
    named = START + ', metadata={op_name="jit(f)/ppermute" source_line=3}'
    (permute,) = find_collectives(scheduled(named, DONE))
    assert permute.operation == "jit(f)/ppermute"


def test_a_matmul_that_does_not_say_what_it_contracts_is_refused():
    with pytest.raises(ValueError, match="y does not say what it contracts"):
        find_matmuls(scheduled('%y = bf16[8,32]{1,0} custom-call(%x, %w), custom_call_target="__cublas$gemm"'))


@pytest.mark.parametrize(
    ("result", "operands", "target"),
    [
        ("bf16[2,4,4,6]", "%image, %kernel", "convForward"),
        ("bf16[2,8,8,3]", "%output, %kernel", "convBackwardInput"),
        ("bf16[6,3,3,3]", "%image, %output", "convBackwardFilter"),
    ],
)
def test_a_convolution_and_its_gradients_compute_the_products_of_each_output(result, operands, target):
    """A kernel of 3 x 3 pixels with stride 2: each of 2 x 4 x 4 x 6 outputs sums 3 x 3 x 3 products."""
    program = scheduled(
        "%image = bf16[2,8,8,3]{3,2,1,0} parameter(3)",
        "%kernel = bf16[6,3,3,3]{3,2,1,0} parameter(4)",
        "%output = bf16[2,4,4,6]{3,2,1,0} parameter(5)",
        f"%c = ({result}{{3,2,1,0}}, u8[0]{{0}}) custom-call({operands}), window={{size=3x3 stride=2x2}}, "
        f'dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn${target}"',
    )
    (matmul,) = find_matmuls(program)
    assert matmul.flops == 2 * (2 * 4 * 4 * 6) * (3 * 3 * 3)


@pytest.mark.parametrize(
    ("synchronous", "products", "expected"),
    [
        (False, ((MatmulProduct((4, 8), 16),) * 2), "2 x [4, 8] over 16"),
        (False, (), "kernels"),
        (True, (MatmulProduct((4, 8), 16),), ""),
    ],
)
def test_a_collective_is_covered_by_the_matmuls_beside_it(synchronous, products, expected):
    collective = Collective(
        name="all-gather",
        kind="all-gather",
        operation="",
        computation="main",
        size=1,
        smaller=1,
        synchronous=synchronous,
        concurrent_matmuls=(Matmul("dot", products, "", "main"),),
    )
    assert covered_by(collective) == expected


@pytest.mark.parametrize(
    ("result", "operands", "products"),
    [
        (
            "bf16[8192,768]{1,0}",
            "s32[16]{0}, bf16[8192,2048]{1,0}, bf16[16,2048,768]{2,1,0}",
            ["[8192, 768] over 2048"],
        ),
        (
            "bf16[8192,2048]{1,0}",
            "s32[16]{0}, bf16[8192,768]{1,0}, bf16[16,2048,768]{2,1,0}",
            ["[8192, 2048] over 768"],
        ),
        (
            "bf16[16,2048,768]{2,1,0}",
            "s32[16]{0}, s32[16]{0}, bf16[8192,2048]{1,0}, bf16[8192,768]{1,0}",
            ["[2048, 768] over 8192"],
        ),
        ("bf16[4,64,128]{2,1,0}", "bf16[64,128]{1,0}, bf16[128,128]{1,0}", []),
    ],
)
def test_grouped_kernels_compute_what_their_rows_do(result, operands, products):
    line = (
        f'  %k = {result} custom-call(%a), custom_call_target="mosaic_gpu_v2", '
        f"operand_layout_constraints={{{operands}}}, api_version=API_VERSION_TYPED_FFI"
    )
    text = f"HloModule m, is_scheduled=true\n\nENTRY %main () -> f32[] {{\n{line}\n}}\n"
    (matmul,) = find_matmuls(parse_scheduled_hlo(text))
    assert [str(product) for product in matmul.products] == products
