"""Rules: matching of tensors and parameters, and the problems that are refused."""

import pytest

from mmjax.weights.published.rules import (
    Rule,
    expand_numbers,
    linear_rules,
    match_rules,
    norm_rules,
    with_first_layers,
    with_prefix,
)
from mmjax.weights.published.tensor_layouts import LINEAR, Stacked

SHAPES = {
    "vision/blocks/000/mlp/kernel": (2, 3),
    "vision/blocks/001/mlp/kernel": (2, 3),
    "vision/norm/000/norm/scale": (2,),
    "vision/norm/000/norm/bias": (2,),
    "vision/projector/000/kernel": (5, 5),
}
RULES = (
    *linear_rules("blocks.{layer}.fc", "blocks/mlp", LINEAR, bias=False),
    *norm_rules("ln", "norm/norm", bias=True),
)


def test_rules_match_every_layer_and_skip_pieces_without_rules():
    matches = {of.tensor_names: of for of in match_rules({"vision": RULES}, SHAPES)}
    assert list(matches) == [("blocks.0.fc.weight",), ("blocks.1.fc.weight",), ("ln.weight",), ("ln.bias",)]
    second = matches["blocks.1.fc.weight",]
    assert (second.parameter_paths, second.parameter_shapes, second.tensor_shapes) == (
        ("vision/blocks/001/mlp/kernel",),
        ((2, 3),),
        ((3, 2),),
    )


def test_experts_are_stacked():
    rule = Rule(
        expand_numbers("layers.{layer}.experts.{expert}.weight", "expert", 3), "blocks/experts/kernel", Stacked()
    )
    (found,) = match_rules({"m": (rule,)}, {"m/blocks/000/experts/kernel": (3, 4, 5)})
    assert found.tensor_names == tuple(f"layers.0.experts.{expert}.weight" for expert in range(3))
    assert found.tensor_shapes == ((5, 4),) * 3


def test_first_layers_that_are_pieces_of_their_own_keep_their_numbers():
    rules = with_first_layers((Rule("h.{layer}.w", "blocks/w"), Rule("e", "embed/e")), "blocks", ("early_0", "early_1"))
    shapes = dict.fromkeys(
        (f"m/{layer}/w" for layer in ("early_0/000", "early_1/000", "blocks/000", "blocks/001")), (2,)
    )
    found = {
        of.parameter_paths[0]: of.tensor_names[0] for of in match_rules({"m": rules}, shapes | {"m/embed/000/e": ()})
    }
    assert found == {
        "m/early_0/000/w": "h.0.w",
        "m/early_1/000/w": "h.1.w",
        "m/blocks/000/w": "h.2.w",
        "m/blocks/001/w": "h.3.w",
        "m/embed/000/e": "e",
    }


def test_rules_of_a_module_get_the_prefix_of_a_larger_checkpoint():
    (first, *_) = with_prefix(RULES, "vision_tower.")
    assert first.tensor_names == ("vision_tower.blocks.{layer}.fc.weight",)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (RULES[:-1], "no rule gives vision/norm/000/norm/bias"),
        ((*RULES, Rule("x", "head/norm/scale")), "vision has no piece 'head'"),
        ((*RULES, Rule("x", "norm/norm/shift")), "there is no parameter vision/norm/000/norm/shift"),
        ((*RULES, Rule("x", "norm/norm/scale")), "several rules give vision/norm/000/norm/scale"),
        ((*RULES, Rule("ln.weight", "projector/kernel")), "several rules read ln.weight"),
        ((*RULES, Rule(("a", "b"), "projector/kernel")), "are 1 tensors, but 2 are named"),
        ((*RULES[:-1], Rule("ln.bias", "norm/norm/bias", LINEAR)), "1 dimensions, the layout 2"),
    ],
)
def test_wrong_rules_are_refused(rules, said):
    with pytest.raises(ValueError, match="rules do not fit") as refused:
        match_rules({"vision": rules}, SHAPES)
    assert said in str(refused.value)
