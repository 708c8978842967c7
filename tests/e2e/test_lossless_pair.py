"""The promise: with speculation, output equals plain output, token for token.

Over the bundled pair in fp32. Every test compares with the same reference: each request alone,
decoded plainly, its prompt computed in one chunk.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.config import DrafterConfig, EngineConfig, EngineTable, TargetConfig
from engine.core import EngineCore
from engine.messages import Output, SamplingParams, Submit
from server.chat_template import load_chat_template
from server.protocol import Message
from server.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]
MAX_TOKENS = 40
NUM_PROMPTS = 104

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 0.8, "min_p": 0.05},
    {"temperature": 0.8, "repetition_penalty": 1.2, "top_p": 0.95},
    {"temperature": 0.8, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"temperature": 0.8, "logit_bias": {300: 4.0, 301: -100.0, 302: 2.0}, "top_k": 50},
    {"temperature": 0.0, "frequency_penalty": 0.5, "logit_bias": {310: 3.0}},
    {
        "temperature": 0.8, "top_p": 0.9, "top_k": 30, "min_p": 0.02, "repetition_penalty": 1.1,
        "frequency_penalty": 0.2, "presence_penalty": 0.2, "logit_bias": {320: 2.0, 321: -3.0},
    },
    {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "presence_penalty": 0.2},
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    params: SamplingParams


@pytest.fixture(scope="module")
def prompts(demo_prompts: list[dict[str, Any]]) -> list[list[int]]:
    template = load_chat_template(ROOT / "demo/target")
    tokenizer = load_tokenizer(ROOT / "demo/target")
    assert template is not None
    chats = [[Message.model_validate(m) for m in p["messages"]] for p in demo_prompts]
    # From the whole file, so that trained, held-out and off-topic prompts are among them.
    chosen = [chats[i * len(chats) // NUM_PROMPTS] for i in range(NUM_PROMPTS)]
    return [tokenizer.encode(template.render(chat)) for chat in chosen]


@pytest.fixture(scope="module")
def greedy(prompts: list[list[int]]) -> list[Case]:
    return [Case(p, SamplingParams(temperature=0, max_tokens=MAX_TOKENS)) for p in prompts]


@pytest.fixture(scope="module")
def mixed(prompts: list[list[int]]) -> list[Case]:
    """Every kind of sampling, with different lengths, so that requests join and leave."""
    return [
        Case(
            prompt,
            SamplingParams(
                seed=1000 + i,
                max_tokens=MAX_TOKENS - 7 * (i % 4),
                min_tokens=12 if i % 5 == 0 else 0,
                ignore_eos=i % 7 == 0,
                **KINDS[i % len(KINDS)],
            ),
        )
        for i, prompt in enumerate(prompts)
    ]


@contextmanager
def engine(*, speculate: bool, **options: Any) -> Iterator[EngineCore]:
    """An engine over the bundled pair; afterwards every page must be free or cached."""
    width = {"num_draft_tokens": 15} if speculate else {}
    table = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "page_size": 16, **width, **options}
    core = EngineCore(
        EngineConfig(
            target=TargetConfig(model=str(ROOT / "demo/target")),
            drafter=DrafterConfig(model=str(ROOT / "demo/drafter")) if speculate else None,
            engine=EngineTable(
                **{"device": "cpu", "max_model_len": 1024, "kv_cache_gib": 0.2, **table}
            ),
        )
    )
    yield core
    core.scheduler.check_integrity()
    stats = core.stats()
    assert stats.num_free_kv_pages + stats.num_cached_kv_pages == stats.num_kv_pages


def run(core: EngineCore, cases: list[Case]) -> tuple[list[list[int]], list[Output]]:
    """Tokens of each case, and every output."""
    tokens: list[list[int]] = [[] for _ in cases]
    outputs: list[Output] = []
    for i, case in enumerate(cases):
        submit = Submit(request_id=str(i), prompt_token_ids=case.prompt, params=case.params)
        assert core.submit(submit) is None
    while core.has_work:
        for output in core.step():
            tokens[int(output.request_id)] += output.token_ids
            outputs.append(output)
    return tokens, outputs


def acceptance_length(outputs: list[Output]) -> float:
    steps = [len(o.token_ids) for o in outputs if o.num_draft_tokens]
    return sum(steps) / len(steps)


def alone(cases: list[Case]) -> list[list[int]]:
    with engine(speculate=False, max_num_seqs=1, prefix_caching=False) as core:
        return run(core, cases)[0]


@pytest.fixture(scope="module")
def greedy_reference(greedy: list[Case]) -> list[list[int]]:
    return alone(greedy)


@pytest.fixture(scope="module")
def mixed_reference(mixed: list[Case]) -> list[list[int]]:
    return alone(mixed)


def test_speculation_alone_greedy(greedy: list[Case], greedy_reference: list[list[int]]) -> None:
    with engine(speculate=True, max_num_seqs=1, prefix_caching=False) as core:
        tokens, outputs = run(core, greedy)
    assert tokens == greedy_reference
    # Not vacuous: drafts were accepted, and drafts were rejected.
    assert 1.5 < acceptance_length(outputs) < 16


def test_speculation_alone_mixed(mixed: list[Case], mixed_reference: list[list[int]]) -> None:
    with engine(speculate=True, max_num_seqs=1, prefix_caching=False) as core:
        assert run(core, mixed)[0] == mixed_reference


@pytest.mark.parametrize("speculate", [True, False])
def test_batch_of_mixed_kinds(
    mixed: list[Case], mixed_reference: list[list[int]], speculate: bool
) -> None:
    with engine(speculate=speculate) as core:
        assert run(core, mixed)[0] == mixed_reference


def test_batch_of_greedy(greedy: list[Case], greedy_reference: list[list[int]]) -> None:
    with engine(speculate=True) as core:
        assert run(core, greedy)[0] == greedy_reference


@dataclass(frozen=True)
class Expected:
    """Cases and their reference."""

    cases: list[Case]
    tokens: list[list[int]]

    def only(self, keep: Callable[[Case], bool]) -> "Expected":
        kept = [i for i, case in enumerate(self.cases) if keep(case)]
        return Expected([self.cases[i] for i in kept], [self.tokens[i] for i in kept])


@pytest.fixture(scope="module")
def everything(
    greedy: list[Case],
    greedy_reference: list[list[int]],
    mixed: list[Case],
    mixed_reference: list[list[int]],
) -> Expected:
    """Every prompt, greedily and sampled."""
    return Expected(greedy + mixed, greedy_reference + mixed_reference)


@pytest.mark.parametrize("budget", [137, 200])
def test_chunk_sizes(everything: Expected, budget: int) -> None:
    """Eight draft blocks leave 9 or 72 tokens of the budget for prompts."""
    with engine(speculate=True, max_num_batched_tokens=budget) as core:
        assert run(core, everything.cases)[0] == everything.tokens


def test_preemption(everything: Expected) -> None:
    """Room for two or three requests where eight want to run."""
    short = everything.only(lambda case: len(case.prompt) < 200)
    assert len(short.cases) > 150
    with engine(speculate=True) as probe:
        bytes_per_page = 0.2 * 2**30 / probe.runner.num_pages
    gib = 20 * bytes_per_page / 2**30
    with engine(speculate=True, max_model_len=256, kv_cache_gib=gib) as core:
        assert run(core, short.cases)[0] == short.tokens
        assert core.stats().num_preemptions > 20


@pytest.mark.parametrize("num_draft_tokens", ["auto", 1, 6])
def test_other_widths(
    mixed: list[Case], mixed_reference: list[list[int]], num_draft_tokens: int | str
) -> None:
    with engine(speculate=True, num_draft_tokens=num_draft_tokens) as core:
        assert run(core, mixed)[0] == mixed_reference


def test_prefix_hits(everything: Expected) -> None:
    """The second pass finds its prompts' pages, the drafter's context included."""
    with engine(speculate=True, kv_cache_gib=0.4) as core:
        first, cold = run(core, everything.cases)
        hits = core.stats().prefix_cache_hits
        second, warm = run(core, everything.cases)
        assert core.stats().prefix_cache_hits - hits >= 16 * len(everything.cases)
    assert first == second == everything.tokens
    # A drafter without its context would still be lossless, but accept next to nothing.
    assert acceptance_length(warm) == pytest.approx(acceptance_length(cold), rel=0.02)
