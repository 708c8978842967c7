"""The paged key/value pools of target and drafter, behind one page table."""

import os
from collections.abc import Sequence
from pathlib import Path

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
            f"engine.kv_cache_gib: {max(budget, 0) / 2**30:.4f} GiB are less than two pages of the "
            f"KV cache ({bytes_per_page} bytes each); raise engine.kv_cache_gib"
            + ("" if device.type == "cpu" else " or engine.gpu_memory_utilization")
        )
    return pages


def _budget(config: EngineTable, device: torch.device) -> float:
    free, total = _memory(device)
    if config.kv_cache_gib is None:
        if device.type == "cpu":
            return DEFAULT_CPU_KV_GIB * 2**30
        return free - (1 - config.gpu_memory_utilization) * total
    if config.kv_cache_gib * 2**30 > free:
        raise ConfigError(
            f"engine.kv_cache_gib = {config.kv_cache_gib:g} is more than the "
            f"{free / 2**30:.1f} GiB that are free on the {device.type} after the weights; lower it"
        )
    return config.kv_cache_gib * 2**30


def _memory(device: torch.device) -> tuple[int, int]:
    """Free and total bytes. The CPU's pages are only claimed when used: ask before allocating."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    return page * os.sysconf("SC_AVPHYS_PAGES") + _reclaimable(), total


def _reclaimable() -> int:
    """Bytes of file cache that Linux gives back on demand."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Cached", "SReclaimable"))
