"""Loading: every tensor to its place, and none missing, left over or of another shape."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoint import Checkpoint
from engine.config import ConfigError, EngineConfig, TargetConfig
from engine.models.dflash import DFlashDrafter
from engine.models.registry import TargetModel
from engine.runner.loading import build_models, fill
from engine.weights import checkpoint_tensors
from tests.engine.checkpoints import edit_config, engine_config, write_drafter, write_target

CPU = torch.device("cpu")


def load(directory: Path) -> TargetModel:
    return load_target(engine_config(directory))


def load_target(config: EngineConfig) -> TargetModel:
    target, _ = build_models(config, CPU)
    fill(target, config.target, CPU)
    return target


def tensors_of(directory: Path) -> dict[str, Tensor]:
    return {k: v for p in directory.glob("*.safetensors") for k, v in load_file(p).items()}


def save(directory: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, directory / "model.safetensors")


def test_every_tensor_is_where_it_belongs(tmp_path: Path) -> None:
    write_target(tmp_path, attention_bias=True, tie_word_embeddings=False, shard_size="30KB")
    stored = tensors_of(tmp_path)
    model = load(tmp_path)
    loaded = checkpoint_tensors(model)
    assert loaded.keys() == stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(loaded[name], tensor), name
    attention = model.model.layers[1].self_attn
    prefix = "model.layers.1.self_attn."
    merged = [stored[f"{prefix}{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(attention.qkv_proj.weight, torch.cat(merged))
    biases = [stored[f"{prefix}{part}_proj.bias"] for part in "qkv"]
    assert torch.equal(attention.qkv_proj.bias, torch.cat(biases))
    x = torch.randn(3, 32)
    split = [torch.nn.functional.linear(x, w, b) for w, b in zip(merged, biases, strict=True)]
    for got, expected in zip(attention.qkv_proj(x), split, strict=True):
        torch.testing.assert_close(got, expected)
    for got, expected in zip(attention.qkv_proj.parts_from("k_proj", x), split[1:], strict=True):
        torch.testing.assert_close(got, expected)


def test_missing_tensor(tmp_path: Path) -> None:
    write_target(tmp_path)
    tensors = tensors_of(tmp_path)
    del tensors["model.layers.2.self_attn.k_proj.weight"]
    save(tmp_path, tensors)
    with pytest.raises(ConfigError, match=r"lacks .*: model.layers.2.self_attn.k_proj.weight$"):
        load(tmp_path)


def test_many_missing_tensors(tmp_path: Path) -> None:
    write_target(tmp_path)
    save(tmp_path, {"model.norm.weight": tensors_of(tmp_path)["model.norm.weight"]})
    with pytest.raises(ConfigError, match=r"model.embed_tokens.weight, .* and 42 more$"):
        load(tmp_path)


def test_left_over_tensor(tmp_path: Path) -> None:
    write_target(tmp_path)
    save(tmp_path, tensors_of(tmp_path) | {"model.layers.0.mlp.gate_proj.bias": torch.zeros(48)})
    with pytest.raises(ConfigError, match=r"does not know: model.layers.0.mlp.gate_proj.bias$"):
        load(tmp_path)


def test_layers_that_config_does_not_have(tmp_path: Path) -> None:
    write_target(tmp_path)
    edit_config(tmp_path, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    with pytest.raises(ConfigError, match=r"does not know: model.layers.3.* and 8 more"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.self_attn.v_proj.weight"])
def test_wrong_shape(name: str, tmp_path: Path) -> None:
    write_target(tmp_path)
    tensors = tensors_of(tmp_path)
    shape = list(tensors[name].shape)
    tensors[name] = torch.cat([tensors[name], tensors[name]])
    save(tmp_path, tensors)
    with pytest.raises(ConfigError) as error:
        load(tmp_path)
    for word in [str(tmp_path), name, str(list(tensors[name].shape)), str(shape)]:
        assert word in str(error.value)


def test_a_tied_head_is_ignored_and_an_untied_one_needed(tmp_path: Path) -> None:
    write_target(tmp_path)
    tensors = tensors_of(tmp_path)
    save(tmp_path, tensors | {"lm_head.weight": torch.zeros(97, 32)})
    model = load(tmp_path)
    hidden = torch.randn(2, 32)
    expected = hidden @ tensors["model.embed_tokens.weight"].T
    torch.testing.assert_close(model.logits(hidden), expected)
    save(tmp_path, tensors)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ConfigError, match=r"lacks tensors .*: lm_head.weight"):
        load(tmp_path)


def test_dtypes(tmp_path: Path) -> None:
    write_target(tmp_path)
    save(tmp_path, {k: v.bfloat16() for k, v in tensors_of(tmp_path).items()})
    edit_config(tmp_path, dtype="bfloat16")
    assert load(tmp_path).model.norm.weight.dtype is torch.float32
    config = engine_config(tmp_path)
    half = TargetConfig(model=str(tmp_path), dtype="bfloat16")
    model = load_target(config.model_copy(update={"target": half}))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_drafter_in_another_type(tmp_path: Path, target_dir: Path) -> None:
    write_drafter(tmp_path)
    config = engine_config(target_dir, tmp_path)
    assert config.drafter is not None
    half = config.drafter.model_copy(update={"dtype": "bfloat16"})
    config = config.model_copy(update={"drafter": half})
    with pytest.raises(ConfigError, match=r"drafter.dtype is .*bfloat16.*float32"):
        build_models(config, CPU)


def test_dummy_weights_are_the_same_in_every_run(target_dir: Path, tmp_path: Path) -> None:
    """config.json is all that they need."""
    (tmp_path / "config.json").write_text((target_dir / "config.json").read_text())
    dummy = TargetConfig(model=str(tmp_path), load_format="dummy")
    config = engine_config(target_dir).model_copy(update={"target": dummy})
    first, second = (checkpoint_tensors(load_target(config)) for _ in range(2))
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    assert first["model.norm.weight"].eq(1).all()
    weight = first["model.layers.0.mlp.gate_proj.weight"]
    assert 0.015 < float(weight.std()) < 0.025


def test_the_drafter_names_its_tensors_as_z_lab_does(drafter_dir: Path) -> None:
    with torch.device("meta"):
        model = DFlashDrafter.from_checkpoint(Checkpoint(str(drafter_dir)), torch.float32)
    names = checkpoint_tensors(model).keys()
    assert len(names) == 3 * 11 + 3
    assert {"fc.weight", "hidden_norm.weight", "norm.weight"} <= names
    assert json.loads((drafter_dir / "config.json").read_text())["num_hidden_layers"] == 3
