"""Host-side launch decisions of the paged attention kernel: tile sizes and number of splits.

Everything here depends on shapes that a captured CUDA graph fixes, never on device data.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

MAX_SPLITS = 64
_H200_SMS = 132


@dataclass(frozen=True)
class LaunchSettings:
    """How one launch is cut up.

    ``block_m``: query rows of a tile; a row is one (token, query head) pair of one kv head.
    ``block_n``: keys of a tile. ``num_stages``: K/V tiles in flight per program.
    ``staged_masks``: loop apart over tiles that need no mask. Saves arithmetic where that is the
    limit (prefill); otherwise one loop keeps the load pipeline full.
    ``programs_per_sm``: how many programs the splits should make for each SM.
    ``min_tiles``: key tiles of a split, at least; a context too short for all splits uses fewer.
    ``dependent_launch``: start each kernel while the one before drains (Hopper's programmatic
    dependent launch).
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    staged_masks: bool = False
    programs_per_sm: int = 1
    min_tiles: int = 2
    dependent_launch: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """Settings and grid of one launch: ``tiles_per_sequence`` query tiles, ``num_splits``."""

    settings: LaunchSettings
    tiles_per_sequence: int
    num_splits: int


# Up to this many query rows of one kv head a launch is bound by reading K/V once, not by
# arithmetic.
MEMORY_BOUND_ROWS = 128

# 16-bit inputs, by head size and block_m. Why these:
# - block_m >= 64 uses wgmma (64 rows for four warps); 16 and 32 rows use mma.sync, whose wasted
#   rows cost nothing while memory is the limit.
# - Shared memory: a program may have 227 KiB, the SM has 228. The query tile of head_dim * block_m
#   elements and num_stages (wgmma) or num_stages - 1 (mma.sync) K and V tiles of
#   head_dim * block_n each must fit, twice where programs_per_sm is 2.
# - The fp32 accumulator takes block_m * head_dim / (32 * num_warps) registers a thread: kept to
#   128, so that scores, probabilities and addresses fit beside it. ptxas reports no spills for
#   sm_90 (tests/kernels/test_paged_attention_compiles.py).
# - Little's law: 4.3 TB/s at about 1 us is some 33 KiB in flight per SM. Memory-bound programs
#   fetch two tiles of keys and values ahead: 64 KiB at head size 128.
# - One program per SM: on the H200 partial outputs cost more than a second program hides (head
#   128 and 256, docs/benchmarks.md). Head 64 has not been measured.
# - 64 keys a tile: the engine's default page, so a tile is one page and its address one scalar.
_TABLE_16_BIT = {
    (64, 16): LaunchSettings(16, 64, 4, 4, programs_per_sm=2),
    (64, 32): LaunchSettings(32, 64, 4, 4, programs_per_sm=2),
    (64, 64): LaunchSettings(64, 64, 4, 4, programs_per_sm=2),
    (64, 128): LaunchSettings(128, 64, 8, 3, programs_per_sm=2),
    (128, 16): LaunchSettings(16, 64, 4, 3),
    (128, 32): LaunchSettings(32, 64, 4, 3),
    (128, 64): LaunchSettings(64, 64, 4, 3),
    (128, 128): LaunchSettings(128, 64, 8, 3),
    (256, 16): LaunchSettings(16, 64, 4, 3),
    (256, 32): LaunchSettings(32, 32, 4, 3),
    (256, 64): LaunchSettings(64, 64, 8, 2),
    (256, 128): LaunchSettings(128, 32, 8, 2),
    (512, 16): LaunchSettings(16, 32, 8, 3),
    (512, 32): LaunchSettings(32, 32, 8, 3),
    (512, 64): LaunchSettings(64, 32, 8, 2),
}

# Prefill: bound by arithmetic, so as many rows as registers allow, and full tiles unmasked.
_PREFILL_16_BIT = {
    64: LaunchSettings(128, 64, 8, 3, staged_masks=True),
    128: LaunchSettings(128, 64, 8, 3, staged_masks=True),
    256: LaunchSettings(128, 32, 8, 2, staged_masks=True),
    512: LaunchSettings(64, 32, 8, 2),  # staged masks would spill
}


def launch_settings(head_dim: int, rows: int, group: int, itemsize: int) -> LaunchSettings:
    """Settings for tiles of at least ``group`` rows out of ``rows`` of one kv head.

    ``rows`` is the longest sequence's new tokens times ``group`` (query heads per kv head).
    """
    if itemsize > 2:
        return _settings_fp32(head_dim, group)
    head_dim = max(head_dim, 64)
    if rows > MEMORY_BOUND_ROWS:
        return _PREFILL_16_BIT[head_dim]
    largest = max(m for d, m in _TABLE_16_BIT if d == head_dim)
    return _TABLE_16_BIT[head_dim, min(_power_of_two(max(rows, group)), largest)]


def _settings_fp32(head_dim: int, group: int) -> LaunchSettings:
    """fp32 multiplies without tensor cores (no TF32: exactness tests): small register tiles."""
    block_n, num_warps = (32, 4) if head_dim <= 128 else (16, 8)
    return LaunchSettings(_power_of_two(group), block_n, num_warps, num_stages=1)


@lru_cache(maxsize=4096)
def make_plan(
    num_sequences: int,
    max_query_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
    max_kv_len: int,
    window: int | None,
    num_sms: int,
    settings: LaunchSettings | None = None,
    num_splits: int | None = None,
) -> LaunchPlan:
    """The launch for these static shapes; ``settings`` and ``num_splits`` override the choice."""
    group = num_heads // num_kv_heads
    settings = settings or launch_settings(head_dim, max_query_len * group, group, itemsize)
    if settings.block_m < group:
        raise ValueError(
            f"{group} query heads share a kv head, but block_m = {settings.block_m} holds fewer "
            f"rows; use LaunchSettings with block_m of at least {_power_of_two(group)}"
        )
    tiles = -(-max_query_len // (settings.block_m // group))
    if num_splits is None:
        visible = max_kv_len if window is None else min(max_kv_len, window + max_query_len)
        programs = num_sequences * tiles * num_kv_heads
        num_splits = choose_splits(programs, visible, settings, num_sms)
    return LaunchPlan(settings, tiles, num_splits)


def choose_splits(programs: int, visible: int, settings: LaunchSettings, num_sms: int) -> int:
    """Into how many parts to cut the ``visible`` keys so that ``programs`` times it fill the GPU.

    At most one split per tile of keys, and at most MAX_SPLITS: past that the combine costs more
    than it brings. ``visible`` is an upper bound; programs whose part turns out empty leave early.
    """
    wanted = num_sms * settings.programs_per_sm // max(programs, 1)
    if wanted > 16:
        wanted -= wanted % 16  # the combine handles the next power of two
    return max(1, min(wanted, -(-visible // settings.block_n), MAX_SPLITS))


def workspace_numel(plan: LaunchPlan, num_tokens: int, num_heads: int, head_dim: int) -> int:
    """fp32 elements of scratch that ``plan`` needs for ``num_tokens`` query tokens."""
    if plan.num_splits == 1:
        return 0
    return plan.num_splits * num_tokens * num_heads * (head_dim + 1)


@lru_cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of ``device``; the H200's number for the CPU interpreter."""
    if device.type != "cuda":
        return _H200_SMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _power_of_two(rows: int) -> int:
    """The least power of two that is at least ``rows`` and 16, the smallest tensor-core tile."""
    return max(16, 1 << (rows - 1).bit_length())
