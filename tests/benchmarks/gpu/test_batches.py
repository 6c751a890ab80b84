"""The batches that both frameworks read: what is described, and that mmjax's arrays hold it."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu import batches as gpu_batches
from benchmarks.gpu.correctness import SHAPE
from benchmarks.gpu.mmjax_step import fitting_engines, host_batches, needed_bytes
from benchmarks.gpu.sizes import FULL, TINY
from configs.workloads import SyntheticData
from mmjax import cli
from pallas_kernels.collective_matmul.mosaic_support import unsupported_shape_reason
from sharding.specs.modules import module_graph
from tests.filled_row_loads import filled_row_loads


@pytest.mark.parametrize("sizes", [FULL, TINY])
def test_rows_are_full_and_no_sample_is_dropped_or_repeated(sizes):
    steps = gpu_batches.draw_steps(sizes)
    filled = [sum(gpu_batches.sample_tokens(sample, sizes) for sample in row) for step in steps for row in step]
    assert len(filled) == sizes.batches * sizes.rows
    assert max(filled) <= sizes.tokens
    assert np.mean(filled) > 0.95 * sizes.tokens
    numbers = [sample.number for step in steps for sample in gpu_batches.step_samples(step)]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < len(numbers) + gpu_batches.WINDOW


def test_the_file_holds_all_of_it(tmp_path):
    steps = gpu_batches.draw_steps(TINY)
    gpu_batches.save_steps(tmp_path / "batches.json", steps)
    assert gpu_batches.load_steps(tmp_path / "batches.json") == steps


def test_work_and_tokens_are_those_of_the_arrays():
    steps = gpu_batches.draw_steps(TINY)
    graph = module_graph(TINY.model)
    for step, batch in zip(steps, host_batches(steps, TINY), strict=True):
        assert batch.real_and_capacity["backbone"][0] == gpu_batches.useful_tokens(step, TINY)
        flops = gpu_batches.step_flops(step, TINY)
        for name, loads in filled_row_loads(batch.arrays, graph).items():
            assert flops[name] == 3 * graph[name].forward_flops(loads).sum()


def test_lengths_are_those_of_the_llava_like_data():
    cli.parse_gin(("data/llava_like.gin",))
    (described,) = [kind for kind, _ in cli.configured(SyntheticData).kinds]
    assert (FULL.text, FULL.pictures) == (described.text_tokens, described.image_counts)


def test_the_model_is_of_one_to_two_billion_parameters():
    graph = module_graph(FULL.model)
    assert 1.5e9 < graph["backbone"].parameter_count < 1.6e9
    assert 1.8e9 < sum(module.parameter_count for module in graph.modules) < 1.9e9


def test_a_smaller_memory_gets_a_more_frugal_step():
    (batch, *_) = host_batches(gpu_batches.draw_steps(TINY), TINY)
    plans = [engine.plan for engine, _ in fitting_engines(TINY, batch.arrays, float("inf"))]
    assert [(plan.microbatches, plan.units[0].recompute[0]) for plan in plans] == [
        (2, "none"),
        (4, "none"),
        (4, "selective"),
        (4, "full"),
    ]
    ((engine, said),) = fitting_engines(TINY, batch.arrays, 0.0)
    assert engine.plan == plans[-1] and "4 microbatches, recompute full" in said
    assert needed_bytes(engine, TINY) > 22 * sum(module.parameter_count for module in engine.graph.modules)


def test_the_hopper_kernels_take_the_shapes():
    shapes = [shape for _, shape in FULL.matmuls] + [(SHAPE[0] * FULL.ranks, *SHAPE[1:])]
    for rows, depth, columns in shapes:
        assert unsupported_shape_reason(rows // FULL.ranks, depth, [columns], jnp.bfloat16) == ""
