"""Gated activations against the reference and the engine's layer."""

import pytest
import torch
from torch import Tensor

from engine.layers.mlp import GatedMLP
from kernels.gated_activation import reference, triton

DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
OPS = ["silu_and_mul", "gelu_tanh_and_mul"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 16), (3, 1500), (2, 2112)])
def test_matches_reference(
    op: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(shape[0], 2 * shape[1], dtype=dtype, device=device) * 4
    out = torch.empty(shape, dtype=dtype, device=device)
    assert getattr(triton, op)(gate_up, out=out) is out
    expected: Tensor = getattr(reference, op)(gate_up)
    eps = torch.finfo(dtype).eps
    # torch's own GELU cancels where tanh nears -1.
    torch.testing.assert_close(out, expected, rtol=4 * eps, atol=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_extremes(op: str, device: torch.device) -> None:
    gate = torch.tensor([-1e4, -100.0, -20.0, -0.0, 0.0, 20.0, 100.0, 1e4], device=device)
    gate_up = torch.cat([gate, torch.full_like(gate, 2.0)])[None]
    expected = getattr(reference, op)(gate_up)
    torch.testing.assert_close(getattr(triton, op)(gate_up), expected, rtol=1e-5, atol=1e-6)


def test_strided_rows(device: torch.device) -> None:
    wide = torch.randn(3, 40, device=device)
    expected = reference.silu_and_mul(wide[:, :32].contiguous())
    torch.testing.assert_close(triton.silu_and_mul(wide[:, :32]), expected)


def test_reference_is_the_engines() -> None:
    mlp = GatedMLP(8, 16)
    for weight in mlp.parameters():
        torch.nn.init.normal_(weight)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        merged = torch.cat(mlp.gate_up_proj(x), dim=-1)
        torch.testing.assert_close(mlp.down_proj(reference.silu_and_mul(merged)), mlp(x))
