"""RMSNorm kernels against the reference, and the reference against the engine's layer."""

import pytest
import torch

from engine.layers.norm import RMSNorm
from kernels.rms_norm import reference, triton

EPS = 1e-6
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()
SHAPES = [(1, 384), (5, 1000), (3, 4096), (2, 8192)]


def tolerance(dtype: torch.dtype) -> float:
    """Two units in the last place: the order of summation may move one rounding, and the next."""
    return 2 * torch.finfo(dtype).eps


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(shape, dtype=dtype, device=device) * 3
    weight = torch.randn(shape[1], dtype=dtype, device=device)
    expected = reference.rms_norm(x, weight, EPS)
    out = torch.empty_like(x)
    assert triton.rms_norm(x, weight, EPS, out=out) is out
    torch.testing.assert_close(out, expected, rtol=tolerance(dtype), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_rms_norm(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    x, residual = torch.randn(2, *shape, dtype=dtype, device=device)
    weight = torch.randn(shape[1], dtype=dtype, device=device)
    expected, stream = reference.add_rms_norm(x, residual, weight, EPS)
    normed, new_residual = triton.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(new_residual, stream)
    torch.testing.assert_close(normed, expected, rtol=tolerance(dtype), atol=1e-6)


def test_in_place(device: torch.device) -> None:
    x, residual = torch.randn(2, 3, 384, device=device)
    weight = torch.randn(384, device=device)
    expected, stream = reference.add_rms_norm(x, residual, weight, EPS)
    triton.add_rms_norm(x, residual, weight, EPS, out=x, residual_out=residual)
    torch.testing.assert_close(x, expected)
    assert torch.equal(residual, stream)


def test_residual_of_another_type(device: torch.device) -> None:
    x = torch.randn(3, 384, dtype=torch.float16, device=device)
    residual = torch.randn(3, 384, device=device)
    weight = torch.randn(384, dtype=torch.float16, device=device)
    expected, stream = reference.add_rms_norm(x, residual, weight, EPS)
    normed, new_residual = triton.add_rms_norm(x, residual, weight, EPS)
    assert (normed.dtype, new_residual.dtype) == (torch.float16, torch.float32)
    assert torch.equal(new_residual, stream)
    torch.testing.assert_close(normed, expected, rtol=tolerance(torch.float16), atol=1e-6)


def test_residual_in_a_column_range(device: torch.device) -> None:
    """The stream after a captured layer may be written to the drafter's features directly."""
    x, residual = torch.randn(2, 3, 384, device=device)
    weight = torch.randn(384, device=device)
    features = torch.zeros(3, 3 * 384, device=device)
    triton.add_rms_norm(x, residual, weight, EPS, residual_out=features[:, 384:768])
    stream = features[:, 384:768]
    assert torch.equal(stream, x + residual)
    assert features[:, :384].count_nonzero() + features[:, 768:].count_nonzero() == 0
    again, _ = triton.add_rms_norm(x, stream, weight, EPS)
    torch.testing.assert_close(again, reference.add_rms_norm(x, stream, weight, EPS)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reference_is_the_engines(dtype: torch.dtype) -> None:
    layer = RMSNorm(384, EPS).to(dtype)
    torch.nn.init.normal_(layer.weight)
    x, residual = torch.randn(2, 3, 384, dtype=dtype)
    with torch.inference_mode():
        assert torch.equal(reference.rms_norm(x, layer.weight, EPS), layer(x))
        normed, stream = reference.add_rms_norm(x, residual, layer.weight, EPS)
        assert torch.equal(stream, residual + x)
        assert torch.equal(normed, layer(stream))


def test_no_rows(device: torch.device) -> None:
    x = torch.empty(0, 384, device=device)
    assert triton.rms_norm(x, torch.ones(384, device=device), EPS).shape == (0, 384)
