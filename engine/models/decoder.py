"""The pre-norm decoder with QK-norm that Qwen3 and the DFlash drafter share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.attention.backend import AttentionBackend
from engine.attention.batch import AttentionBatch, AttentionSpec, CacheSpec, LayerCache
from engine.layers.linear import MergedLinear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.layers.rope import RopeParameters, rotate


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder. ``windows[l]`` is layer l's sliding window, None for full attention;
    ``causal[l]`` says whether it hides later tokens."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    attention_bias: bool
    rope: RopeParameters
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    dtype: torch.dtype

    def attention_spec(self, layer: int) -> AttentionSpec:
        """How layer ``layer`` attends and what it caches."""
        cache = CacheSpec(self.num_kv_heads, self.head_dim)
        return AttentionSpec(self.num_heads, cache, self.windows[layer], self.causal[layer])


@dataclass(frozen=True)
class ForwardContext:
    """What one forward pass shares between its layers: the batch, the caches, cos and sin."""

    batch: AttentionBatch
    caches: Sequence[LayerCache]
    cos: Tensor
    sin: Tensor
    attend: AttentionBackend


class Attention(nn.Module):
    """Grouped-query attention with RMSNorm on each query and key head, then RoPE."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.spec = config.attention_spec(layer)
        self.head_dim = config.head_dim
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        parts = {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size}
        self.qkv_proj = MergedLinear(config.hidden_size, parts, config.attention_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.attention_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        """``x [T, hidden]`` to ``[T, hidden]``; writes the tokens' K/V to the cache first."""
        query, key, value = (t.unflatten(-1, (-1, self.head_dim)) for t in self.qkv_proj(x))
        query = rotate(self.q_norm(query), context.cos, context.sin)
        self._write_kv(key, value, context)
        cache = context.caches[self.layer]
        return self.o_proj(context.attend(query, cache, context.batch, self.spec).flatten(1))

    def write_context(self, x: Tensor, context: ForwardContext) -> None:
        """Store keys and values of ``x [T, hidden]`` without attending."""
        key, value = self.qkv_proj.parts_from("k_proj", x)
        shape = (-1, self.head_dim)
        self._write_kv(key.unflatten(-1, shape), value.unflatten(-1, shape), context)

    def _write_kv(self, key: Tensor, value: Tensor, context: ForwardContext) -> None:
        """Normalise and turn ``key [T, kv_heads, head_dim]``; store it and ``value``."""
        key = rotate(self.k_norm(key), context.cos, context.sin)
        context.caches[self.layer].write(key, value, context.batch.slots)


class DecoderLayer(nn.Module):
    """Attention and feed-forward block, each behind a norm and added to the residual stream."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The residual stream ``x [T, hidden]`` after this layer."""
        x = x + self.self_attn(self.input_layernorm(x), context)
        return x + self.mlp(self.post_attention_layernorm(x))
