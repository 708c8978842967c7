"""How many pages the configured memory holds, and the messages where it cannot be."""

import pytest
import torch

from engine.config import ConfigError, EngineTable
from engine.runner import kv_cache

CPU = torch.device("cpu")


def test_pages_of_a_budget() -> None:
    table = EngineTable(kv_cache_gib=0.25)
    assert kv_cache.num_pages_that_fit(table, 2**20, CPU) == 256


@pytest.mark.parametrize(
    ("gib", "words"),
    [
        (1e6, ["engine.kv_cache_gib = 1e+06", "free on the cpu", "lower it"]),
        (1e-6, ["engine.kv_cache_gib", "less than two pages", "raise engine.kv_cache_gib"]),
    ],
)
def test_budgets_that_cannot_be(gib: float, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        kv_cache.num_pages_that_fit(EngineTable(kv_cache_gib=gib), 2**20, CPU)
    for word in words:
        assert word in str(refused.value)
    assert "gpu_memory" not in str(refused.value)
