"""Rotary tables against transformers', far beyond the original context."""

from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from engine.layers.rope import RopeParameters, RotaryEmbedding, YarnScaling, rotate

YARN: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        YARN,
        YARN | {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
        YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.21},
        YARN | {"factor": 1.0},
    ],
)
@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_equals_transformers(scaling: dict[str, Any] | None, theta: float, head_dim: int) -> None:
    kind = {"rope_type": "yarn", **scaling} if scaling else {"rope_type": "default"}
    config = Qwen3Config(
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, **kind},
    )
    parameters = RopeParameters(theta, YarnScaling(**scaling) if scaling else None)
    ours = RotaryEmbedding(parameters, head_dim, 50_000, torch.device("cpu"))
    positions = torch.tensor([0, 1, 17, 4096, 49_999])
    x = torch.randn(5, 3, head_dim)
    got = rotate(x, *ours(positions, torch.float32))
    cos, sin = Qwen3RotaryEmbedding(config)(x, positions[None])
    heads = x.transpose(0, 1)[None]
    expected, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
    # Angles of 5e4 in float32 are known to 4e-3; the frequencies themselves must agree closely.
    torch.testing.assert_close(got[:-2], expected[0].transpose(0, 1)[:-2], atol=1e-5, rtol=0)
    torch.testing.assert_close(got, expected[0].transpose(0, 1), atol=3e-2, rtol=0)
