"""RMSNorm, alone and after a residual addition, in plain torch."""

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """``x / rms(x) * weight`` for ``x [T, hidden]`` (arXiv 1910.07467), in x's type.

    Computed in float32, rounded to x's type, then multiplied with the weight: as transformers.
    """
    normed = F.rms_norm(x.float(), weight.shape, eps=eps).to(x.dtype) * weight.to(x.dtype)
    return normed if out is None else out.copy_(normed)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``(rms_norm(residual + x), residual + x)``, both ``[T, hidden]``.

    The sum is rounded to the residual's type, the norm to x's. ``residual_out`` may be
    ``residual`` itself and ``out`` may be ``x``.
    """
    total = (residual.float() + x.float()).to(residual.dtype)
    normed = rms_norm(total.float(), torch.ones_like(weight).float(), eps).to(x.dtype)
    normed = normed * weight.to(x.dtype)
    return (
        normed if out is None else out.copy_(normed),
        total if residual_out is None else residual_out.copy_(total),
    )
