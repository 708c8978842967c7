"""Tiny random checkpoints in the formats of transformers and z-lab, and engines over them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from engine.config import DrafterConfig, EngineConfig, EngineTable, TargetConfig
from engine.core import EngineCore

VOCAB = 97
HIDDEN = 32
TARGET_LAYERS = 4
MASK_ID = 90
EOS_IDS = [5, 11]

TARGET: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": TARGET_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # not hidden / heads
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "eos_token_id": EOS_IDS,
}

YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 40,
}

DRAFTER: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 6,
    "num_target_layers": TARGET_LAYERS,
    "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [0, 2, 3]},
    "layer_types": ["full_attention"] * 3,
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,  # another geometry than the target's
    "hidden_act": "silu",
    "max_position_embeddings": 200,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def write_target(directory: Path, *, shard_size: str = "5GB", seed: int = 0, **fields: Any) -> Path:
    """A random Qwen3 checkpoint, its logits spread enough that greedy output varies."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**{**TARGET, **fields}))
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(directory, max_shard_size=shard_size)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_IDS}))
    return directory


def oracle(directory: Path) -> Any:
    """transformers' model of a checkpoint, in float32."""
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def write_drafter(directory: Path, *, seed: int = 1, **fields: Any) -> Path:
    """A random drafter in z-lab's format. A field of None is left out of config.json."""
    config = {key: value for key, value in {**DRAFTER, **fields}.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(drafter_tensors(config, seed), directory / "model.safetensors")
    return directory


def drafter_tensors(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.empty(rows, columns).normal_(std=0.25, generator=random)

    def norm(size: int) -> Tensor:
        return torch.empty(size).uniform_(0.5, 1.5, generator=random)

    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query = config["num_attention_heads"] * head
    key = config["num_key_value_heads"] * head
    taps = len(config["dflash_config"]["target_layer_ids"])
    tensors = {
        "fc.weight": matrix(hidden, taps * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        attention = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden)}
        attention["o_proj"] = (hidden, query)
        mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden)}
        mlp["down_proj"] = (hidden, inner)
        prefix = f"layers.{layer}."
        for name, shape in attention.items():
            tensors[f"{prefix}self_attn.{name}.weight"] = matrix(*shape)
            if config.get("attention_bias"):
                tensors[f"{prefix}self_attn.{name}.bias"] = matrix(1, shape[0])[0]
        for name, shape in mlp.items():
            tensors[f"{prefix}mlp.{name}.weight"] = matrix(*shape)
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            tensors[f"{prefix}{name}.weight"] = norm(head)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = norm(hidden)
    return tensors


def edit_config(directory: Path, **fields: Any) -> None:
    """Change config.json; a field of None is removed."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def engine_config(
    target: Path, drafter: Path | None = None, *, kv_tokens: int = 2048, **engine: Any
) -> EngineConfig:
    """A CPU engine whose cache holds ``kv_tokens`` tokens, for checkpoints written here."""
    engine.setdefault("page_size", 8)
    if "kv_cache_gib" not in engine:
        engine["kv_cache_gib"] = _kv_cache_gib([target, drafter], kv_tokens, engine["page_size"])
    engine.setdefault("max_num_seqs", 4)
    engine.setdefault("max_num_batched_tokens", 256)
    if drafter:
        # Every step proposes all drafts, unless a test wants it otherwise.
        config = json.loads((drafter / "config.json").read_text())
        block_size = config.get("block_size") or config["dflash_config"].get("block_size", 2)
        engine.setdefault("num_draft_tokens", max(1, block_size - 1))
    load = {"load_format": engine.pop("load_format", "auto")}
    return EngineConfig(
        target=TargetConfig(model=str(target), **load),
        drafter=DrafterConfig(model=str(drafter), **load) if drafter else None,
        engine=EngineTable(device="cpu", **engine),
    )


def _kv_cache_gib(directories: list[Path | None], tokens: int, page_size: int) -> float:
    bytes_per_token = sum(_bytes_per_token(path) for path in directories if path)
    pages = tokens // page_size + 1.5  # the null page; half a page because this is a float
    return pages * page_size * bytes_per_token / 2**30


def _bytes_per_token(directory: Path) -> int:
    config = json.loads((directory / "config.json").read_text())
    per_layer = 2 * config["num_key_value_heads"] * config["head_dim"] * 4
    return int(config["num_hidden_layers"]) * per_layer


def make_engine(target: Path, drafter: Path | None = None, **engine: Any) -> EngineCore:
    return EngineCore(engine_config(target, drafter, **engine))
