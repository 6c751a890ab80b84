"""Export after import is bit-identical, whatever the files and types; transformers loads it and computes the same."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs.architectures import BackboneConfig, LoraConfig, ModelConfig
from configs.common.errors import UserError
from mmjax.models.model import model_modules
from mmjax.training.checkpoints.manager import CheckpointManager
from mmjax.training.checkpoints.restoring import layer_reader
from mmjax.training.engine.engine import Engine
from mmjax.training.engine.settings import EngineSettings
from mmjax.weights.export import export_checkpoint, export_target_like, export_target_of_type, with_merged_adapters
from mmjax.weights.initialization import SeedInitializer, parameter_initializer
from mmjax.weights.published_checkpoint import open_checkpoint
from sharding.plans.parallelism import Parallelism
from sharding.plans.plan import Plan
from sharding.plans.unit_plan import UnitPlan
from sharding.trees import set_leaf
from tests.mmjax.weights.llama_checkpoint import BACKBONE, bits, model, random_tensors, write_llama
from tests.tiny_model import tiny_batch

LARGE_FILES = 10**9


def imported(path, ours=None):
    """Returns a reader of the backbone's layers for an export."""
    ours = ours or model()
    values = parameter_initializer(ours, 0, (("backbone", str(path)),))
    (module,) = model_modules(ours)
    pieces = {piece.name: piece for piece in module.pieces}

    def read(_: str, piece: str, layer: str):
        return values.init_layer(module, pieces[piece], int(layer))

    return read


def there_and_back(path, output, ours=None, limit=LARGE_FILES):
    target = export_target_like(open_checkpoint(path), ours or model(), "backbone")
    return export_checkpoint(target, imported(path, ours), output, limit)


def tensors_of(path) -> dict:
    folder = open_checkpoint(path).folder
    return {name: bits(folder.read(name)) for name in folder.tensors}


@pytest.mark.parametrize("limit", [LARGE_FILES, 2000])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_round_trips_are_bit_identical(tmp_path, dtype, limit):
    path = write_llama(tmp_path / "original", random_tensors(dtype=dtype))
    assert (len(there_and_back(path, tmp_path / "out", limit=limit)) > 1) == (limit < LARGE_FILES)
    assert tensors_of(tmp_path / "out") == tensors_of(path)
    assert json.loads((tmp_path / "out/config.json").read_text()) == json.loads((path / "config.json").read_text())


def test_mixed_dtypes_and_ignored_tensors_are_kept(tmp_path):
    tied = dataclasses.replace(BACKBONE, tie_embeddings=True)
    tensors = random_tensors(tied)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.arange(2.0)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    path = write_llama(tmp_path / "original", tensors, tied)
    (path / "tokenizer.json").write_text("{}")
    there_and_back(path, tmp_path / "out", model(tied))
    assert tensors_of(tmp_path / "out") == tensors_of(path)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_all_that_transformers_reads_beside_the_weights_is_copied(tmp_path):
    path = write_llama(tmp_path / "original", random_tensors(), auto_map={"AutoConfig": "configuration_x.XConfig"})
    copied = {
        *("configuration_x.py", "modeling_x.py", "tokenization_x.py", "x.tiktoken", "vocab.bpe", "merges.txt"),
        *("vocab.json", "tokenizer.model", "spiece.model", "source.spm", "generation_config.json"),
        *("preprocessor_config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja"),
    }
    left = {"pytorch_model.bin", "model.safetensors.index.json.bak", "optimizer.pt", "__pycache__/x.pyc", ".git/config"}
    for name in copied | left:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(f"{{}} of {name}" if not name.endswith("config.json") else "{}")
    (path / "vocab.bpe").rename(tmp_path / "blob")
    (path / "vocab.bpe").symlink_to(tmp_path / "blob")  # as in the cache of the hub
    there_and_back(path, tmp_path / "out")
    out = tmp_path / "out"
    files = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    assert files == {*copied, "config.json", "model.safetensors"}
    assert all((out / name).read_bytes() == (path / name).read_bytes() for name in copied)
    assert not any(file.is_symlink() for file in out.rglob("*"))


def test_a_requested_dtype_applies_to_all_tensors(tmp_path):
    path = write_llama(tmp_path / "original", random_tensors())
    target = export_target_like(open_checkpoint(path), model(), "backbone", "float32")
    export_checkpoint(target, imported(path), tmp_path / "out", LARGE_FILES)
    written = open_checkpoint(tmp_path / "out")
    assert {tensor.dtype for tensor in written.folder.tensors.values()} == {"F32"}
    assert written.config_json["torch_dtype"] == "float32"


def test_export_of_a_model_type_without_an_original(tmp_path):
    path = write_llama(tmp_path / "original", random_tensors())
    export_checkpoint(
        export_target_of_type("llama", model(), "backbone", "bfloat16"), imported(path), tmp_path / "out", LARGE_FILES
    )
    assert tensors_of(tmp_path / "out") == tensors_of(path)
    assert open_checkpoint(tmp_path / "out").config == open_checkpoint(path).config == BACKBONE


ODD = BackboneConfig(
    vocabulary=23,
    width=16,
    depth=2,
    heads=4,
    kv_heads=4,
    ffn=24,
    norm="layernorm",
    activation="gelu_tanh",
    gated=False,
    positions="learned",
    max_positions=32,
    biases=("query", "key", "value", "output", "mlp"),
    tie_embeddings=True,
)
"""As GPT-2, whose vocabulary of 50,257 no even number of tensor ranks divides."""


def test_a_vocabulary_that_tensor_ranks_do_not_divide_is_imported_and_exported_with_its_rows(tmp_path):
    ours = ModelConfig((), ODD, ())
    (module,) = model_modules(ours)
    pieces, values = {piece.name: piece for piece in module.pieces}, SeedInitializer(1)

    def drawn(_: str, piece: str, layer: str):
        return values.init_layer(module, pieces[piece], int(layer))

    export_checkpoint(export_target_of_type("gpt2", ours, "backbone", "float32"), drawn, tmp_path / "a", LARGE_FILES)
    published = open_checkpoint(tmp_path / "a")
    assert published.folder.tensors["transformer.wte.weight"].shape == (23, 16)

    unit = UnitPlan("backbone", ("backbone",), (0, 1, 2, 3), layers=(2,), parallelism=Parallelism(dp=2, tp=2))
    engine = Engine(ours, Plan((unit,)), tiny_batch(ours), EngineSettings(steps=4, seed=3))
    state = engine.initial_state(parameter_initializer(ours, 0, (("backbone", str(tmp_path / "a")),)))
    checkpoints = CheckpointManager(tmp_path / "run", ours)
    checkpoints.save(1, engine, state, {})
    checkpoints.close()
    read, _ = layer_reader(tmp_path / "run", ours, jax.devices()[0])
    seen, target = [], export_target_like(published, ours, "backbone")
    export_checkpoint(target, read, tmp_path / "b", LARGE_FILES, lambda *counts: seen.append(counts))
    written = len(open_checkpoint(tmp_path / "b").folder.tensors)
    assert seen == [(done, written) for done in range(written + 1)]
    assert tensors_of(tmp_path / "b") == tensors_of(tmp_path / "a")


def test_adapters_are_merged_before_export(tmp_path):
    path = write_llama(tmp_path / "original", random_tensors(dtype="F32"))
    ours = dataclasses.replace(model(), lora=(LoraConfig("backbone", rank=2, scale=0.5, targets=("query", "down")),))
    random, whole = np.random.default_rng(1), imported(path)
    sizes = {"attention/query": (16, 16), "mlp/down": (24, 16)}
    adapters = {
        of: [random.normal(size=size).astype(np.float32) for size in ((n, 2), (2, m))] for of, (n, m) in sizes.items()
    }

    def read(module: str, piece: str, layer: str):
        if piece != "blocks_lora":
            return whole(module, piece, layer)
        tree = {}
        for of, (down, up) in adapters.items():
            tree = set_leaf(set_leaf(tree, f"{of}/adapter/down", down), f"{of}/adapter/up", up)
        return tree

    export_checkpoint(
        export_target_like(open_checkpoint(path), ours, "backbone"),
        with_merged_adapters(read, ours),
        tmp_path / "out",
        LARGE_FILES,
    )
    before, after = (open_checkpoint(of).folder for of in (path, tmp_path / "out"))
    theirs = {"self_attn.q_proj.weight": "attention/query", "mlp.down_proj.weight": "mlp/down"}
    assert before.tensors.keys() == after.tensors.keys()
    for name in before.tensors:
        down, up = adapters.get(theirs.get(name.partition("layers.")[2].partition(".")[2], ""), (0.0, 0.0))
        np.testing.assert_allclose(after.read(name) - before.read(name), 0.5 * np.dot(down, up).T, atol=1e-6)


def test_values_that_overflow_the_dtype_are_refused(tmp_path):
    tensors = random_tensors(dtype="F32")
    tensors["model.norm.weight"][3] = 1e6
    path = write_llama(tmp_path / "original", tensors)
    target = export_target_like(open_checkpoint(path), model(), "backbone", "float16")
    with pytest.raises(UserError, match=r"model\.norm\.weight has values up to 1e\+06, too large for F16"):
        export_checkpoint(target, imported(path), tmp_path / "out", LARGE_FILES)
    assert not (tmp_path / "out").exists()


def test_another_architecture_is_refused(tmp_path):
    path = write_llama(tmp_path / "original", random_tensors())
    with pytest.raises(UserError, match="num_hidden_layers is 2 in the checkpoint and 3 in the model"):
        export_target_like(open_checkpoint(path), model(dataclasses.replace(BACKBONE, depth=3)), "backbone")
    with pytest.raises(UserError, match="can't compute"):
        export_target_of_type("llama", model(dataclasses.replace(BACKBONE, gated=False)), "backbone", "float32")
    with pytest.raises(UserError, match="is not known; docs/how_to/weights.md lists all"):
        export_target_of_type("llamma", model(), "backbone", "float32")


@pytest.fixture(scope="module")
def theirs():
    """A small Llama of transformers, and its logits of some tokens."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        rope_theta=5e4,
        torch_dtype="bfloat16",
    )
    network = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.arange(12).reshape(2, 6)

    def logits(of):
        with torch.no_grad():
            return of(tokens).logits.float().numpy()

    return transformers, network, logits


@pytest.mark.parity
@pytest.mark.parametrize(("size", "files"), [("1GB", 1), ("4KB", 3)])
def test_transformers_loads_an_export_with_an_original(theirs, tmp_path, size, files):
    transformers, network, logits = theirs
    network.save_pretrained(tmp_path / "theirs", max_shard_size=size)
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) == files
    ours = model(open_checkpoint(tmp_path / "theirs").config)
    there_and_back(tmp_path / "theirs", tmp_path / "out", ours, limit=4000 if files > 1 else LARGE_FILES)
    assert tensors_of(tmp_path / "out") == tensors_of(tmp_path / "theirs")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    np.testing.assert_array_equal(logits(again.eval()), logits(network))


@pytest.mark.parity
def test_transformers_loads_an_export_without_an_original(theirs, tmp_path):
    transformers, network, logits = theirs
    network.save_pretrained(tmp_path / "theirs")
    ours = model(open_checkpoint(tmp_path / "theirs").config)
    read = imported(tmp_path / "theirs", ours)
    export_checkpoint(export_target_of_type("llama", ours, "backbone", "bfloat16"), read, tmp_path / "out", LARGE_FILES)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    np.testing.assert_array_equal(logits(again.eval()), logits(network))
