"""The paged attention kernel against plain torch.

Under the interpreter in fp32 and fp16, on a GPU also in bf16. Every cache row that no query may
see is poisoned with NaN: rows past a sequence's length, rows before its window, pages that belong
to nobody and the null page. So are the output and the workspace before the launch.
"""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from kernels.paged_attention import plan as planning
from kernels.paged_attention import reference
from kernels.paged_attention.plan import LaunchSettings, make_plan
from kernels.paged_attention.triton import paged_attention, workspace_size

# Soft-caps and sinks may overflow to infinity on their way to a right result; the log of an empty
# sum is discarded.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:divide by zero encountered in log2:RuntimeWarning"),
]

SMALL = LaunchSettings(block_m=16, block_n=16, num_warps=4, num_stages=2, min_tiles=1)
STAGED = replace(SMALL, staged_masks=True)
# Scores and sums are fp32 in kernel and reference; what differs is the order of sums, the output's
# rounding and, in 16 bits, that of the probabilities before they meet V.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Case:
    """``lengths``: per sequence its new tokens and its tokens in the cache, the new included."""

    lengths: tuple[tuple[int, int], ...] = ((3, 37), (1, 1), (5, 64))
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    page_size: int = 16
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dtype: torch.dtype = torch.float32
    index_dtype: torch.dtype = torch.int32
    settings: LaunchSettings | None = SMALL
    num_splits: int | None = 1
    slack: int = 0
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    query: Tensor
    keys: Tensor
    values: Tensor
    page_table: Tensor
    kv_lens: Tensor
    query_start: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.query, self.keys, self.values, self.page_table, self.kv_lens, self.query_start,
        )  # fmt: skip


def make_inputs(case: Case, device: torch.device) -> Inputs:
    """Random queries and cache in shuffled pages; NaN wherever no query may look."""
    generator = torch.Generator().manual_seed(7)
    counts = [-(-length // case.page_size) for _, length in case.lengths]
    num_pages = sum(counts) + 3
    shape = (num_pages, case.page_size, case.kv_heads, case.head_dim)
    keys, values = (torch.randn(shape, generator=generator) for _ in "kv")
    shuffled = (torch.randperm(num_pages - 1, generator=generator) + 1).tolist()
    # Past a sequence's pages the table holds pages of nobody, or none at all.
    table = torch.full((len(counts), max(counts) + 2), num_pages + 10**6)
    seen = torch.zeros(num_pages, case.page_size, dtype=torch.bool)
    for row, ((new, length), count) in enumerate(zip(case.lengths, counts, strict=True)):
        pages = [shuffled.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(pages, dtype=torch.long)
        first = 0 if case.window is None else max(0, length - new - case.window + 1)
        for position in range(first, length):
            seen[pages[position // case.page_size], position % case.page_size] = True
    keys[~seen], values[~seen] = torch.nan, torch.nan
    starts = torch.tensor([0, *(new for new, _ in case.lengths)]).cumsum(0)
    query = torch.randn(int(starts[-1]), case.heads, case.head_dim, generator=generator)
    lens = torch.tensor([length for _, length in case.lengths])
    floats = (t.to(device, case.dtype) for t in (query, keys, values))
    return Inputs(*floats, *(t.to(device, case.index_dtype) for t in (table, lens, starts)))


def run(case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    """The kernel's output, written over NaN with a NaN workspace, and the reference's."""
    inputs = make_inputs(case, device)
    sinks = torch.linspace(-1, 3, case.heads, device=device) if case.sinks else None
    options = {
        "max_query_len": max(new for new, _ in case.lengths) + case.slack,
        "max_kv_len": max(length for _, length in case.lengths) + 5 * case.slack,
        "scale": case.head_dim**-0.5,
        "causal": case.causal,
        "window": case.window,
        "softcap": case.softcap,
        "sinks": sinks,
    }
    options |= case.options
    expected = reference.paged_attention(*inputs.tensors(), **options)
    splits = case.num_splits or 64
    scratch = inputs.query.new_full(
        (splits * inputs.query.shape[0] * case.heads * (case.head_dim + 1),),
        torch.nan,
        dtype=torch.float32,
    )
    out = torch.full_like(inputs.query, torch.nan)
    got = paged_attention(
        *inputs.tensors(),
        **options,
        out=out,
        workspace=scratch,
        settings=case.settings,
        num_splits=case.num_splits,
    )
    assert got is out
    return got, expected


def check(case: Case, device: torch.device) -> None:
    got, expected = run(case, device)
    assert torch.isfinite(expected).all()
    tolerance = TOLERANCE[case.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("num_splits", [1, 2, 7])
@pytest.mark.parametrize("settings", [SMALL, STAGED], ids=["one_loop", "staged"])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("causal", [True, False])
def test_masks_and_splits(
    causal: bool,
    window: int | None,
    settings: LaunchSettings,
    num_splits: int,
    device: torch.device,
) -> None:
    check(Case(causal=causal, window=window, settings=settings, num_splits=num_splits), device)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("causal", [True, False])
def test_query_heads_that_share_a_kv_head(causal: bool, group: int, device: torch.device) -> None:
    case = Case(((7, 40), (2, 5)), heads=2 * group, causal=causal, num_splits=2)
    check(case, device)


@pytest.mark.parametrize("page_size", [16, 24, 32, 64, 256])
@pytest.mark.parametrize("block_n", [16, 32, 64])
def test_page_sizes(page_size: int, block_n: int, device: torch.device) -> None:
    """Tiles smaller than a page, as large, and over several pages."""
    settings = replace(STAGED, block_n=block_n)
    check(Case(((4, 150), (4, 65)), page_size=page_size, settings=settings, num_splits=2), device)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256, 512])
def test_head_sizes(head_dim: int, device: torch.device) -> None:
    heads = 4 if head_dim < 256 else 2
    check(Case(((3, 20), (1, 3)), head_dim=head_dim, heads=heads, kv_heads=1, num_splits=2), device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_dtypes_with_the_launch_that_would_be_chosen(
    dtype: torch.dtype, head_dim: int, causal: bool, device: torch.device
) -> None:
    if dtype == torch.bfloat16 and device.type == "cpu":
        pytest.skip("the interpreter's bf16 is wrong")
    case = Case(
        ((16, 200), (16, 77), (16, 0)),
        kv_heads=1,
        head_dim=head_dim,
        page_size=64,
        causal=causal,
        dtype=dtype,
        settings=None,
        num_splits=None,
    )
    check(case, device)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_softcap_and_sinks(
    softcap: float | None, sinks: bool, num_splits: int, device: torch.device
) -> None:
    case = Case(softcap=softcap, sinks=sinks, num_splits=num_splits, window=40)
    check(case, device)
    check(replace(case, settings=STAGED, causal=False), device)


@pytest.mark.parametrize("scale", [0.02, 3.0])
def test_any_scale(scale: float, device: torch.device) -> None:
    check(Case(options={"scale": scale}, num_splits=2), device)


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_rows_give_zeros(
    causal: bool, sinks: bool, num_splits: int, device: torch.device
) -> None:
    """kv_len 0, with and without new tokens, in the middle and at the end of the batch."""
    lengths = ((4, 30), (4, 0), (0, 0), (0, 12), (4, 4), (4, 0))
    case = Case(lengths, causal=causal, sinks=sinks, num_splits=num_splits)
    got, _ = run(case, device)
    assert (got[4:8] == 0).all()
    assert (got[12:] == 0).all()
    check(case, device)


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("window", [None, 24])
def test_prefill_chunks(window: int | None, num_splits: int, device: torch.device) -> None:
    """A whole prompt, a chunk in mid-prompt and a decode, in one ragged batch."""
    lengths = ((53, 53), (40, 117), (1, 90))
    check(Case(lengths, window=window, settings=STAGED, num_splits=num_splits), device)


@pytest.mark.parametrize("min_tiles", [2, 5])
def test_short_contexts_use_fewer_splits(min_tiles: int, device: torch.device) -> None:
    case = Case(settings=replace(SMALL, min_tiles=min_tiles), num_splits=4)
    check(case, device)
    check(replace(case, window=20, num_splits=20), device)


@pytest.mark.parametrize("num_splits", [1, 7])
def test_one_query_each(num_splits: int, device: torch.device) -> None:
    lengths = tuple((1, length) for length in (1, 15, 16, 17, 33, 120))
    check(Case(lengths, heads=8, num_splits=num_splits), device)


def test_bounds_need_not_be_tight(device: torch.device) -> None:
    """A captured graph's grid covers longer queries and contexts than a replay may have."""
    check(Case(slack=29, num_splits=2), device)
    check(Case(slack=29, settings=STAGED), device)


def test_int64_indices_and_strided_query(device: torch.device) -> None:
    """Queries as a slice of the merged projection's output."""
    case = Case(index_dtype=torch.int64, num_splits=2)
    inputs = make_inputs(case, device)
    merged = torch.full((len(inputs.query), 8, case.head_dim), torch.nan, device=device)
    merged[:, :4] = inputs.query
    options = {"max_query_len": 5, "max_kv_len": 64, "scale": 0.25, "causal": True}
    expected = reference.paged_attention(*inputs.tensors(), **options)
    got = paged_attention(merged[:, :4], *inputs.tensors()[1:], **options, settings=SMALL)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


def test_a_cache_row_that_every_query_sees_may_be_poisoned(device: torch.device) -> None:
    """The poison works: NaN in a visible row reaches the output."""
    inputs = make_inputs(Case(), device)
    inputs.values[inputs.page_table[0, 0], 3] = torch.nan
    got = paged_attention(
        *inputs.tensors(), max_query_len=5, max_kv_len=64, scale=1.0, causal=True, settings=SMALL
    )
    assert got[:3].isnan().all()
    assert got[3:].isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dependent_launch", [False, True])
def test_replays_of_a_captured_graph_follow_new_lengths(
    dependent_launch: bool, device: torch.device
) -> None:
    """Captured with every length 0; nothing waits for the device."""
    case = Case(((16, 700), (16, 300), (16, 90)), head_dim=64, page_size=64, dtype=torch.float16)
    inputs = make_inputs(case, device)
    bounds = {"max_query_len": 16, "max_kv_len": 700, "scale": 0.125, "causal": True}
    settings = LaunchSettings(32, 64, 4, 3, programs_per_sm=4, dependent_launch=dependent_launch)
    lengths = inputs.kv_lens.clone()
    inputs.kv_lens.zero_()
    out = torch.full_like(inputs.query, torch.nan)

    def run() -> None:
        paged_attention(*inputs.tensors(), **bounds, settings=settings, out=out)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(graph):
        run()
    for new_lengths in (lengths, lengths * 0, lengths):
        inputs.kv_lens.copy_(new_lengths)
        graph.replay()
        expected = reference.paged_attention(*inputs.tensors(), **bounds)
        torch.testing.assert_close(out, expected, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": (9, 4, 48)}, "head_dim = 48"),
        ({"values": (9, 8, 2, 16)}, "one layout"),
        ({"query": (9, 3, 16)}, "multiple of kv_heads"),
        ({"kv_lens": (4,)}, "expected B, B and B"),
        ({"workspace": (3,)}, "this launch needs"),
    ],
)
def test_refusals(change: dict[str, tuple[int, ...]], message: str, device: torch.device) -> None:
    inputs = make_inputs(Case(), device)
    names = ("query", "keys", "values", "page_table", "kv_lens", "query_start")
    arguments = dict(zip(names, inputs.tensors(), strict=True))
    arguments |= {name: torch.zeros(shape, device=device) for name, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        paged_attention(
            **arguments, max_query_len=5, max_kv_len=64, scale=1.0, causal=True, num_splits=2
        )


def test_splits_fill_the_gpu_but_do_not_outnumber_the_key_tiles() -> None:
    settings = LaunchSettings(64, 64, 4, 3, programs_per_sm=2)

    def splits(batch: int, max_kv_len: int, window: int | None = None) -> int:
        shape = (batch, 16, 32, 8, 128, 2, max_kv_len, window, 132)
        return make_plan(*shape, settings=settings).num_splits

    assert splits(1, 40960) == 32
    assert splits(8, 40960) == 4
    assert splits(64, 40960) == 1
    assert splits(1, 100) == 2
    assert splits(1, 40960, window=100) == 2


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128, 256, 512])
@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 16])
@pytest.mark.parametrize("width", [1, 8, 16, 2048])
def test_every_shape_has_settings_that_fit(
    width: int, group: int, head_dim: int, itemsize: int
) -> None:
    """Tiles hold a whole group; 227 KiB of shared memory hold the query and the K/V stages."""
    settings = planning.launch_settings(head_dim, width * group, group, itemsize)
    assert settings.block_m >= group
    tiles = settings.block_m + 2 * settings.num_stages * settings.block_n
    assert itemsize * head_dim * tiles <= 227 * 1024


def test_workspace_size_matches_the_launch(device: torch.device) -> None:
    case = Case(settings=None, num_splits=None)
    inputs = make_inputs(case, device)
    bounds = {"max_query_len": 5, "max_kv_len": 64}
    numel = workspace_size(inputs.query, 2, 3, **bounds)
    assert numel > 0
    workspace = torch.empty(numel, device=device)
    paged_attention(*inputs.tensors(), **bounds, scale=1.0, causal=True, workspace=workspace)
    with pytest.raises(ValueError, match="this launch needs"):
        paged_attention(
            *inputs.tensors(), **bounds, scale=1.0, causal=True, workspace=workspace[:-1]
        )
