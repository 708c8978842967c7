"""Qwen3 and its DFlash drafter in plain PyTorch, with the checkpoints' tensor names."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from demo.attention import Mask, attend


@dataclass(frozen=True)
class Shape:
    """Sizes of a stack of Qwen3 layers."""

    layers: int
    intermediate: int
    hidden: int = 384
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    eps: float = 1e-6
    rope_theta: float = 10000.0


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """RoPE on x [B, heads, L, D] at positions [B, L]."""
    half = x.shape[-1] // 2
    frequency = theta ** -(torch.arange(half, device=x.device) / half)
    angle = (positions[:, None, :, None] * frequency).float()
    cos, sin = angle.cos(), angle.sin()
    a, b = x.float().split(half, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.heads * width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * width, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * width, bias=False)
        self.o_proj = nn.Linear(shape.heads * width, shape.hidden, bias=False)
        self.q_norm = nn.RMSNorm(width, eps=shape.eps)
        self.k_norm = nn.RMSNorm(width, eps=shape.eps)

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(self.q_norm(self._split(self.q_proj(x))), positions, self.shape.rope_theta)

    def key_value(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        key = self.k_norm(self._split(self.k_proj(x)))
        value = self._split(self.v_proj(x))
        # Normalised queries and keys come out of autocast in fp32, values in bf16.
        return rotate(key, positions, self.shape.rope_theta).to(value.dtype), value

    def output(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        heads = attend(query.to(value.dtype), key, value, mask)
        return torch.as_tensor(self.o_proj(heads.transpose(1, 2).flatten(2)))

    def _split(self, x: Tensor) -> Tensor:
        """[B, L, heads · D] -> [B, heads, L, D]."""
        return x.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Mask,
        context: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """x [B, L, H]; `context` is a key and a value to put before the layer's own."""
        normed = self.input_layernorm(x)
        key, value = self.self_attn.key_value(normed, positions)
        if context is not None:
            key, value = torch.cat((context[0], key), 2), torch.cat((context[1], value), 2)
        x = x + self.self_attn.output(self.self_attn.query(normed, positions), key, value, mask)
        return x + torch.as_tensor(self.mlp(self.post_attention_layernorm(x)))


class Target(nn.Module):
    """Qwen3ForCausalLM with tied embeddings."""

    def __init__(self, shape: Shape, vocab_size: int) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(vocab_size, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Mask, taps: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Normed last state [B, L, H], and the outputs of layers `taps` side by side."""
        x = self.embed_tokens(tokens)
        outputs = []
        for layer in self.layers:
            x = layer(x, positions, mask)
            outputs.append(x)
        return self.norm(x), torch.cat([outputs[i] for i in taps], -1)

    def logits(self, x: Tensor) -> Tensor:
        return linear(x, self.embed_tokens.weight)


class Drafter(nn.Module):
    """DFlash: layers over a draft block, with context keys made from the target's features."""

    def __init__(self, shape: Shape, taps: tuple[int, ...], block_size: int) -> None:
        super().__init__()
        self.shape, self.taps, self.block_size = shape, taps, block_size
        self.fc = nn.Linear(len(taps) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)

    def forward(
        self,
        features: Tensor,
        context_positions: Tensor,
        blocks: Tensor,
        block_positions: Tensor,
        mask: Mask,
    ) -> Tensor:
        """Features [B, S, taps · H] and embedded blocks [B, Q, H] -> normed states [B, Q, H]."""
        context = self.hidden_norm(self.fc(features))
        x = blocks
        for layer in self.layers:
            assert isinstance(layer, Layer)
            pair = layer.self_attn.key_value(context, context_positions)
            x = layer(x, block_positions, mask, pair)
        return torch.as_tensor(self.norm(x))


def initialise(model: nn.Module, seed: int) -> None:
    """Normal weights of standard deviation 0.02; norms stay at one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02, generator=generator)
