"""Writes and reads the pair in Hugging Face's and z-lab's formats."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from demo.model import Drafter, Shape, Target
from demo.tokenizer import CONTROL_TOKENS, MAX_LENGTH

SHARDS = 3
END_OF_TEXT, _, END, MASK = range(len(CONTROL_TOKENS))
Config = dict[str, Any]


def save_target(target: Target, folder: Path, tokenizer: Path) -> None:
    """A Qwen3ForCausalLM checkpoint in bf16, in shards, with the files of the tokenizer."""
    fresh = _fresh(folder)
    names = {k: f"model.{k}" for k in target.state_dict()}
    tensors = {names[k]: v for k, v in _rounded(target).items()}
    _save_shards(tensors, fresh)
    _write(fresh / "config.json", _target_config(target))
    ends = {"bos_token_id": None, "eos_token_id": [END, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    _write(fresh / "generation_config.json", ends)
    for file in tokenizer.iterdir():
        shutil.copy(file, fresh / file.name)
    _replace(fresh, folder)


def save_drafter(drafter: Drafter, target: Target, folder: Path) -> None:
    """A DFlashDraftModel checkpoint in bf16: neither embedding nor head, which are the target's."""
    fresh = _fresh(folder)
    save_file(_rounded(drafter), fresh / "model.safetensors", {"format": "pt"})
    _write(fresh / "config.json", _drafter_config(drafter, target))
    _replace(fresh, folder)


def load_target(folder: Path, device: str) -> Target:
    config = json.loads((folder / "config.json").read_text())
    target = Target(_shape(config), config["vocab_size"])
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    target.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items()})
    return target.to(device)


def load_drafter(folder: Path, device: str) -> Drafter:
    config = json.loads((folder / "config.json").read_text())
    taps = tuple(config["dflash_config"]["target_layer_ids"])
    drafter = Drafter(_shape(config), taps, config["block_size"])
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter.to(device)


def _rounded(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().to("cpu", torch.bfloat16) for k, v in model.state_dict().items()}


def _save_shards(tensors: dict[str, Tensor], folder: Path) -> None:
    total = sum(v.nbytes for v in tensors.values())
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if sum(v.nbytes for v in shards[-1].values()) > total / SHARDS:
            shards.append({})
        shards[-1][name] = tensor
    index: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, {"format": "pt"})
        index |= dict.fromkeys(shard, file)
    whole = {"metadata": {"total_size": total}, "weight_map": index}
    _write(folder / "model.safetensors.index.json", whole)


def _common_config(shape: Shape) -> Config:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "layer_types": ["full_attention"] * shape.layers,
        "max_position_embeddings": MAX_LENGTH,
        "max_window_layers": shape.layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": END_OF_TEXT,
    }


def _target_config(target: Target) -> Config:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        **_common_config(target.shape),
        "tie_word_embeddings": True,
        "vocab_size": target.embed_tokens.num_embeddings,
    }


def _drafter_config(drafter: Drafter, target: Target) -> Config:
    return {
        "architectures": ["DFlashDraftModel"],
        **_common_config(drafter.shape),
        "block_size": drafter.block_size,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(drafter.taps)},
        "num_target_layers": target.shape.layers,
        "tie_word_embeddings": True,
        "vocab_size": target.embed_tokens.num_embeddings,
    }


def _shape(config: Config) -> Shape:
    return Shape(
        layers=config["num_hidden_layers"],
        intermediate=config["intermediate_size"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
    )


def _write(path: Path, value: Config) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _fresh(folder: Path) -> Path:
    """An empty folder beside the final one, so that readers never meet half a checkpoint."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def _replace(fresh: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
