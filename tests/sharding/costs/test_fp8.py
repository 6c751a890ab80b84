"""Costs of matmuls with FP8 operands: their rate, the traffic of rounding, and devices that multiply no FP8."""

import numpy as np
import pytest

from configs.architectures import BackboneConfig, ModelConfig
from configs.attention.latent_attention import LatentAttentionConfig
from configs.clusters import CLUSTERS
from configs.modules.experts import ExpertsConfig
from sharding.costs.analytic import AnalyticCostModel
from sharding.costs.batch_costs import BatchCosts
from sharding.costs.cost_model import LayerParallelism
from sharding.costs.kernel_seconds import KernelCosts
from sharding.costs.matmul_seconds import MatmulSizes, matmul_seconds
from sharding.costs.stages.plan_costs import plan_costs
from sharding.plans.plan import single_device_plan
from sharding.plans.resolved.resolved_plan import resolve_plan
from sharding.specs.layers.layer import make_loads, matmul
from sharding.specs.modules import module_graph
from tests.sharding.layers import bare_layer

TOKENS, INNER, OUTER = 8192, 4096, 14336
LAYERS = ("attention", "mlp")


def passes(cluster, kernel, ranks):
    costs = KernelCosts(cluster, cluster.memory_bandwidth, 0.0, 2)
    return np.array(costs.passes(bare_layer("toy", "toy", kernel), make_loads(TOKENS), ranks))[:, 0]


@pytest.mark.parametrize(
    ("name", "peak"), [("h100", 1979e12), ("h200", 1979e12), ("h20", 296e12), ("b200", 4500e12), ("a100", 312e12)]
)
def test_peaks_are_those_of_the_data_sheets(name, peak):
    cluster = CLUSTERS[name]
    assert cluster.peak_flops * cluster.generation.fp8_rate == pytest.approx(peak, rel=1e-3)


@pytest.mark.parametrize(("split_by", "tp"), [("columns", 1), ("columns", 4), ("rows", 4)])
def test_a_matmul_takes_its_operands_rounding_and_what_its_shape_takes_in_fp8(split_by, tp):
    cluster = CLUSTERS["h100"].without(["throttling"])
    inner, outer = (INNER, OUTER // tp) if split_by == "columns" else (INNER // tp, OUTER)
    kernel = matmul("up", INNER, OUTER, split_by=split_by, fp8=True)
    shapes = (TOKENS, outer, inner), (TOKENS, inner, outer), (inner, outer, TOKENS)
    products = [
        float(matmul_seconds(MatmulSizes(*map(np.asarray, (*map(float, shape), 1.0))), cluster, 2, 3.35e12, fp8=True))
        for shape in shapes
    ]
    x, w, cotangent = TOKENS * inner, inner * outer, TOKENS * outer
    rounding = [5 * elements / cluster.memory_bandwidth for elements in (x + w, cotangent + w, x)]
    np.testing.assert_allclose(passes(cluster, kernel, LayerParallelism(tp)), np.add(products, rounding), rtol=1e-9)


def test_large_matmuls_gain_most_of_the_rate_and_narrow_ones_lose_it_to_rounding():
    def ratio(inner, outer):
        fp8, native = (
            passes(CLUSTERS["h100"], matmul("m", inner, outer, fp8=fp8), LayerParallelism()).sum()
            for fp8 in (True, False)
        )
        return fp8 / native

    assert 0.5 < ratio(8192, 28672) < 0.65 < ratio(1024, 1024)


def test_devices_that_multiply_no_fp8_take_the_rounding_more():
    fp8, native = (
        passes(CLUSTERS["a100"], matmul("m", INNER, OUTER, fp8=fp8), LayerParallelism()) for fp8 in (True, False)
    )
    assert (fp8 > native).all()


@pytest.mark.parametrize(
    ("options", "in_fp8"),
    [
        ({}, {"query_key_value", "output", "up", "down"}),
        (
            {"experts": ExpertsConfig(shared_ffn=64), "gated": True, "biases": ()},
            {"query_key_value", "output", "shared_up", "shared_down"},
        ),
        (
            {"latent_attention": LatentAttentionConfig(query_rank=64), "kv_heads": 4, "biases": ()},
            {"query_down", "query", "latent", "key_value", "output", "up", "down"},
        ),
    ],
)
def test_projections_are_in_fp8_and_routers_experts_and_heads_are_not(options, in_fp8):
    backbone = BackboneConfig(width=128, heads=4, ffn=256, fp8=LAYERS, **options)
    module = module_graph(ModelConfig((), backbone, ())).backbone
    assert {kernel.name for layer, _ in module.all_layers for kernel in layer.kernels if kernel.fp8} == in_fp8


def test_utilization_is_of_the_fp8_peak_where_a_model_has_fp8():
    config = ModelConfig((), BackboneConfig(width=128, heads=4, ffn=256), ())
    cluster = CLUSTERS["h100"]

    def costs(config):
        graph = module_graph(config)
        rows = {"backbone": make_loads(np.full(1, 64.0), 64.0**2, 1)}
        batch = BatchCosts(graph, AnalyticCostModel(cluster), rows)
        return plan_costs(resolve_plan(single_device_plan(graph), graph, 1, 1), batch)

    native, fp8 = costs(config), costs(config.with_fp8(LAYERS))
    assert (native.peak_flops, native.uses_fp8) == (cluster.peak_flops, False)
    assert (fp8.peak_flops, fp8.uses_fp8) == (2 * cluster.peak_flops, True)
