"""What XLA schedules for H100s of a fully sharded stage: a layer's collectives run beside matmuls."""

import pytest

from benchmarks.fully_sharded.schedules import OPTIONS, stage_schedule
from mmjax.training.dry_run.targets import missing_plugin

pytestmark = [pytest.mark.aot, pytest.mark.skipif(bool(missing_plugin()), reason=missing_plugin())]

PARAMETERS = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
"""Of a layer of Llama3-70B in its matmuls, all of which eight devices divide."""

MATMULS = 4 + 3


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_weight_is_gathered_once_a_pass_and_each_gradient_scattered_once_in_float32(recompute, options):
    forward, backward = (stage_schedule(recompute, direction, options) for direction in ("forward", "backward"))
    for schedule in (forward, backward):
        gathers = [collective for collective in schedule.of_layer if collective.kind == "all-gather"]
        assert len(gathers) == MATMULS
        assert PARAMETERS * 2 <= schedule.bytes_of("all-gather") < PARAMETERS * 2 * 1.001  # and the scales of two norms
    assert forward.bytes_of("reduce-scatter") == 0
    assert PARAMETERS * 4 <= backward.bytes_of("reduce-scatter") < PARAMETERS * 4 * 1.001


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_with_pipelined_collectives_matmuls_run_beside_most_of_what_a_layer_exchanges(recompute):
    """Of a backward seven eighths of the bytes, of a forward five; by default a backward may expose all gathers."""
    forward, backward = (stage_schedule(recompute, direction, "pipelined") for direction in ("forward", "backward"))
    assert forward.exposed_bytes("all-gather") <= forward.bytes_of("all-gather") * 3 / 8
    for kind in ("all-gather", "reduce-scatter"):
        assert backward.exposed_bytes(kind) <= backward.bytes_of(kind) / 8
