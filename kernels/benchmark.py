"""Correctness and speed of the small kernels on a GPU: ``python -m kernels.benchmark``.

First every kernel against its reference, in bf16 at the shapes of Qwen3-8B and Gemma 4 26B-A4B.
Then the median time of one call among many in a CUDA graph, for several row counts, beside the
time that the bytes alone take at 4.3 TB/s. Small inputs stay in the L2 cache from call to call, as
they do in a model, where the kernel before has just written them: those may beat their floor.

Without a GPU, under ``TRITON_INTERPRET=1``, only correctness is checked, in float32 and one row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from kernels.accept import reference as accept_reference
from kernels.accept import triton as accept_triton
from kernels.accept.state import SlotState
from kernels.gated_activation import reference as activation_reference
from kernels.gated_activation import triton as activation_triton
from kernels.qk_norm_rope import reference as rope_reference
from kernels.qk_norm_rope import triton as rope_triton
from kernels.rms_norm import reference as norm_reference
from kernels.rms_norm import triton as norm_triton
from kernels.sampling import reference as sampling_reference
from kernels.sampling import triton as sampling_triton
from kernels.sampling.params import SlotParams

ROWS = (1, 16, 64, 128, 256, 512, 1024)
BYTES_PER_MICROSECOND = 4.3e6
CALLS_PER_GRAPH, REPLAYS = 20, 15
PAGE_SIZE, WIDTH, EPS = 64, 16, 1e-6
QWEN_VOCAB, GEMMA_VOCAB = 151936, 262144


@dataclass(frozen=True)
class Case:
    """One call on fixed inputs. ``ours`` and ``theirs`` return what must agree; ``bytes``: read
    and written at least."""

    name: str
    bytes: int
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]


@dataclass(frozen=True)
class Place:
    """Where and in which type the inputs are made."""

    device: torch.device
    dtype: torch.dtype

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers."""
        return (torch.randn(shape, device=self.device) * scale).to(self.dtype)

    def integers(self, *shape: int, below: int) -> Tensor:
        """int64 in [0, below)."""
        return torch.randint(below, shape, device=self.device)

    def full(self, *shape: int, value: float, dtype: torch.dtype = torch.int64) -> Tensor:
        """One value everywhere."""
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def size(self, *shape: int) -> int:
        """Bytes of a tensor."""
        return torch.Size(shape).numel() * self.dtype.itemsize


def cases(rows: int, place: Place) -> Iterator[Case]:
    """Every call that is checked and timed, for one number of rows."""
    yield from norm_cases(rows, place)
    for name, heads, kv_heads, head_dim in (
        ("qwen3-8b", 32, 8, 128),
        ("gemma4 local", 16, 8, 256),
        ("gemma4 global", 16, 2, 512),
    ):
        yield rope_case(name, rows, heads, kv_heads, head_dim, place)
    yield context_case(rows, place)
    yield from activation_cases(rows, place)
    yield from sampling_cases(rows, place)
    yield accept_case(rows, place)


def norm_cases(rows: int, place: Place) -> Iterator[Case]:
    """Hidden size 4096."""
    x, residual, weight = (place.random(*s, 4096) for s in ((rows,), (rows,), ()))
    out, total = torch.empty_like(x), torch.empty_like(x)
    yield Case(
        "rms_norm 4096",
        place.size(2 * rows + 1, 4096),
        lambda: norm_triton.rms_norm(x, weight, EPS, out=out),
        lambda: norm_reference.rms_norm(x, weight, EPS),
    )
    yield Case(
        "add_rms_norm 4096",
        place.size(4 * rows + 1, 4096),
        lambda: norm_triton.add_rms_norm(x, residual, weight, EPS, out=out, residual_out=total)[0],
        lambda: norm_reference.add_rms_norm(x, residual, weight, EPS)[0],
    )


def _tables(head_dim: int, place: Place) -> tuple[Tensor, Tensor]:
    angles = torch.rand(4096, head_dim // 2, device=place.device) * 6.28
    return angles.cos(), angles.sin()


def rope_case(name: str, rows: int, heads: int, kv_heads: int, head_dim: int, place: Place) -> Case:
    """What agrees is queries, keys and values in a row."""
    qkv = place.random(rows, (heads + 2 * kv_heads) * head_dim)
    positions = place.integers(rows, below=4096)
    slots = torch.randperm(rows, device=place.device) + PAGE_SIZE
    cos, sin = _tables(head_dim, place)
    pages = -(-rows // PAGE_SIZE) + 1
    cache = torch.zeros(
        2, pages, PAGE_SIZE, kv_heads, head_dim, dtype=place.dtype, device=place.device
    )
    q_weight, k_weight = place.random(2, head_dim)
    out = torch.empty(rows, heads, head_dim, dtype=place.dtype, device=place.device)

    def run(op: Callable[..., Tensor], out: Tensor | None) -> Tensor:
        return op(
            qkv, positions, slots, cos, sin, cache[0], cache[1],
            q_weight=q_weight, k_weight=k_weight, eps=EPS, out=out,
        )  # fmt: skip

    def everything(op: Callable[..., Tensor]) -> Tensor:
        cache.zero_()
        return torch.cat([run(op, None).flatten(), cache.flatten()])

    moved = 2 * place.size(rows, heads + 2 * kv_heads, head_dim) + rows * head_dim * 4
    case = Case(
        f"qk_norm_rope {name}",
        moved,
        lambda: everything(rope_triton.qk_norm_rope),
        lambda: everything(rope_reference.qk_norm_rope),
    )
    return Timed(**vars(case), timed=lambda: run(rope_triton.qk_norm_rope, out))


@dataclass(frozen=True)
class Timed(Case):
    """A case of which only ``timed`` is timed."""

    timed: Callable[[], object]


def context_case(rows: int, place: Place, layers: int = 5, kv_heads: int = 8) -> Case:
    """Qwen3-8B's drafter; nothing is rejected."""
    head_dim = 128
    kv = place.random(rows, layers, 2, kv_heads, head_dim)
    positions = place.integers(rows, below=4096)
    slots = torch.randperm(rows, device=place.device) + PAGE_SIZE
    cos, sin = _tables(head_dim, place)
    shape = (2, layers, -(-rows // PAGE_SIZE) + 1, PAGE_SIZE, kv_heads, head_dim)
    caches = torch.zeros(shape, dtype=place.dtype, device=place.device)
    weights = place.random(layers, head_dim)
    counts = place.full(-(-rows // WIDTH), value=WIDTH)

    def run(op: Callable[..., None]) -> Tensor:
        op(
            kv, positions, slots, cos, sin, caches[0], caches[1],
            k_weights=weights, counts=counts, eps=EPS,
        )  # fmt: skip
        return caches

    return Case(
        "write_context 5 layers",
        2 * place.size(rows, layers, 2, kv_heads, head_dim) + rows * head_dim * 4,
        lambda: run(rope_triton.write_context),
        lambda: run(rope_reference.write_context),
    )


def activation_cases(rows: int, place: Place) -> Iterator[Case]:
    """The dense feed-forward sizes."""
    for name, size, op in (
        ("silu_and_mul 12288", 12288, "silu_and_mul"),
        ("gelu_tanh_and_mul 2112", 2112, "gelu_tanh_and_mul"),
    ):
        gate_up = place.random(rows, 2 * size, scale=3)
        out = torch.empty(rows, size, dtype=place.dtype, device=place.device)
        ours = getattr(activation_triton, op)
        theirs = getattr(activation_reference, op)
        yield Case(
            name,
            place.size(rows, 3 * size),
            lambda ours=ours, x=gate_up, out=out: ours(x, out=out),  # type: ignore[misc]
            lambda theirs=theirs, x=gate_up: theirs(x),  # type: ignore[misc]
        )


def sampling_cases(rows: int, place: Place) -> Iterator[Case]:
    """Peaked logits, as of a trained model: a few candidates far above the rest."""
    for vocab_size in (QWEN_VOCAB, GEMMA_VOCAB):
        logits = peaked_logits(rows, vocab_size, place)
        yield Case(
            f"argmax {vocab_size}",
            place.size(rows, vocab_size),
            lambda x=logits: sampling_triton.argmax(x),  # type: ignore[misc]
            lambda x=logits: sampling_reference.argmax(x),  # type: ignore[misc]
        )
    logits = peaked_logits(rows, QWEN_VOCAB, place)
    flat = place.random(rows, QWEN_VOCAB)
    width = min(rows, WIDTH)
    for name, state, x in (
        ("whole vocabulary", params(rows // width, place), logits),
        ("top_k 20, top_p 0.95", params(rows // width, place, top_k=20, top_p=0.95), logits),
        ("top_p 0.95", params(rows // width, place, top_p=0.95), logits),
        ("top_p 0.95, flat", params(rows // width, place, top_p=0.95), flat),
        ("top_p 0.95, penalties", penalties(rows // width, place), logits),
    ):
        yield sampling_case(f"sample {name}", x, width, state, place)


def sampling_case(name: str, logits: Tensor, width: int, state: SlotParams, place: Place) -> Case:
    """``width`` rows for each slot."""
    requests = len(logits) // width
    block = place.integers(requests, width, below=1000)
    slots = torch.arange(requests, device=place.device)
    return Case(
        name,
        place.size(*logits.shape),
        lambda: sampling_triton.sample(logits, block, slots, state),
        lambda: sampling_reference.sample(logits, block, slots, state),
    )


def peaked_logits(rows: int, vocab_size: int, place: Place) -> Tensor:
    """Most of the mass on some dozens of tokens."""
    logits = place.random(rows, vocab_size, scale=1.5)
    peaks = place.integers(rows, 40, below=vocab_size)
    heights = 14 - 6 * torch.rand(rows, 40, device=place.device)
    return logits.scatter_(1, peaks, heights.to(place.dtype))


def params(slots: int, place: Place, top_k: int = 0, top_p: float | None = None) -> SlotParams:
    """Temperature 0.6; without top_p, no cutoffs."""
    state = SlotParams(
        seq_len=place.integers(slots, below=4096),
        num_output=place.full(slots, value=5),
        temperature=place.full(slots, value=0.6, dtype=torch.float32),
        seeds=place.integers(slots, below=2**62),
    )
    if top_p is None:
        return state
    return state._replace(
        top_k=place.full(slots, value=top_k),
        top_p=place.full(slots, value=top_p, dtype=torch.float32),
        min_p=place.full(slots, value=0, dtype=torch.float32),
    )


def penalties(slots: int, place: Place) -> SlotParams:
    """Counts, prompt mask, bias and min_tokens too: everything that can be switched on."""
    shape = (slots, QWEN_VOCAB)

    def numbers(value: float) -> Tensor:
        return place.full(slots, value=value, dtype=torch.float32)

    return params(slots, place, top_p=0.95)._replace(
        repetition_penalty=numbers(1.1),
        frequency_penalty=numbers(0.1),
        presence_penalty=numbers(0.1),
        output_counts=place.integers(*shape, below=50).clamp(min=47).sub(47).int(),
        in_prompt=place.integers(*shape, below=50) == 0,
        logit_bias=place.full(*shape, value=0.5, dtype=torch.float32),
        has_logit_bias=place.full(slots, value=True, dtype=torch.bool),
        min_output=place.full(slots, value=8),
        stop_ids=place.full(slots, 64, value=7),
    )


def accept_case(rows: int, place: Place) -> Case:
    """One request per 16 rows. Its state moves on from call to call, and is put back to check."""
    width = min(rows, WIDTH)
    requests = rows // width
    sampled = place.integers(requests, width, below=1000)
    block = sampled.roll(1, dims=1)
    block[:, -1] += 1
    slots = torch.arange(requests, device=place.device)
    state = SlotState(
        seq_len=place.full(requests, value=100),
        num_output=place.full(requests, value=1),
        max_output=place.full(requests, value=2**40),
        bonus=place.full(requests, value=7),
        stop_ids=place.full(requests, 64, value=-1),
        done=place.full(requests, value=False, dtype=torch.bool),
    )
    out = place.full(requests, width + 2, value=0)

    def run(op: Callable[..., Tensor]) -> Tensor:
        state.seq_len.fill_(100)
        result = op(block, sampled, slots, state)
        return torch.cat([result, state.seq_len[:, None], state.bonus[:, None]], dim=1)

    case = Case(
        "accept",
        requests * (3 * width + 64 + 10) * 8,
        lambda: run(accept_triton.accept),
        lambda: run(accept_reference.accept),
    )
    return Timed(
        **vars(case), timed=lambda: accept_triton.accept(block, sampled, slots, state, out=out)
    )


def check(case: Case, rows: int) -> None:
    """Print what differs by more than two roundings, or which share of the tokens does."""
    ours, theirs = case.ours().clone(), case.theirs().clone()
    if ours.dtype == torch.int64:
        wrong = (ours != theirs).float().mean().item()
    else:
        eps = torch.finfo(ours.dtype).eps
        close = torch.isclose(ours.float(), theirs.float(), rtol=4 * eps, atol=max(4 * eps, 1e-5))
        wrong = (~close).float().mean().item()
    verdict = "ok" if wrong == 0 else f"DIFFERS in {wrong:.2e}"
    print(f"{case.name:32s} {rows:5d} rows  {verdict}")


def microseconds(call: Callable[[], object]) -> float:
    """Median time of one call in a graph of many. Raises if the call synchronises."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_PER_GRAPH):
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / CALLS_PER_GRAPH)
    return median(times)


def main() -> None:
    """Check, then time."""
    gpu = torch.cuda.is_available()
    place = Place(torch.device("cuda" if gpu else "cpu"), torch.bfloat16 if gpu else torch.float32)
    torch.manual_seed(0)
    for rows in (1, 16, 128) if gpu else (1,):
        for case in cases(rows, place):
            check(case, rows)
    if gpu:
        print_times(place)


def print_times(place: Place) -> None:
    """One line per kernel: microseconds (and floor) for each number of rows."""
    table: dict[str, list[str]] = {}
    for rows in ROWS:
        for case in cases(rows, place):
            timed = case.timed if isinstance(case, Timed) else case.ours
            floor = case.bytes / BYTES_PER_MICROSECOND
            cell = f"{microseconds(timed):.1f} ({floor:.1f})"
            table.setdefault(case.name, []).append(cell)
    print("\nmicroseconds per call (floor)")
    print(f"{'rows':32s}" + "".join(f"{rows:>16d}" for rows in ROWS))
    for name, cells in table.items():
        print(f"{name:32s}" + "".join(f"{cell:>16s}" for cell in cells))


if __name__ == "__main__":
    main()
