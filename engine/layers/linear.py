"""Linear layers. Layers that read the same input are merged into one matrix product."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MergedLinear(nn.Module):
    """Several linear layers over one input, as one GEMM.

    ``parts`` maps the name that each layer has in checkpoints to its number of outputs. The
    checkpoint names stand beside this module's own: ``self_attn.qkv_proj`` is filled from
    ``self_attn.q_proj``, ``self_attn.k_proj`` and ``self_attn.v_proj``.
    """

    def __init__(self, in_features: int, parts: dict[str, int], bias: bool = False) -> None:
        super().__init__()
        self.parts = parts
        out_features = sum(parts.values())
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def _start(self, name: str) -> int:
        names = list(self.parts)
        return sum(self.parts[n] for n in names[: names.index(name)])

    def part(self, parameter: Tensor, name: str) -> Tensor:
        """The rows of ``weight`` or ``bias`` that belong to the part ``name``, as a view."""
        start = self._start(name)
        return parameter[start : start + self.parts[name]]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x [T, in]`` to one ``[T, out]`` per part."""
        return F.linear(x, self.weight, self.bias).split(list(self.parts.values()), dim=-1)

    def parts_from(self, first: str, x: Tensor) -> tuple[Tensor, ...]:
        """Like ``forward``, but only the part ``first`` and those after it."""
        start = self._start(first)
        bias = None if self.bias is None else self.bias[start:]
        sizes = list(self.parts.values())[list(self.parts).index(first) :]
        return F.linear(x, self.weight[start:], bias).split(sizes, dim=-1)
