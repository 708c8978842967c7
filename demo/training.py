"""Trains the pair: first both models together, then the drafter alone on the final target."""

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from demo.batches import Batch, epochs
from demo.checkpoint import MASK
from demo.corpus import Corpus
from demo.losses import choose_anchors, masks, pair_losses
from demo.model import Drafter, Shape, Target, initialise
from demo.muon import Muon

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TARGET_SHAPE = Shape(layers=10, intermediate=896)
DRAFTER_SHAPE = Shape(layers=3, intermediate=1536)
TAPS = (1, 3, 5, 7, 8)
BLOCK_SIZE = 16
WARM_UP = 0.03
# The first steps compile kernels; the clock starts after them.
COMPILING = 5


@dataclass(frozen=True)
class Plan:
    """How long and how fast; the run ends at `steps` or `minutes`, whichever comes first.

    `draft_weight` is the draft loss's share beside the target's.
    """

    steps: int = 16_960
    minutes: float = math.inf
    rows: int = 32
    anchors: int = 128
    lr: float = 5e-3
    draft_weight: float = 1.0
    seed: int = 0


def new_pair(vocab_size: int, seed: int) -> tuple[Target, Drafter]:
    target = Target(TARGET_SHAPE, vocab_size)
    drafter = Drafter(DRAFTER_SHAPE, TAPS, BLOCK_SIZE)
    initialise(target, seed)
    initialise(drafter, seed + 1)
    return target.to(DEVICE), drafter.to(DEVICE)


def train(target: Target, drafter: Drafter, corpus: Corpus, plan: Plan, console: Console) -> None:
    """Trains in place all parameters that require a gradient."""
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    optimizers = _optimizers([target, drafter], plan.lr)
    losses: Any = torch.compile(pair_losses) if DEVICE == "cuda" else pair_losses
    batches = epochs(corpus, plan.rows, plan.seed, DEVICE)
    progress = Progress(plan, console)
    for step in itertools.count():
        done = progress.done(step)
        if done >= 1:
            break
        _set_rate(optimizers, _schedule(done))
        lm, draft, accuracy = _forward(losses, target, drafter, next(batches), plan.anchors)
        loss = plan.draft_weight * draft + (lm if lm.requires_grad else 0)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        progress.report(step, lm.detach(), draft.detach(), accuracy)


def _forward(
    losses: Any, target: Target, drafter: Drafter, batch: Batch, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    anchors = choose_anchors(batch, count)
    target_mask, draft_mask = masks(batch, anchors, drafter.block_size)
    with _autocast():
        found = losses(target, drafter, batch, anchors, target_mask, draft_mask, MASK)
    lm, draft, accuracy = found
    return lm, draft, accuracy


@contextmanager
def _autocast() -> Iterator[None]:
    with torch.autocast(DEVICE, torch.bfloat16):
        yield


def _optimizers(models: list[nn.Module], lr: float) -> list[Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    named = [(n, p) for m in models for n, p in m.named_parameters() if p.requires_grad]
    matrices = [p for n, p in named if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in named if p.dim() != 2 or "embed" in n]
    adam = AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=DEVICE == "cuda")
    optimizers: list[Optimizer] = [Muon(matrices, lr), adam]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = lr
    return optimizers


def _schedule(done: float) -> float:
    """Linear warm-up, then linear decay to zero."""
    return min(done / WARM_UP + 0.01, (1 - done) / (1 - WARM_UP), 1.0)


def _set_rate(optimizers: list[Optimizer], factor: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor


class Progress:
    """How much of the plan is done; prints a line for every fiftieth of it."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan, self.console = plan, console
        self.share, self.printed, self.start = 0.0, 0.0, time.perf_counter()

    def done(self, step: int) -> float:
        if step == COMPILING:
            self.start = time.perf_counter()
        minutes = (time.perf_counter() - self.start) / 60 if step > COMPILING else 0.0
        self.share = max(step / self.plan.steps, minutes / self.plan.minutes)
        return self.share

    def report(self, step: int, lm: Tensor, draft: Tensor, accuracy: Tensor) -> None:
        if step and self.share < self.printed + 0.02:
            return
        self.printed = self.share
        expected = 1 + float(accuracy.cumprod(0).sum())
        rate = max(0, step - COMPILING) / (time.perf_counter() - self.start)
        places = " ".join(f"{float(accuracy[k]):.2f}" for k in (0, 3, 7, 14))
        self.console.print(
            f"{self.share:4.0%} step {step} target {float(lm):.4f} draft {float(draft):.4f} "
            f"places 1 4 8 15: {places} length ~{expected:.2f} {rate:.1f} steps/s"
        )


def freeze(model: nn.Module) -> None:
    """Rounds to bf16, as the checkpoint will, and stops training."""
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
        parameter.requires_grad_(False)


def join(first: Corpus, second: Corpus) -> Corpus:
    return Corpus(
        torch.cat((first.tokens, second.tokens)),
        torch.cat((first.answer, second.answer)),
        torch.cat((first.lengths, second.lengths)),
        torch.cat((first.rare, second.rare)),
    )
