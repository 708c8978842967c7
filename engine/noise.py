"""Counter-based sampling noise: a pure function of (seed, position, token).

The generator is pcg4d of Jarzynski and Olano, "Hash Functions for GPU Rendering" (JCGT 9:3, 2020):
four 32-bit words in, four out, no state. Because nothing but the request's seed and the position
decides the noise, a request samples the same tokens with and without speculation, in any batch,
and after preemption or recovery.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def gumbel(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Gumbel noise, float32 ``[R, vocab_size]``, for int64 ``seeds`` and ``positions [R]``.

    The argmax of logits plus this noise is a sample of softmax(logits) (the Gumbel-max trick).
    """
    uniform = _uniform(seeds, positions, -(-vocab_size // 4))
    # log(1 - u): floats are finest near 0, and there lie the large values that decide an argmax.
    return -torch.log(-torch.log1p(-uniform[:, :vocab_size]))


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """One float32 in (0, 1) for each of ``seeds`` and ``positions [R]``."""
    return _uniform(seeds, positions, 1)[:, 0]


def _uniform(seeds: Tensor, positions: Tensor, groups: int) -> Tensor:
    """Uniform floats in (0, 1), ``[R, 4 * groups]``: four of them for each counter."""
    counters = torch.arange(groups, device=seeds.device).expand(len(seeds), groups)
    low, high = (seeds & _MASK)[:, None], (seeds >> 32 & _MASK)[:, None]
    words = _pcg4d(counters, positions[:, None] & _MASK, low, high)
    bits = torch.stack(words, dim=-1).flatten(1)
    # The half and the clamp keep both ends open: float32 rounds the last 128 integers to 2**32,
    # and an infinite noise would pick even a token that is cut off.
    return (bits.clamp(max=2**32 - 256).float() + 0.5) * 2.0**-32


def _pcg4d(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mix four words. int64 tensors hold uint32 values: torch has no uint32 arithmetic."""
    x, y, z, w = ((v * 1664525 + 1013904223) & _MASK for v in (x, y, z, w))
    x, y, z, w = _mix(x, y, z, w)
    x, y, z, w = (v ^ (v >> 16) for v in (x, y, z, w))
    return _mix(x, y, z, w)


def _mix(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = (x + y * w) & _MASK
    y = (y + z * x) & _MASK
    z = (z + x * y) & _MASK
    w = (w + y * z) & _MASK
    return x, y, z, w
