"""The paged key/value pools of target and drafter, behind one page table."""

from collections.abc import Sequence

import torch

from engine.attention.batch import CacheSpec, LayerCache
from engine.config import ConfigError, EngineTable

DEFAULT_CPU_KV_GIB = 1.0


def page_bytes(specs: Sequence[CacheSpec], page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page over all layers."""
    return page_size * sum(spec.bytes_per_token(dtype) for spec in specs)


def allocate(
    specs: Sequence[CacheSpec],
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[LayerCache]:
    """One cache per layer. Zeroed: a stray NaN behind a masked key would spoil a whole row."""

    def pool(spec: CacheSpec) -> torch.Tensor:
        shape = (num_pages, page_size, spec.num_kv_heads, spec.head_dim)
        return torch.zeros(shape, dtype=dtype, device=device)

    return [LayerCache(pool(spec), pool(spec)) for spec in specs]


def num_pages_that_fit(config: EngineTable, bytes_per_page: int, device: torch.device) -> int:
    """How many pages the configured memory holds. Call it once the weights are loaded."""
    budget = _budget(config, device)
    pages = int(budget // bytes_per_page)
    if pages < 2:
        raise ConfigError(
            f"{budget / 2**30:.2f} GiB for the KV cache holds {pages} pages of {bytes_per_page} "
            "bytes; raise engine.kv_cache_gib or engine.gpu_memory_utilization"
        )
    return pages


def _budget(config: EngineTable, device: torch.device) -> float:
    if config.kv_cache_gib is not None:
        return config.kv_cache_gib * 2**30
    if device.type == "cpu":
        return DEFAULT_CPU_KV_GIB * 2**30
    free, total = torch.cuda.mem_get_info(device)
    return free - (1 - config.gpu_memory_utilization) * total
