"""RMSNorm, alone and after a residual addition: one program per row, one pass over memory."""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    residual_out_ptr,
    x_stride,
    residual_stride,
    out_stride,
    residual_out_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Strides count elements between rows; without a residual its pointers are None."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    x = tl.load(x_ptr + row * x_stride + columns, inside, 0.0).to(tl.float32)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + row * residual_stride + columns, inside, 0.0)
        # The norm sees the sum as it is stored, so that the stream has one value, not two.
        total = (x + residual.to(tl.float32)).to(residual_out_ptr.dtype.element_ty)
        tl.store(residual_out_ptr + row * residual_out_stride + columns, total, inside)
        x = total.to(tl.float32)
    weight = tl.load(weight_ptr + columns, inside, 0.0).to(out_ptr.dtype.element_ty)
    normed = x * tl.rsqrt(tl.sum(x * x) / SIZE + eps)
    normed = normed.to(out_ptr.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + row * out_stride + columns, normed, inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """``x / rms(x) * weight`` for ``x [T, hidden]`` (arXiv 1910.07467), in x's type.

    Computed in float32, rounded to x's type, then multiplied with the weight: as transformers.
    Rows may be strided; ``out [T, hidden]`` may be ``x``.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, eps, out, None)
    return out


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
    ``residual`` itself and ``out`` may be ``x``. Rows may be strided, so the stream can be kept
    in a column range of a wider tensor, such as the drafter's features.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if residual_out is None:
        residual_out = torch.empty(residual.shape, dtype=residual.dtype, device=x.device)
    _launch(x, residual, weight, eps, out, residual_out)
    return out, residual_out


def _launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    out: Tensor,
    residual_out: Tensor | None,
) -> None:
    rows, size = x.shape
    block = triton.next_power_of_2(size)
    if rows == 0:
        return
    for tensor in (x, residual, weight, out, residual_out):
        assert tensor is None or tensor.stride(-1) == 1, "columns must be contiguous"
    _rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        out,
        residual_out,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        0 if residual_out is None else residual_out.stride(0),
        eps,
        SIZE=size,
        BLOCK=block,
        # 8 elements (16 bytes of bf16) per thread and load.
        num_warps=min(max(block // 256, 1), 16),
    )
