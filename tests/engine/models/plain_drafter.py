"""The DFlash drafter written plainly: one request, explicit context, no cache, nothing of engine/.

Straight from the paper (arXiv 2602.06036): context keys and values come from the target's fused
hidden states, the block attends to all of them and to itself. Softmax attention in a loop over
heads; rotation by complex numbers.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


class PlainDrafter:
    def __init__(self, directory: Path) -> None:
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.weights = {k: v.float() for k, v in load_file(directory / "model.safetensors").items()}

    def block_logits(self, features: Tensor, block: Tensor, head: Tensor) -> Tensor:
        """Logits ``[W, vocab]`` of embedded ``block [W, H]`` after ``features [n, m * H]``."""
        fused = self._norm(features @ self.weights["fc.weight"].T, "hidden_norm")
        x = block
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            normed = self._norm(x, prefix + "input_layernorm")
            x = x + self._attention(prefix + "self_attn.", layer, fused, normed)
            normed = self._norm(x, prefix + "post_attention_layernorm")
            gate = self._linear(normed, prefix + "mlp.gate_proj")
            up = self._linear(normed, prefix + "mlp.up_proj")
            x = x + self._linear(gate * gate.sigmoid() * up, prefix + "mlp.down_proj")
        return self._norm(x, "norm") @ head.T

    def _attention(self, prefix: str, layer: int, fused: Tensor, block: Tensor) -> Tensor:
        context, width = len(fused), len(block)
        both = torch.cat([fused, block])
        positions = torch.arange(context + width)
        query = self._heads(block, prefix, "q", positions[context:])
        key = self._heads(both, prefix, "k", positions)
        value = self._split(self._linear(both, prefix + "v_proj"))
        hidden = self._hidden_keys(layer, positions[context:, None], positions[None])
        group = query.shape[1] // key.shape[1]
        outputs = []
        for head in range(query.shape[1]):
            scores = query[:, head] @ key[:, head // group].T / self.config["head_dim"] ** 0.5
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append(weights @ value[:, head // group])
        return self._linear(torch.cat(outputs, -1), prefix + "o_proj")

    def _hidden_keys(self, layer: int, query: Tensor, key: Tensor) -> Tensor:
        sliding = self.config["layer_types"][layer] == "sliding_attention"
        causal = self.config["dflash_config"].get("causal", self.config.get("is_causal"))
        hidden = torch.zeros(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool)
        if sliding if causal is None else causal:
            hidden |= key > query
        if sliding:
            hidden |= query - key >= self.config["sliding_window"]
        return hidden

    def _heads(self, x: Tensor, prefix: str, name: str, positions: Tensor) -> Tensor:
        heads = self._split(self._linear(x, f"{prefix}{name}_proj"))
        return self._rotate(self._norm(heads, f"{prefix}{name}_norm"), positions)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        frequencies, scale = self._frequencies()
        angles = positions[:, None, None] * frequencies
        first, second = x.chunk(2, -1)
        turned = torch.complex(first, second) * torch.polar(torch.full_like(angles, scale), angles)
        return torch.cat([turned.real, turned.imag], -1)

    def _frequencies(self) -> tuple[Tensor, float]:
        config, scaling = self.config, self.config.get("rope_scaling")
        if not scaling:
            exponents = torch.arange(0, config["head_dim"], 2) / config["head_dim"]
            return config["rope_theta"] ** -exponents, 1.0
        shape = Qwen3Config(
            head_dim=config["head_dim"],
            max_position_embeddings=config["max_position_embeddings"],
            rope_parameters={"rope_theta": config["rope_theta"], **scaling},
        )
        return ROPE_INIT_FUNCTIONS["yarn"](shape, torch.device("cpu"))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config["head_dim"]))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x * x).mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        return x / scale.sqrt() * self.weights[f"{name}.weight"]
