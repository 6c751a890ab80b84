"""PyTorch's side of the GPU benchmark: the forms that train on GPUs alone, with a stand-in for what only they have."""

import time

import pytest

from benchmarks.gpu import batches as gpu_batches
from benchmarks.gpu import parts as gpu_parts
from benchmarks.gpu.sizes import TINY

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Losses of a step, by form."""
    from benchmarks.gpu.pytorch_batches import microbatches
    from benchmarks.gpu.pytorch_model import PYTORCH_VARIANTS, PyTorchLlava, register_varlen
    from benchmarks.gpu.pytorch_step import PyTorchTrainer

    folder = exported(tmp_path_factory.mktemp("gpu"))
    model = PyTorchLlava(folder, torch.float32, "cpu").train()
    trainer = PyTorchTrainer(model, fused=False, clock=time.monotonic)
    (step, *_) = gpu_batches.draw_steps(TINY)
    losses = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", by_segment)
        register_varlen()
    for form in PYTORCH_VARIANTS:
        if form.attention != "flex_attention":  # it has no backward on CPUs
            losses[form.name] = trainer.loss(form, microbatches(step, TINY, 2, form, "cpu"))
    return losses


def exported(folder):
    """The model's initial weights as mmjax exports them."""
    from mmjax.models.model import model_modules
    from mmjax.models.structure.parameters import init_layer_parameters
    from mmjax.weights.export import export_checkpoint, export_target_of_type

    modules = {module.name: module for module in model_modules(TINY.model)}

    def read(name, piece, layer):
        (named_piece,) = [candidate for candidate in modules[name].pieces if candidate.name == piece]
        return init_layer_parameters(0, modules[name], named_piece, int(layer))

    export_checkpoint(export_target_of_type("llava", TINY.model, "model", "float32"), read, folder / "weights", 10**9)
    return folder / "weights"


def by_segment(query, key, value, starts, ends_too, longest, longest_too, *, scale, window_size, enable_gqa):
    """What `varlen_attn` computes, segment by segment."""
    assert window_size == (-1, 0) and enable_gqa and longest >= int((starts[1:] - starts[:-1]).max())
    parts = []
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        q, k, v = (x[begin:end].transpose(0, 1)[None] for x in (query, key, value))
        sdpa = torch.nn.functional.scaled_dot_product_attention
        parts.append(sdpa(q, k, v, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(parts)


def test_every_form_computes_the_same_loss(losses):
    first, *others = losses.values()
    assert len(others) == 2
    for loss in others:
        assert loss == pytest.approx(first, rel=1e-5)


def test_it_starts_from_mmjax_weights_or_not_at_all(tmp_path):
    from benchmarks.gpu.pytorch_step import rows

    (row,) = rows(gpu_parts.PartRun(TINY, tmp_path, time.monotonic() + 100, check_speed=False))
    assert "the weights that the part mmjax writes" in row["note"]
