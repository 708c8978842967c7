"""Rotary position embedding (arXiv 2104.09864), plain and with YaRN scaling (arXiv 2309.00071)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class YarnScaling:
    """YaRN's parameters, named as in Hugging Face's ``rope_scaling``."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    @property
    def scale(self) -> float:
        """What cos and sin are multiplied with (paper, section 3.4)."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.factor <= 1 else 0.1 * math.log(self.factor) + 1.0

    def apply(self, inverse_frequencies: Tensor, theta: float) -> Tensor:
        """Interpolate slow dimensions by ``factor``, keep fast ones, blend those between."""
        size = 2 * len(inverse_frequencies)
        low = self._dimension(self.beta_fast, size, theta)
        high = self._dimension(self.beta_slow, size, theta)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        steps = torch.arange(size // 2, dtype=torch.float32, device=inverse_frequencies.device)
        slow = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
        return inverse_frequencies * (1 - slow) + inverse_frequencies / self.factor * slow

    def _dimension(self, rotations: float, size: int, theta: float) -> float:
        """The dimension that turns ``rotations`` times within the original context."""
        wavelength = self.original_max_position_embeddings / (rotations * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(theta))


@dataclass(frozen=True)
class RopeParameters:
    """Base frequency and, optionally, a scaling."""

    theta: float
    yarn: YarnScaling | None = None


class RotaryEmbedding:
    """Tables of cos and sin for positions 0 … length - 1.

    Not a module: nothing in it comes from a checkpoint, and it must not be built on the meta
    device.
    """

    def __init__(
        self, parameters: RopeParameters, head_dim: int, length: int, device: torch.device
    ) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float()
        inverse_frequencies = 1.0 / parameters.theta ** (exponents / head_dim)
        scale = 1.0
        if parameters.yarn is not None:
            inverse_frequencies = parameters.yarn.apply(inverse_frequencies, parameters.theta)
            scale = parameters.yarn.scale
        positions = torch.arange(length, dtype=torch.float32, device=device)
        angles = torch.outer(positions, inverse_frequencies)
        self.cos = angles.cos() * scale
        self.sin = angles.sin() * scale

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin ``[T, 1, head_dim / 2]`` for ``positions [T]``."""
        cos, sin = self.cos[positions], self.sin[positions]
        return cos.to(dtype).unsqueeze(1), sin.to(dtype).unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x [T, heads, head_dim]`` by its position; the halves of head_dim are the pairs."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
