"""Muon (Jordan et al., 2024): momentum whose matrices are made orthogonal before the step."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

# Coefficients of the quintic Newton-Schulz iteration, from the authors' reference.
A, B, C = 3.4445, -4.7750, 2.0315


class Muon(Optimizer):
    """For matrices only. Matrices of one shape are stepped together, as one batched product."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(_by_shape(matrices), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            matrices: list[Tensor] = group["params"]
            gradient = torch.stack([m.grad for m in matrices if m.grad is not None])
            state = self.state[matrices[0]]
            average = state.setdefault("average", torch.zeros_like(gradient))
            average.lerp_(gradient, 1 - group["momentum"])
            update = orthogonal(gradient.lerp(average, group["momentum"]))
            # This scale gives updates of the size that AdamW's have, so both share one rate.
            scale = 0.2 * max(gradient.shape[-2:]) ** 0.5
            torch._foreach_add_(matrices, list(update.float()), alpha=-group["lr"] * scale)


def orthogonal(x: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices to x [n, rows, columns], roughly."""
    tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.mT if tall else x


def _by_shape(matrices: Iterable[Tensor]) -> list[dict[str, list[Tensor]]]:
    groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for matrix in matrices:
        groups[matrix.shape].append(matrix)
    return [{"params": group} for group in groups.values()]
