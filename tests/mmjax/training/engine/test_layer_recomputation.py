"""Recomputation policies that change within a stage, against plain differentiation of the whole model on one device."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from configs.architectures import ExpertsConfig, LoraConfig, ModelConfig
from mmjax.models.model import model_modules
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.placement import check_host_memory
from mmjax.training.engine.settings import EngineSettings
from mmjax.training.engine.stage_layouts import make_stage_layouts, trees_by_module
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.plan_error import PlanError
from sharding.plans.resolved.resolved_plan import ResolvedPlan
from sharding.specs.modules import module_graph
from tests.mmjax.training.engines import (
    SETTINGS,
    assert_step_of_one_device,
    noisy_state,
    shared_engine,
)
from tests.tiers import first_in_default
from tests.tiny_model import BACKBONE, VISION, tiny_batch
from tests.unit_plans import flat_unit, module_unit

DEEP = dataclasses.replace(BACKBONE, depth=5)
CONFIG = ModelConfig((VISION,), DEEP, ())
EXPERTS = ModelConfig((), dataclasses.replace(DEEP, experts=ExpertsConfig(count=2, top_k=1, ffn=8, shared_ffn=8)), ())
ADAPTED = dataclasses.replace(CONFIG, lora=(LoraConfig("backbone", rank=2), LoraConfig("vision", rank=2)))
ADAPTERS = ("backbone_lora", "vision_lora", "vision_projector")


def chain(*recompute: str, layers=(7,), dp=1, tp=1, **fields) -> Plan:
    """The encoder of two layers and the backbone of five in one unit."""
    devices = tuple(range(dp * tp * len(layers) // fields.get("chunks", 1)))
    schedule = "interleaved" if "chunks" in fields else "1f1b"
    unit = flat_unit(
        "chain",
        ("vision", "backbone"),
        devices,
        layers=layers,
        recompute=recompute,
        **fields,
        parallelism=Parallelism(dp=dp, tp=tp),
    )
    return Plan((unit,), 2, schedule)


def check(plan: Plan, config: ModelConfig, trainable: tuple[str, ...] = ("all",)) -> None:
    assert_step_of_one_device(shared_engine(plan, config, dataclasses.replace(SETTINGS, trainable=trainable)))


def test_a_stack_is_divided_where_its_policy_changes_and_keeps_its_layers():
    plan = chain("1 full, 2 none, 1 selective", "2 selective, 1 none", layers=(4, 3))
    layouts = make_stage_layouts(ResolvedPlan(plan, module_graph(CONFIG)), model_modules(CONFIG))
    table = [
        [(run.parameter_key, " ".join(run.layers), run.recompute) for run in layout.piece_runs]
        for layout in layouts.values()
    ]
    assert table == [
        [
            ("vision/embed", "000", "full"), ("vision/blocks", "000", "full"), ("vision/blocks/001", "001", "none"),
            ("vision/norm", "000", "none"), ("vision/projector", "000", "none"),
            ("backbone/embed", "000", "none"), ("backbone/blocks", "000", "none"),
            ("backbone/blocks/001", "001", "selective"),
        ],
        [
            ("backbone/blocks", "002 003", "selective"), ("backbone/blocks/004", "004", "none"),
            ("backbone/head", "000", "none"),
        ],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "plan",
    first_in_default(
        [
            chain("1 full, 1 none, 1 selective, 2 offload, 2 none", tp=2, collectives="ring"),
            chain("1 none, 2 full", "1 offload, 1 none, 2 offload", layers=(3, 4), dp=2),
            chain("1 none, 1 full", "full", "1 full, 1 none", "none", layers=(2, 2, 2, 1), chunks=2),
        ]
    ),
    ids=["one stage", "two stages", "virtual stages"],
)
def test_gradients_are_those_of_one_device(plan):
    check(plan, CONFIG)


@pytest.mark.layouts
@pytest.mark.parametrize("trainable", [ADAPTERS, ("backbone", "vision_projector")], ids=["adapters", "frozen encoder"])
def test_so_are_those_of_adapters_and_behind_a_frozen_encoder(trainable):
    config = ADAPTED if trainable == ADAPTERS else CONFIG
    check(chain("1 offload, 1 none, 1 selective, 2 full, 2 offload", dp=2), config, trainable)


@pytest.mark.layouts
def test_so_are_those_of_experts_and_the_loss_that_balances_them_is_the_sum_over_runs():
    unit = module_unit(
        "backbone", (0, 1), layers=(5,), name="mind", recompute=("1 full, 1 selective, 2 none, 1 offload",), dp=2, ep=2
    )
    check(Plan((unit,), 2), EXPERTS)


def test_no_residual_is_a_copy_of_a_weight():
    """A stack's slices would be saved with the activations; a run has a stack of its own. Only activations grow."""
    wide = ModelConfig((), dataclasses.replace(DEEP, width=128, ffn=192, vocabulary=192), ())
    unit = module_unit("backbone", (0,), layers=(5,), name="mind", recompute=("2 none, 1 full, 2 selective",))
    sizes = []
    for rows in (4, 8):
        engine = Engine(wide, Plan((unit,)), tiny_batch(wide, rows), EngineSettings())
        programs = engine.executor.stages["mind", 0].programs
        losses = jax.eval_shape(programs.zero_losses)
        _, kept, _ = jax.eval_shape(programs.forward, *programs.operand_shapes, losses)
        sizes.append([leaf.size for leaf in kept])
    assert all(two == 2 * one or one < 128 * 64 for one, two in zip(*sizes, strict=True))


@pytest.mark.layouts
def test_a_state_moves_to_a_plan_with_other_policies(tmp_path):
    plans = (chain("1 full, 1 none, 5 selective", dp=2), chain("1 none, 2 full", "1 selective, 3 none", layers=(3, 4)))
    one, other = (shared_engine(plan, CONFIG) for plan in plans)
    state, _ = one.executor.step(noisy_state(one), one.place_batch(tiny_batch(CONFIG), 0))
    checkpoints = CheckpointManager(tmp_path, CONFIG)
    checkpoints.save(1, one, state, {})
    checkpoints.wait()
    restored, _, _ = checkpoints.restore(other)
    checkpoints.close()
    for trees in ("master_weights", "optimizer_state"):
        saved, loaded = (trees_by_module(getattr(engine_state, trees)) for engine_state in (state, restored))
        jax.tree.map(np.testing.assert_array_equal, saved, loaded)


def test_what_is_offloaded_is_in_host_memory_from_forward_to_backward():
    unit = module_unit("backbone", (0, 1), layers=(5,), name="mind", recompute=("1 full, 4 offload",), dp=2)
    config = ModelConfig((), DEEP, ())
    engine = shared_engine(Plan((unit,)), config)
    programs = engine.executor.stages["mind", 0].programs
    state, batch = noisy_state(engine), engine.place_batch(tiny_batch(config), 0).stages[("mind", 0), 0]
    weights = engine.executor.compute_weights(state)["mind", 0]
    result = programs.forward(weights, {}, batch, np.int32(0), programs.zero_losses())
    kinds = [leaf.sharding.memory_kind for leaf in result.residuals]
    assert kinds == [sharding.memory_kind or "device" for sharding in programs.residual_shardings]
    host = sum(leaf.nbytes for leaf in result.residuals if leaf.sharding.memory_kind == "pinned_host")
    block = module_graph(config).backbone.layer_named("blocks").offloaded
    tokens = batch.arrays["backbone"]["tokens"][0].size
    elements = 4 * (block.split.tokens + block.replicated.tokens)
    assert host == 4 * tokens * elements
    on_device = sum(leaf.nbytes for leaf in result.residuals) - host
    assert 0 < on_device < host


@pytest.mark.parametrize("recompute", ["selective", "offload", "full"])
def test_a_stage_without_a_backward_saves_nothing_whatever_the_policy(recompute):
    """The frozen encoder is a stage of its own, with the same program as under `none`, and no array in host memory."""
    settings = dataclasses.replace(SETTINGS, trainable=("backbone",))
    batch, programs = tiny_batch(CONFIG), []
    for policy in (recompute, "none"):
        plan = chain(policy, "none", layers=(2, 5))
        engine = Engine(CONFIG, plan, batch, settings)
        programs.append(engine.executor.stages["chain", 0].programs)
    given, none = programs
    assert given.backward is None and given.residual_shardings == []
    arguments = (*given.operand_shapes, jax.eval_shape(given.zero_losses))
    texts = (stage_programs.forward.lower(*arguments).compile().as_text() for stage_programs in (given, none))
    locations = re.compile(r", metadata={[^}]*}|^\d+ .*\n", re.MULTILINE)  # of operations, and tables of source lines
    text, plain_text = (locations.sub("", text) for text in texts)
    assert "host" not in text
    assert text == plain_text


class WithoutHostMemory:
    """A device that has its own memory alone."""

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        return getattr(self._device, name)

    def addressable_memories(self):
        return [memory for memory in self._device.addressable_memories() if memory.kind == "device"]


def test_a_device_without_host_memory_is_refused():
    devices = [jax.devices()[0], WithoutHostMemory(jax.devices()[1])]
    plan = chain("full", "1 none, 3 offload", layers=(3, 4))
    message = "unit chain: 3 of 4 layers of stage 1 .* device 1 .*no memory pinned_host, only device; .*selective"
    with pytest.raises(PlanError, match=message):
        check_host_memory(plan, devices)
