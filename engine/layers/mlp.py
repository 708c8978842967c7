"""The gated feed-forward block of Llama-like decoders."""

from torch import Tensor, nn
from torch.nn import functional as F

from engine.layers.linear import MergedLinear


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))`` (SwiGLU, arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        parts = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up_proj = MergedLinear(hidden_size, parts)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x [T, hidden]`` to ``[T, hidden]``."""
        gate, up = self.gate_up_proj(x)
        return self.down_proj(F.silu(gate) * up)
