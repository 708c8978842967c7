"""Correctness in bf16 and speed of the paged attention kernel on a GPU.

    python -m kernels.paged_attention.benchmark [--json FILE] [--sections check decode prefill]

Each figure is the median of replays of a CUDA graph that holds many calls, every one on pages of
its own, so that keys and values come from memory and not from the L2 cache: as in a model, where
the other layers' weights pass between two uses. ``--smoke`` runs every section once with tiny
shapes, for Triton's CPU interpreter (TRITON_INTERPRET=1).
"""

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.paged_attention import reference
from kernels.paged_attention.plan import LaunchSettings, launch_settings
from kernels.paged_attention.triton import paged_attention

MEMORY_FLOOR = 4.3e12  # bytes/s that a copy reaches on the H200
COMPUTE_FLOOR = 700e12  # FLOP/s of a large bf16 matrix product
MAX_ERROR = 1e-2  # |difference| / (1 + |expected|); neighbouring bf16 differ by up to 2**-7
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32


@dataclass(frozen=True)
class Geometry:
    """One layer's attention."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim * DTYPE.itemsize

    def visible(self, new: int, length: int) -> int:
        """Keys that ``new`` queries at the end of ``length`` tokens touch."""
        return length if self.window is None else min(length, self.window + new - 1)


QWEN = Geometry("qwen3-8b", 32, 8, 128)
GEMMA_WINDOW = Geometry("gemma-window", 16, 8, 256, window=1024)
GEMMA_FULL = Geometry("gemma-full", 16, 2, 512)
SMOKE = Geometry("smoke", 4, 2, 16, window=40)


@dataclass(frozen=True)
class Shape:
    """``batch`` sequences with ``new`` of ``length`` tokens each."""

    batch: int
    new: int
    length: int


@dataclass(frozen=True)
class Cache:
    """Pages of one geometry, and a shuffled list of their numbers, page 0 left out."""

    keys: Tensor
    values: Tensor
    pages: Tensor

    def tables(self, shape: Shape, layers: int) -> Tensor:
        """Page tables ``[layers, batch, pages]`` that share no page."""
        per_sequence = -(-shape.length // self.keys.shape[1])
        count = layers * shape.batch * per_sequence
        return self.pages[:count].view(layers, shape.batch, per_sequence)


def make_cache(geometry: Geometry, num_tokens: int, page_size: int) -> Cache:
    """A cache of at least ``num_tokens`` random keys and values."""
    pages = -(-num_tokens // page_size) + 1
    shape = (pages, page_size, geometry.kv_heads, geometry.head_dim)
    keys, values = (torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in "kv")
    shuffled = torch.randperm(pages - 1, device=DEVICE, dtype=torch.int64) + 1
    return Cache(keys, values, shuffled.int())


def num_layers(geometry: Geometry, shape: Shape) -> int:
    """Calls in a graph, enough that their keys and values are several times the L2 cache."""
    touched = shape.batch * geometry.visible(shape.new, shape.length) * geometry.bytes_per_token
    return max(4, min(64, math.ceil(300e6 / touched))) if DEVICE.type == "cuda" else 1


def starts(shape: Shape) -> Tensor:
    return torch.arange(shape.batch + 1, device=DEVICE, dtype=torch.int32) * shape.new


def calls(
    geometry: Geometry,
    shape: Shape,
    cache: Cache,
    settings: LaunchSettings | None,
    causal: bool,
    max_kv_len: int = 40960,
) -> Callable[[], None]:
    """A function that attends once per layer."""
    rows = shape.batch * shape.new
    query = torch.randn(rows, geometry.heads, geometry.head_dim, device=DEVICE, dtype=DTYPE)
    out, query_start = torch.empty_like(query), starts(shape)
    kv_lens = torch.full((shape.batch,), shape.length, device=DEVICE, dtype=torch.int32)
    tables = cache.tables(shape, num_layers(geometry, shape))
    scratch = workspace()

    def run() -> None:
        for table in tables:
            paged_attention(
                query,
                cache.keys,
                cache.values,
                table,
                kv_lens,
                query_start,
                max_query_len=shape.new,
                max_kv_len=max_kv_len,
                scale=geometry.head_dim**-0.5,
                causal=causal,
                window=geometry.window,
                out=out,
                workspace=scratch,
                settings=settings,
            )

    return run


@lru_cache
def workspace() -> Tensor:
    """256 MiB: more than any launch here needs."""
    return torch.empty(2**26 if DEVICE.type == "cuda" else 2**20, device=DEVICE)


def seconds(run: Callable[[], None], repeats: int = 9) -> float:
    """Median time of ``run`` as a CUDA graph; on the CPU the time of one call."""
    if DEVICE.type == "cpu":
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    graph = captured(run)
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return statistics.median(times[1:])


def captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """``run`` as a graph; run once before, for compilation cannot be captured."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Without torch.cuda.graph, which collects garbage each time: there are many hundred graphs.
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        run()
        graph.capture_end()
    return graph


def check(geometry: Geometry, page_size: int) -> Iterator[dict[str, Any]]:
    """Largest error over ragged batches: verify, draft, decode, prefill and padding rows."""
    scale = 1 if DEVICE.type == "cuda" else 40
    for new in (1, 8, 16, 300 // scale):
        lengths = [1500 // scale + new, new, 0, 640 // scale + new, 64 + new]
        for causal in (True, False):
            for settings in check_settings(geometry, new, causal):
                error = error_of(geometry, new, lengths, causal, settings, page_size)
                record = {"geometry": geometry.name, "new": new, "causal": causal}
                yield record | {"settings": name_of(settings), "max_error": error}


def check_settings(geometry: Geometry, new: int, causal: bool) -> list[LaunchSettings | None]:
    """The table's choice everywhere; for a causal block also what takes other paths."""
    if DEVICE.type == "cpu" or new != 16 or not causal:
        return [None]
    default = launch_settings(geometry.head_dim, new * geometry.group, geometry.group, 2)
    dependent = replace(default, dependent_launch=True, programs_per_sm=4)
    # Tiles of two pages of 64 take the path that looks up a page for every row.
    wide = replace(default, block_n=128, num_stages=1)
    return [None, dependent, wide, replace(default, block_n=16, staged_masks=True)]


def error_of(
    geometry: Geometry,
    new: int,
    lengths: list[int],
    causal: bool,
    settings: LaunchSettings | None,
    page_size: int,
) -> float:
    """Against the reference, with NaN in every cache row past a sequence and in the output."""
    cache = make_cache(geometry, len(lengths) * (max(lengths) + page_size), page_size)
    tables = cache.tables(Shape(len(lengths), new, max(lengths)), 1)[0].clone()
    poisoned = torch.ones(cache.keys.shape[:2], dtype=torch.bool, device=DEVICE)
    for row, length in enumerate(lengths):
        positions = torch.arange(length, device=DEVICE)
        poisoned[tables[row, positions // page_size].long(), positions % page_size] = False
        tables[row, -(-length // page_size) :] = 0
    cache.keys[poisoned], cache.values[poisoned] = math.nan, math.nan
    shape = Shape(len(lengths), new, max(lengths))
    query = torch.randn(
        shape.batch * new, geometry.heads, geometry.head_dim, device=DEVICE, dtype=DTYPE
    )
    kv_lens = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    arguments = (query, cache.keys, cache.values, tables, kv_lens, starts(shape))
    options: dict[str, Any] = {
        "max_query_len": new,
        "max_kv_len": max(lengths),
        "scale": geometry.head_dim**-0.5,
        "causal": causal,
        "window": geometry.window,
    }
    expected = reference.paged_attention(*arguments, **options)
    out = torch.full_like(query, math.nan)
    paged_attention(*arguments, **options, out=out, settings=settings)
    return difference(out, expected)


def difference(got: Tensor, expected: Tensor) -> float:
    """The largest, relative to 1 + |expected|; infinite if anything is."""
    error = float(((got.float() - expected.float()).abs() / (1 + expected.float().abs())).max())
    return error if math.isfinite(error) else math.inf


def check_replay(geometry: Geometry, page_size: int) -> dict[str, Any]:
    """A graph captured at one set of lengths, replayed at others, without a host sync."""
    shape = Shape(4, 16, 2048)
    cache = make_cache(geometry, shape.batch * shape.length, page_size)
    table = cache.tables(shape, 1)[0]
    query = torch.randn(64, geometry.heads, geometry.head_dim, device=DEVICE, dtype=DTYPE)
    kv_lens = torch.zeros(4, device=DEVICE, dtype=torch.int32)
    arguments = (query, cache.keys, cache.values, table, kv_lens, starts(shape))
    options: dict[str, Any] = {
        "max_query_len": 16,
        "max_kv_len": shape.length,
        "scale": geometry.head_dim**-0.5,
        "causal": True,
        "window": geometry.window,
    }
    out = torch.empty_like(query)

    def run() -> None:
        paged_attention(*arguments, **options, out=out)

    run()
    torch.cuda.set_sync_debug_mode("error")
    run()
    torch.cuda.set_sync_debug_mode("default")
    graph = captured(run)
    error = 0.0
    for lengths in ([16, 2048, 0, 777], [0, 0, 0, 0], [1000, 17, 64, 1999]):
        kv_lens.copy_(torch.tensor(lengths))
        graph.replay()
        expected = reference.paged_attention(*arguments, **options)
        error = max(error, difference(out, expected))
    return {"geometry": geometry.name, "replay": True, "max_error": error}


def name_of(settings: LaunchSettings | None) -> str:
    """Short: tile, warps, stages, programs per SM, least tiles of a split, flags.

    Flags: s for staged masks, d for dependent launch.
    """
    if settings is None:
        return "default"
    flags = "s" * settings.staged_masks + "d" * settings.dependent_launch
    return (
        f"{settings.block_m}x{settings.block_n}w{settings.num_warps}s{settings.num_stages}"
        f"p{settings.programs_per_sm}t{settings.min_tiles}{flags}"
    )


def decode_variants(geometry: Geometry, new: int) -> list[LaunchSettings]:
    """The table's choice first, then what might beat it."""
    base = launch_settings(geometry.head_dim, new * geometry.group, geometry.group, 2)
    if geometry != QWEN and new == 1:
        return [base, replace(base, programs_per_sm=4)]
    others = [replace(base, programs_per_sm=p) for p in (1, 2, 4) if p != base.programs_per_sm]
    others += [replace(base, min_tiles=t) for t in (1, 4)]
    dependent = [replace(s, dependent_launch=True) for s in (base, *others[:1])]
    return [base, *others, *dependent, *tile_variants(geometry, base)]


def tile_variants(geometry: Geometry, base: LaunchSettings) -> list[LaunchSettings]:
    """Other tiles that fit; by head size."""
    m = base.block_m
    if geometry.head_dim == 128:
        others = [(m, 32, 4, 5), (m, 64, 4, 4), (m, 64, 4, 2), (m, 128, 4, 2)]
        others += [(64, 64, 4, 3)] if m < 64 else [(m, 64, 8, 3), (m, 128, 8, 2)]
    elif geometry.head_dim == 256:
        others = [(m, 32, 4, 3), (m, 32, 8, 4), (64, 64, 8, 2), (64, 32, 8, 3)]
    else:
        others = [(m, 16, 8, 3), (m, 16, 8, 4), (32, 32, 8, 3), (16, 32, 8, 3)]
    fitting = [o for o in others if o[0] >= geometry.group]
    found = [LaunchSettings(*o, programs_per_sm=base.programs_per_sm) for o in fitting]
    return [s for s in found if s != base]


def prefill_variants(geometry: Geometry) -> list[LaunchSettings]:
    base = launch_settings(geometry.head_dim, 10**6, geometry.group, 2)
    if geometry.head_dim == 128:
        others = [
            (128, 128, 8, 2, True),
            (128, 128, 8, 3, True),
            (128, 64, 8, 4, True),
            (128, 64, 8, 2, True),
            (64, 64, 4, 3, True),
            (64, 64, 4, 2, True),
            (64, 128, 4, 2, True),
            (128, 64, 8, 3, False),
        ]
    elif geometry.head_dim == 256:
        others = [(128, 64, 8, 2, True), (64, 64, 8, 2, True), (64, 32, 8, 3, True)]
    else:
        others = [(64, 16, 8, 3, True), (64, 32, 8, 2, True), (64, 16, 8, 3, False)]
    return [base, *(LaunchSettings(*o) for o in others)]


def time_decode(
    geometry: Geometry, shapes: Sequence[Shape], page_size: int
) -> Iterator[dict[str, Any]]:
    """Causal blocks of ``shape.new`` tokens; memory-bound."""
    most = max(num_layers(geometry, s) * s.batch * (s.length + page_size) for s in shapes)
    cache = make_cache(geometry, most, page_size)
    for shape in shapes:
        layers = num_layers(geometry, shape)
        touched = shape.batch * geometry.visible(shape.new, shape.length)
        floor = touched * geometry.bytes_per_token / MEMORY_FLOOR
        for settings in variants_here(decode_variants(geometry, shape.new)):
            time_s = time_or_none(calls(geometry, shape, cache, settings, True))
            yield record_of("decode", geometry, shape, settings, time_s, layers, floor)


def time_prefill(
    geometry: Geometry, shapes: Sequence[Shape], page_size: int
) -> Iterator[dict[str, Any]]:
    """Causal prompts or chunks; bound by arithmetic."""
    most = max(num_layers(geometry, s) * s.batch * (s.length + page_size) for s in shapes)
    cache = make_cache(geometry, most, page_size)
    for shape in shapes:
        layers = num_layers(geometry, shape)
        floor = flops(geometry, shape) / COMPUTE_FLOOR
        for settings in variants_here(prefill_variants(geometry)):
            time_s = time_or_none(calls(geometry, shape, cache, settings, True))
            yield record_of("prefill", geometry, shape, settings, time_s, layers, floor)
        if shape.new == shape.length and geometry.window is None and geometry.head_dim <= 256:
            yield sdpa_record(geometry, shape, floor)


def variants_here(variants: list[LaunchSettings]) -> list[LaunchSettings]:
    return variants if DEVICE.type == "cuda" else variants[:1]


def time_or_none(run: Callable[[], None]) -> float | None:
    """None for a variant that the GPU refuses, say for its shared memory."""
    try:
        return seconds(run)
    except Exception as error:
        if DEVICE.type == "cpu" or "resource" not in str(error):
            raise
        return None


def flops(geometry: Geometry, shape: Shape) -> float:
    """Of both products, over visible pairs alone."""
    first = shape.length - shape.new
    window = geometry.window or shape.length
    pairs = sum(min(position + 1, window) for position in range(first, shape.length))
    return 4.0 * shape.batch * geometry.heads * geometry.head_dim * pairs


def sdpa_record(geometry: Geometry, shape: Shape, floor: float) -> dict[str, Any]:
    """torch's own attention on contiguous keys: what a prefill could do without pages."""
    q = torch.randn(
        shape.batch, geometry.heads, shape.new, geometry.head_dim, device=DEVICE, dtype=DTYPE
    )
    k, v = (torch.randn_like(q[:, : geometry.kv_heads]) for _ in "kv")

    def run() -> None:
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    record = record_of("prefill", geometry, shape, None, seconds(run), 1, floor)
    return record | {"settings": "sdpa"}


def record_of(
    kind: str,
    geometry: Geometry,
    shape: Shape,
    settings: LaunchSettings | None,
    time_s: float | None,
    layers: int,
    floor: float,
) -> dict[str, Any]:
    us = None if time_s is None else time_s / layers * 1e6
    return {
        "kind": kind,
        "geometry": geometry.name,
        **asdict(shape),
        "settings": name_of(settings),
        "us": us,
        "floor_us": floor * 1e6,
    }


def report_errors(records: list[dict[str, Any]]) -> None:
    bad = [r for r in records if not r["max_error"] <= MAX_ERROR]
    worst = max(r["max_error"] for r in records)
    verdict = "FAILED" if bad else "passed"
    print(f"check {records[0]['geometry']}: {verdict}, {len(records)} cases, max error {worst:.4f}")
    for record in bad:
        print("  ", record)


def report_times(records: list[dict[str, Any]]) -> None:
    """A line per shape: the table's choice and the best variant; then every variant's average."""
    by_shape = grouped(records, ("kind", "geometry", "batch", "new", "length"))
    unit = "GB/s" if records[0]["kind"] == "decode" else "TFLOP/s"
    print(f"\n{records[0]['kind']} {records[0]['geometry']}: table's choice | best variant")
    for (_, _, batch, new, length), group in by_shape.items():
        base = group[0]
        times = [r for r in group if r["us"] is not None and r["settings"] != "sdpa"]
        best = min(times, key=lambda r: r["us"])
        sdpa = [f" sdpa {r['us']:.1f}" for r in group if r["settings"] == "sdpa"]
        us, floor = base["us"] or math.nan, base["floor_us"]
        peak = MEMORY_FLOOR / 1e9 if unit == "GB/s" else COMPUTE_FLOOR / 1e12
        print(
            f"B{batch:<3d} W{new:<5d} L{length:<5d} {us:8.1f} us {floor / us * peak:5.0f} {unit}"
            f" x{us / floor:5.2f} | {best['settings']:16s} {best['us']:8.1f} us"
            f" x{best['us'] / floor:5.2f}{''.join(sdpa)}",
            flush=True,
        )
    report_variants(records)


def report_variants(records: list[dict[str, Any]]) -> None:
    """Geometric mean, over shapes of one width, of a variant's time over the best's."""
    for (new,), group in grouped(records, ("new",)).items():
        ratios = defaultdict(list)
        for same_shape in grouped(group, ("batch", "length")).values():
            ours = [r for r in same_shape if r["us"] is not None and r["settings"] != "sdpa"]
            best = min(r["us"] for r in ours)
            for record in ours:
                ratios[record["settings"]].append(record["us"] / best)
        means = {name: statistics.geometric_mean(values) for name, values in ratios.items()}
        ranked = sorted(means.items(), key=lambda item: item[1])
        print(f"  W{new}: " + ", ".join(f"{name} {mean:.2f}" for name, mean in ranked))


def grouped(
    records: list[dict[str, Any]], keys: tuple[str, ...]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups = defaultdict(list)
    for record in records:
        groups[tuple(record[key] for key in keys)].append(record)
    return groups


def decode_plan(smoke: bool) -> list[tuple[Geometry, list[Shape]]]:
    if smoke:
        return [(SMOKE, [Shape(2, 3, 70)])]
    qwen = [
        Shape(batch, new, length)
        for new in (1, 8, 16)
        for batch in (1, 8, 16, 32, 64)
        for length in (512, 1024, 2048, 8192)
    ]
    gemma = [
        Shape(batch, new, length)
        for new in (1, 16)
        for batch in (1, 8, 32)
        for length in (1024, 4096)
    ]
    return [(QWEN, qwen), (GEMMA_WINDOW, gemma), (GEMMA_FULL, gemma)]


def prefill_plan(smoke: bool) -> list[tuple[Geometry, list[Shape]]]:
    if smoke:
        return [(SMOKE, [Shape(1, 40, 60)])]
    prompts = [Shape(1, 1024, 1024), Shape(1, 4096, 4096), Shape(1, 8192, 8192)]
    chunks = [Shape(4, 1024, 1024), Shape(1, 2048, 8192)]
    return [
        (QWEN, prompts + chunks),
        (GEMMA_WINDOW, [Shape(1, 4096, 4096)]),
        (GEMMA_FULL, [Shape(1, 4096, 4096)]),
    ]


def checked(smoke: bool, page_size: int) -> list[dict[str, Any]]:
    records = []
    for geometry in [SMOKE] if smoke else [QWEN, GEMMA_WINDOW, GEMMA_FULL]:
        group = list(check(geometry, page_size))
        if DEVICE.type == "cuda":
            group.append(check_replay(geometry, page_size))
        report_errors(group)
        records += group
    return records


def timed(smoke: bool, page_size: int, sections: Sequence[str]) -> list[dict[str, Any]]:
    records = []
    plans = {"decode": (time_decode, decode_plan), "prefill": (time_prefill, prefill_plan)}
    for section in [s for s in plans if s in sections]:
        measure, plan = plans[section]
        for geometry, shapes in plan(smoke):
            group = list(measure(geometry, shapes, page_size))
            report_times(group)
            records += group
    return records


def main(arguments: Sequence[str] | None = None) -> None:
    sections = ("check", "decode", "prefill")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sections", nargs="+", default=sections, choices=sections)
    parser.add_argument("--page-size", type=int, default=64, help="tokens in a page")
    parser.add_argument("--json", help="file that takes one JSON line per figure")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, for the interpreter")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    begin = time.perf_counter()
    records = checked(options.smoke, options.page_size) if "check" in options.sections else []
    records += timed(options.smoke, options.page_size, options.sections)
    if options.json:
        with open(options.json, "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
