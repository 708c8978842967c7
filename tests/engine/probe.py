"""Drives an EngineCore to the end, checking after every step, and records what the models saw."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor

from engine.core import EngineCore
from engine.messages import Output, SamplingParams, Submit
from engine.request import Request


def submit(request_id: str, prompt: Iterable[int], **params: Any) -> Submit:
    """A greedy request that ignores EOS, unless ``params`` say otherwise."""
    defaults = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    return Submit(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        params=SamplingParams(**{**defaults, **params}),
    )


@dataclass
class Run:
    """Everything that came out: per request its tokens, outputs and reason to finish."""

    tokens: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[str, list[Output]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, output: Output) -> None:
        assert output.error is None, output
        assert output.request_id not in self.reasons, "an output after the last"
        self.outputs[output.request_id].append(output)
        self.tokens[output.request_id] += output.token_ids
        if output.finish_reason:
            self.reasons[output.request_id] = output.finish_reason


def drive(core: EngineCore, submits: Iterable[Submit], *, stagger: int = 0) -> Run:
    """Run requests to their ends, one joining every ``stagger`` steps (0: all at once)."""
    run, waiting, steps = Run(), list(submits), 0
    while waiting or core.has_work:
        while waiting and steps % max(stagger, 1) == 0:
            assert core.submit(waiting.pop(0)) is None
            if stagger:
                break
        for output in core.step():
            run.add(output)
        core.scheduler.check_integrity()
        steps += 1
        assert steps < 5000, "the engine makes no progress"
    stats = core.stats()
    assert stats.num_free_kv_pages + stats.num_cached_kv_pages == stats.num_kv_pages, "pages leak"
    return run


@dataclass
class DraftStep:
    """One pass of the drafter for one request: K + 1 rows over ``committed`` tokens."""

    request_id: str
    committed: list[int]
    bonus: int
    logits: Tensor


class Probe:
    """Records the target's logits and features by request and position, and all draft blocks."""

    def __init__(self, core: EngineCore) -> None:
        self.runner = core.runner
        self.logits: dict[str, dict[int, Tensor]] = defaultdict(dict)
        self.features: dict[str, dict[int, Tensor]] = defaultdict(dict)
        self.drafts: list[DraftStep] = []
        self.current: list[Request] = []
        prefill, step = self.runner.prefill, self.runner.step
        self._wrap("prefill", prefill, lambda chunks: [chunk.request for chunk in chunks])
        self._wrap("step", step, lambda requests: requests)
        self.runner.target.model.register_forward_hook(self._on_target)
        if self.runner.drafter is not None:
            self.runner.drafter.model.register_forward_hook(self._on_drafter)

    def _wrap(
        self, name: str, inner: Callable[..., Any], requests: Callable[[Any], list[Request]]
    ) -> None:
        def outer(batch: Any, *rest: Any) -> Any:
            self.current = requests(batch)
            return inner(batch, *rest)

        setattr(self.runner, name, outer)

    def _rows(self, context: Any) -> Iterable[tuple[Request, slice, list[int]]]:
        starts = context.batch.query_start.tolist()
        for request, (start, end) in zip(self.current, pairwise(starts), strict=True):
            yield request, slice(start, end), context.batch.positions[start:end].tolist()

    def _on_target(self, model: Any, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        hidden, features = output
        logits = model.logits(hidden)
        for request, rows, positions in self._rows(args[1]):
            self.logits[request.request_id].update(zip(positions, logits[rows], strict=True))
            if features is not None:
                kept = zip(positions, features[rows], strict=True)
                self.features[request.request_id].update(kept)

    def _on_drafter(self, _model: Any, args: tuple[Any, ...], hidden: Tensor) -> None:
        logits = self.runner.target.model.logits(hidden)
        for request, rows, positions in self._rows(args[1]):
            known = request.token_ids.copy()
            assert positions[0] == len(known) - 1, "the block starts at the bonus"
            step = DraftStep(request.request_id, known[:-1], known[-1], logits[rows].clone())
            self.drafts.append(step)


class Steering:
    """Replaces drafts by the tokens of a plain run, some of them spoilt: any acceptance happens.

    The drafter runs all the same. ``any_width`` proposes another number of drafts in each step.
    ``right`` counts how often how many drafts were right.
    """

    def __init__(
        self, core: EngineCore, truth: dict[str, list[int]], seed: int, any_width: bool = False
    ) -> None:
        self.truth = truth
        self.any_width = any_width
        self.random = Random(seed)
        self.right: dict[int, int] = defaultdict(int)
        self._current: list[Request] = []
        self._vocab_size = core.runner.vocab_size
        self._step, self._propose = core.runner.step, core.runner._propose
        setattr(core.runner, "step", self.step)  # noqa: B010 (mypy: a method)
        setattr(core.runner, "_propose", self.propose)  # noqa: B010

    def step(self, requests: list[Request], num_drafts: int) -> Any:
        self._current = requests
        width = self.random.randint(0, num_drafts) if self.any_width else num_drafts
        return self._step(requests, width)

    def propose(self, slots: Tensor, batch: Any, num_drafts: int) -> Tensor:
        block = self._propose(slots, batch, num_drafts)
        rows = zip(self._current, block.tolist(), strict=True)
        return torch.tensor([self._steer(request, row) for request, row in rows])

    def _steer(self, request: Request, row: list[int]) -> list[int]:
        width = len(row) - 1
        truth = self.truth[request.request_id][request.num_output_tokens :]
        right = self.random.choice([0, width, self.random.randint(0, width)])
        drafts = truth[: min(right, len(truth))]
        self.right[len(drafts)] += 1
        if len(drafts) < min(width, len(truth)):
            drafts.append((truth[len(drafts)] + 1) % self._vocab_size)
        return [row[0], *(drafts + row[1 + len(drafts) :])]
