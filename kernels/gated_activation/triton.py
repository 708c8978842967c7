"""Gated activations of a merged gate-and-up projection."""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _gated_activation_kernel(
    gate_up_ptr,
    out_ptr,
    size,
    gate_up_stride,
    out_stride,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    gate_ptrs = gate_up_ptr + row * gate_up_stride + columns
    gate = tl.load(gate_ptrs, inside, 0.0).to(tl.float32)
    up = tl.load(gate_ptrs + size, inside, 0.0).to(tl.float32)
    if GELU:
        # (1 + tanh(t)) / 2 = sigmoid(2 t), which cancels nothing; sqrt(8 / pi) is in front.
        activated = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        activated = gate * tl.sigmoid(gate)
    activated = activated.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * out_stride + columns, activated * up, inside)


def silu_and_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up`` for ``gate_up [T, 2 * F]`` (gate first): ``[T, F]`` (arXiv 2002.05202).

    The activation is rounded to the input's type before the product, as in transformers.
    """
    return _launch(gate_up, out, gelu=False)


def gelu_tanh_and_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(gate) * up`` with the tanh form of GELU (arXiv 1606.08415); else as above."""
    return _launch(gate_up, out, gelu=True)


def _launch(gate_up: Tensor, out: Tensor | None, *, gelu: bool) -> Tensor:
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    assert gate_up.stride(1) == 1, "columns must be contiguous"
    assert out.stride(1) == 1, "columns must be contiguous"
    if rows:
        _gated_activation_kernel[(rows, triton.cdiv(size, _BLOCK))](
            gate_up,
            out,
            size,
            gate_up.stride(0),
            out.stride(0),
            GELU=gelu,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return out
