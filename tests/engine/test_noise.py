"""The noise is a fixed function of (seed, position, token), and looks like Gumbel noise."""

import math

import pytest
import torch

from engine import noise
from engine.noise import gumbel

MASK = 0xFFFFFFFF


def pcg4d(words: list[int]) -> list[int]:
    """The paper's generator in Python's integers."""
    v = [(word * 1664525 + 1013904223) & MASK for word in words]

    def mix() -> None:
        v[0] = (v[0] + v[1] * v[3]) & MASK
        v[1] = (v[1] + v[2] * v[0]) & MASK
        v[2] = (v[2] + v[0] * v[1]) & MASK
        v[3] = (v[3] + v[1] * v[2]) & MASK

    mix()
    v[:] = [word ^ (word >> 16) for word in v]
    mix()
    return v


def reference(seed: int, position: int, token: int) -> float:
    """Gumbel noise of one token, in float64."""
    word = pcg4d([token // 4, position & MASK, seed & MASK, seed >> 32 & MASK])[token % 4]
    uniform = (min(word, 2**32 - 256) + 0.5) / 2**32
    return -math.log(-math.log1p(-uniform))


def draw(seeds: list[int], positions: list[int], vocab_size: int) -> torch.Tensor:
    return gumbel(torch.tensor(seeds), torch.tensor(positions), vocab_size)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**32 + 5, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("position", [0, 1, 40960, 2**31 + 7])
def test_equals_the_paper(seed: int, position: int) -> None:
    expected = [reference(seed, position, token) for token in range(13)]
    got = draw([seed], [position], 13)[0]
    torch.testing.assert_close(got, torch.tensor(expected), atol=2e-5, rtol=2e-5)


def test_does_not_depend_on_the_batch() -> None:
    together = draw([5, 6, 5, -9], [1, 2, 3, 2**20], 50)
    for row, (seed, position) in enumerate([(5, 1), (6, 2), (5, 3), (-9, 2**20)]):
        assert torch.equal(together[row], draw([seed], [position], 50)[0])


def test_a_larger_vocabulary_keeps_the_noise_of_its_first_tokens() -> None:
    assert torch.equal(draw([3], [4], 1000)[:, :37], draw([3], [4], 37))


@pytest.mark.parametrize("word", [0, 1, 2**32 - 1, 2**32 - 128, 2**32 - 129, 2**32 - 257])
def test_is_finite_at_the_ends(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite noise would choose a token that top_k had cut off (-inf + inf is NaN)."""
    monkeypatch.setattr(
        noise, "_pcg4d", lambda x, _y, _z, _w: tuple(torch.full_like(x, word) for _ in range(4))
    )
    assert draw([0], [0], 8).isfinite().all()


def test_is_finite_everywhere_it_is_drawn() -> None:
    for seed in range(4):
        assert draw([seed] * 30, list(range(30)), 150_000).isfinite().all()


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, 0.5, -3.0, 1.5])
DRAWS = 40_000
LIMIT = 24.3  # 7 degrees of freedom, 0.1 %


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -12345])
def test_frequencies_over_positions(seed: int) -> None:
    samples = (LOGITS + draw([seed] * DRAWS, list(range(DRAWS)), 8)).argmax(-1)
    assert chi_square(samples.bincount(minlength=8), LOGITS.softmax(0)) < LIMIT


@pytest.mark.parametrize("scale", [1, 2**32, 2**40])
def test_frequencies_over_seeds(scale: int) -> None:
    seeds = [i * scale for i in range(2**22)][:DRAWS]
    samples = (LOGITS + draw(seeds, [17] * DRAWS, 8)).argmax(-1)
    assert chi_square(samples.bincount(minlength=8), LOGITS.softmax(0)) < LIMIT


def test_frequencies_of_a_large_vocabulary() -> None:
    """Groups of tokens are drawn in proportion, whatever their place."""
    samples = draw([9] * 1000, list(range(1000)), 20_000).argmax(-1)
    assert chi_square((samples // 2500).bincount(minlength=8), torch.full((8,), 0.125)) < LIMIT


def test_rare_tokens_are_drawn() -> None:
    """e^-9 of the mass: 0.00012 · 40 000 ≈ 5 draws."""
    logits = torch.tensor([0.0, -9.0])
    samples = (logits + draw([1] * DRAWS, list(range(DRAWS)), 2)).argmax(-1)
    assert 0 < samples.sum() < 20


@pytest.mark.parametrize("neighbour", ["position", "seed", "token", "fourth_token", "high_seed"])
def test_neighbours_are_independent(neighbour: str) -> None:
    positions, seeds = list(range(DRAWS)), [7] * DRAWS
    here = draw(seeds, positions, 8)
    other = {
        "position": lambda: draw(seeds, [p + 1 for p in positions], 8),
        "seed": lambda: draw([8] * DRAWS, positions, 8),
        "token": lambda: here.roll(1, 1),
        "fourth_token": lambda: here.roll(4, 1),
        "high_seed": lambda: draw([7 + 2**32] * DRAWS, positions, 8),
    }[neighbour]()
    correlation = torch.corrcoef(torch.stack([here.flatten(), other.flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.01
    pairs = (
        here[:, 0].argsort().argsort() * 8 // DRAWS,
        other[:, 0].argsort().argsort() * 8 // DRAWS,
    )
    cells = (pairs[0] * 8 + pairs[1]).bincount(minlength=64)
    assert chi_square(cells, torch.full((64,), 1 / 64)) < 103.4  # 63 degrees of freedom, 0.1 %
