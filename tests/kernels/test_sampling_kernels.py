"""Sampling kernels against the reference, ``engine.sampling`` and ``engine.noise``."""

from random import Random
from typing import Any

import pytest
import torch
import triton as triton_language
import triton.language as tl
from torch import Tensor

from engine import noise
from engine.messages import SamplingParams, Submit
from engine.request import Request
from engine.sampling import SamplingRows
from engine.sampling import sample as engine_sample
from engine.slots import SlotTable
from kernels.sampling import reference, triton
from kernels.sampling.noise import gumbel_of_range, gumbel_of_tokens, uniform_of_tokens
from kernels.sampling.params import SlotParams

DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()
CPU = torch.device("cpu")
CUTOFFS = ("top_k", "top_p", "min_p")
PENALTIES = (
    "repetition_penalty", "frequency_penalty", "presence_penalty", "output_counts", "in_prompt"
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings(
    "ignore:(invalid value|overflow|divide by zero):RuntimeWarning"
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny vocabularies then have several chunks, splits, and too many candidates."""
    # Compiled, a chunk has at least one token per thread.
    monkeypatch.setattr(triton, "_BLOCK", 256 if torch.cuda.is_available() else 64)
    monkeypatch.setattr(triton, "_PROGRAMS", 24)
    monkeypatch.setattr(triton, "_DRAW_BLOCK", 64)
    monkeypatch.setattr(triton, "_CAPACITY", 70)
    torch.manual_seed(0)


@triton_language.jit
def _noise_kernel(out_ptr, seed_ptr, position_ptr, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
    """Rows of out ``[3, R, BLOCK]``: noise by range, noise by token, uniform by token."""
    row = tl.program_id(0)
    seed, position = tl.load(seed_ptr + row), tl.load(position_ptr + row)
    tokens = tl.arange(0, BLOCK)
    out_ptr += row * BLOCK + tokens
    plane = tl.num_programs(0) * BLOCK
    tl.store(out_ptr, gumbel_of_range(seed, position, 0, BLOCK // 4))
    tl.store(out_ptr + plane, gumbel_of_tokens(seed, position, tokens))
    tl.store(out_ptr + 2 * plane, uniform_of_tokens(seed, position, tokens))


def test_noise_is_the_engines(device: torch.device) -> None:
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789012345], device=device)
    positions = torch.tensor([0, 1, 2**31, 2**32 - 1, 77, 40959], device=device)
    block = 2048
    out = torch.empty(3, len(seeds), block, device=device)
    _noise_kernel[(len(seeds),)](out, seeds, positions, BLOCK=block)
    expected = noise.gumbel(seeds, positions, block)
    assert torch.equal(out[2], noise._uniform(seeds, positions, block // 4))
    # The difference of two logarithms' last places.
    for ours in out[:2]:
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=3e-7)
    assert torch.equal(reference.gumbel(seeds, positions, block), expected)


def test_noise_at_the_ends() -> None:
    """The kernel's log1p has float32's precision where the noise is largest and smallest."""
    words = torch.tensor([0, 1, 2, 1000, 2**24, 2**31, 2**32 - 300, 2**32 - 1])
    uniform = (words.clamp(max=2**32 - 256).float() + 0.5) * 2.0**-32
    w = 1 - uniform
    ours = torch.where(w == 1, uniform, -w.log() * uniform / (1 - w).clamp(min=1e-30))
    exact = -torch.log1p(-uniform.double())
    torch.testing.assert_close(ours.double(), exact, rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "vocab_size"), [(1, 1000), (7, 301), (30, 64), (2, 5)])
def test_argmax(rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
    logits = torch.randn(rows, vocab_size, device=device).to(dtype)
    out = torch.empty(rows, dtype=torch.int64, device=device)
    assert triton.argmax(logits, out=out) is out
    assert torch.equal(out, reference.argmax(logits))


def test_argmax_of_ties_and_infinities(device: torch.device) -> None:
    logits = torch.full((6, 301), -torch.inf, device=device)
    logits[0, 299] = -1e30
    logits[1, [130, 131, 70]] = 2.0
    logits[2] = 0.0
    logits[3, [0, 300]] = torch.inf
    logits[5, [64, 300]] = -0.0
    assert triton.argmax(logits).tolist() == [299, 70, 0, 0, 0, 64]
    assert triton.argmax(logits).tolist() == reference.argmax(logits).tolist()


def test_argmax_of_strided_rows(device: torch.device) -> None:
    logits = torch.randn(4, 3, 200, device=device)[:, 1, :150]
    assert torch.equal(triton.argmax(logits), logits.argmax(-1))


class Batch:
    """Requests on slots of a table, as the engine fills it, and their draft blocks ``[B, W]``."""

    def __init__(self, width: int, vocab_size: int, device: torch.device) -> None:
        self.table = SlotTable(9, 1, vocab_size, device)
        # What requests that were there before may have left.
        self.table.logit_bias.normal_()
        self.table.output_counts.random_(0, 3)
        self.table.in_prompt.random_(0, 2)
        self.width, self.device = width, device
        self.blocks: list[list[int]] = []
        self.params: list[SamplingParams] = []

    def add(
        self, params: SamplingParams, prompt: list[int], output: list[int], drafts: list[int]
    ) -> None:
        message = Submit(
            request_id="x", prompt_token_ids=prompt, params=params, output_token_ids=output
        )
        request = Request.from_submit(message)
        request.slot, request.arrival = 8 - len(self.blocks), len(self.blocks)
        self.table.update(request, [5])
        self.table.seq_len[request.slot] = len(request.token_ids) - 1
        self.blocks.append([request.token_ids[-1], *drafts])
        self.params.append(params)

    @property
    def slots(self) -> list[int]:
        return [8 - i for i in range(len(self.blocks))]

    def state(self, softcap: float | None = None) -> SlotParams:
        """Groups that no request needs are left out, as the launcher of a step would."""
        has_bias = torch.zeros(9, dtype=torch.bool, device=self.device)
        for slot, params in zip(self.slots, self.params, strict=True):
            has_bias[slot] = bool(params.logit_bias)
        groups: list[tuple[bool, tuple[str, ...]]] = [
            (any(p.top_k or p.top_p < 1 or p.min_p for p in self.params), CUTOFFS),
            (any(p.repetition_penalty != 1 or p.frequency_penalty or p.presence_penalty
                 for p in self.params), PENALTIES),
            (any(p.logit_bias for p in self.params), ("logit_bias",)),
            (any(p.min_tokens for p in self.params), ("min_output", "stop_ids")),
        ]  # fmt: skip
        names = {name for needed, names in groups if needed for name in names}
        names |= {"seq_len", "num_output", "temperature", "seeds"}
        fields: dict[str, Any] = {name: getattr(self.table, name) for name in names}
        if "logit_bias" in names:
            fields["has_logit_bias"] = has_bias
        return SlotParams(**fields, softcap=softcap)

    def sample(self, logits: Tensor, op: Any = triton.sample, **options: Any) -> list[list[int]]:
        block = torch.tensor(self.blocks, device=self.device)
        slots = torch.tensor(self.slots, device=self.device)
        tokens: Tensor = op(logits, block, slots, self.state(**options))
        return tokens.tolist()

    def expected(self, logits: Tensor) -> list[list[int]]:
        block = torch.tensor(self.blocks, device=self.device)
        rows = SamplingRows(self.slots, self.table)
        return engine_sample(logits.unflatten(0, block.shape), block, rows).tolist()


def random_params(random: Random, vocab_size: int) -> SamplingParams:
    def pick(*values: Any) -> Any:
        return random.choice(values)

    bias = {random.randrange(vocab_size): random.uniform(-8, 8) for _ in range(4)}
    return SamplingParams(
        max_tokens=99,
        seed=random.randrange(-(2**63), 2**63),
        temperature=pick(0.0, 0.5, 1.0, 1.0, 2.0),
        top_k=pick(0, 0, 1, 3, 20, vocab_size, 10**9),
        top_p=pick(1.0, 1.0, 0.95, 0.5, 0.01),
        min_p=pick(0.0, 0.0, 0.02, 0.3, 1.0),
        repetition_penalty=pick(1.0, 1.0, 1.7, 0.6),
        frequency_penalty=pick(0.0, 0.0, 1.1, -0.8),
        presence_penalty=pick(0.0, 0.0, 2.0, -1.0),
        logit_bias=pick({}, bias),
        min_tokens=pick(0, 0, 3, 8),
        stop_token_ids=pick((), (0,), (1, 2, 3)),
        ignore_eos=pick(True, False),
    )


@pytest.mark.parametrize("seed", range(7))
def test_equals_the_engine(seed: int, device: torch.device) -> None:
    """Everything at once, with penalties on few kinds of tokens, so that drafts repeat each other
    and what came before."""
    random = Random(seed)
    width, vocab_size = [(1, 200), (3, 133), (2, 64), (4, 23)][seed % 4]
    batch = Batch(width, vocab_size, device)

    def tokens(count: int) -> list[int]:
        return [random.randrange(7) for _ in range(count)]

    for _ in range(4 // width + 1):
        params = random_params(random, vocab_size)
        batch.add(params, tokens(3), tokens(random.randint(0, 9)), tokens(width - 1))
    logits = torch.randn(len(batch.blocks) * width, vocab_size, device=device) * 2.5
    tokens_drawn = batch.sample(logits)
    assert tokens_drawn == batch.expected(logits)
    assert tokens_drawn == batch.sample(logits, reference.sample)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 99, "ignore_eos": True, **fields})


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cutoffs(dtype: torch.dtype, spread: float, device: torch.device) -> None:
    """Peaked and flat rows (more candidates than there is room for), logits of either sign, and
    16-bit logits with many ties."""
    vocab_size = 200
    batch = Batch(1, vocab_size, device)
    for fields in (
        {"top_k": 7}, {"top_k": 500}, {"top_p": 0.9}, {"top_p": 1e-9}, {"top_p": 0.9999},
        {"top_k": 30, "top_p": 0.7}, {"top_k": 90, "top_p": 0.8, "min_p": 0.01}, {"min_p": 0.2},
        {},
    ):  # fmt: skip
        batch.add(params(seed=len(batch.blocks), **fields), [1], [], [])
    logits = (torch.randn(len(batch.blocks), vocab_size, device=device) * spread - 0.5).to(dtype)
    assert batch.sample(logits) == batch.expected(logits)


def drawn_by(fields: dict[str, Any], logits: list[float], device: torch.device) -> list[int]:
    """The distinct tokens that some rows draw from one row of logits."""
    batch = Batch(12, len(logits), device)
    batch.add(params(seed=1, **fields), [0], [], [0] * 11)
    rows = torch.tensor(logits, device=device).half().expand(12, -1).contiguous()
    tokens = batch.sample(rows)
    assert tokens == batch.expected(rows)
    return sorted(set(tokens[0]))


def test_ties_at_the_cutoff_stay(device: torch.device) -> None:
    assert drawn_by({"top_k": 2}, [1.0, 3.0, 2.5, 2.5, 0.0], device) == [1, 2, 3]


def test_top_p_counts_of_ties_what_top_k_has_room_for(device: torch.device) -> None:
    """Two of four equals: the first has half of the mass, so that 0.4 keeps it, and its equals."""
    assert drawn_by({"top_k": 2, "top_p": 0.4}, [1.0, 1.0, 1.0, 1.0], device) == [0, 1, 2, 3]
    logits = [2.0, 1.0, 1.0, 1.0, 1.0]
    # With top_k = 2 the first has 0.73 of the mass, with all four others only 0.40.
    assert drawn_by({"top_k": 2, "top_p": 0.6}, logits, device) == [0]
    assert drawn_by({"top_k": 5, "top_p": 0.6}, logits, device) == [0, 1, 2, 3, 4]


def test_top_p_of_exactly_the_candidates(device: torch.device) -> None:
    """The candidate list is exactly top_k long, but the vocabulary is not."""
    logits = [3.0, 2.0, 1.5] + [0.0] * 40
    assert drawn_by({"top_k": 3, "top_p": 0.6}, logits, device) == [0]


def test_zero_has_one_value(device: torch.device) -> None:
    assert drawn_by({"top_k": 1}, [0.0, -0.0, -5.0], device) == [0, 1]


def test_a_single_token_left(device: torch.device) -> None:
    batch = Batch(1, 100, device)
    for fields in ({}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1, "top_k": 3, "top_p": 0.9}):
        batch.add(params(**fields), [0], [], [])
    logits = torch.full((4, 100), -torch.inf, device=device)
    logits[:, 77] = -12.0
    assert batch.sample(logits) == [[77]] * 4


def test_nothing_left_still_gives_a_token(device: torch.device) -> None:
    batch = Batch(1, 100, device)
    for fields in ({"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}):
        batch.add(params(**fields), [0], [], [])
    tokens = batch.sample(torch.full((4, 100), -torch.inf, device=device))
    assert all(0 <= row[0] < 100 for row in tokens)


def test_result_does_not_depend_on_the_batch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(1, 301, device)
    for fields in ({}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.9}):
        batch.add(params(**fields), [0], [], [])
    logits = torch.randn(3, 301, device=device)
    tokens = []
    for programs in (1, 24, 1000):
        monkeypatch.setattr(triton, "_PROGRAMS", programs)
        tokens.append(batch.sample(logits))
    assert tokens[0] == tokens[1] == tokens[2]


def test_soft_cap(device: torch.device) -> None:
    batch = Batch(2, 133, device)
    for fields in (
        {"temperature": 0.0, "presence_penalty": 1.5}, {"temperature": 0.7}, {"top_p": 0.9}
    ):  # fmt: skip
        batch.add(params(seed=7, **fields), [4, 5], [6, 6], [6])
    logits = torch.randn(6, 133, device=device) * 30
    assert batch.sample(logits, softcap=30.0) == batch.sample(
        logits, reference.sample, softcap=30.0
    )


def test_incomplete_groups_are_refused(device: torch.device) -> None:
    batch = Batch(1, 10, device)
    batch.add(params(), [0], [], [])
    state = batch.state()._replace(top_k=batch.table.top_k)
    block, slots = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="top_k, top_p, min_p"):
        triton.sample(torch.zeros(1, 10), block, slots, state)
