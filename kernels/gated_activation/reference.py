"""Gated activations of a merged gate-and-up projection, in plain torch."""

from torch import Tensor
from torch.nn import functional as F


def silu_and_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up`` for ``gate_up [T, 2 * F]`` (gate first): ``[T, F]`` (arXiv 2002.05202).

    The activation is rounded to the input's type before the product, as in transformers.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    result = F.silu(gate) * up
    return result if out is None else out.copy_(result)


def gelu_tanh_and_mul(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu(gate) * up`` with the tanh form of GELU (arXiv 1606.08415); else as above."""
    gate, up = gate_up.chunk(2, dim=-1)
    result = F.gelu(gate, approximate="tanh") * up
    return result if out is None else out.copy_(result)
