"""Speculative decoding at its plainest: no cache, everything recomputed at every step.

It is the yardstick for training. All prompts go in one batch, padded on the right.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from demo.model import Drafter, Target


@dataclass
class Decoded:
    """One prompt's answer (its end token included) and the counts of its steps."""

    tokens: list[int]
    steps: int = 0
    accepted: int = 0


class Decoder:
    """Decodes with a pair; `temperature` 0 is greedy."""

    def __init__(
        self, target: Target, drafter: Drafter, mask_token: int, end_token: int, seed: int = 0
    ) -> None:
        self.target, self.drafter = target, drafter
        self.mask_token, self.end_token, self.seed = mask_token, end_token, seed
        self.device = target.embed_tokens.weight.device

    @torch.no_grad()
    def __call__(
        self, prompts: list[list[int]], max_tokens: int, temperature: float = 0.0
    ) -> list[Decoded]:
        self.temperature = temperature
        size = self.drafter.block_size
        width = max(map(len, prompts)) + max_tokens + size
        tokens = torch.zeros(len(prompts), width, dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt, device=self.device)
        starts = torch.tensor([len(p) for p in prompts], device=self.device)
        sampled, features = self._target(tokens[:, : int(starts.max())], starts - 1, 1)
        tokens.scatter_(1, starts[:, None], sampled)
        return self._steps(tokens, starts, starts.clone(), features, max_tokens)

    def _steps(
        self, tokens: Tensor, starts: Tensor, bonus: Tensor, features: Tensor, max_tokens: int
    ) -> list[Decoded]:
        """`bonus` [B] is the index of each row's bonus; all before it is committed."""
        size = self.drafter.block_size
        done = [Decoded([]) for _ in starts]
        live = torch.arange(len(starts), device=self.device)
        while len(live):
            span = bonus[live, None] + torch.arange(size, device=self.device)
            block = self._draft(tokens[live], bonus[live], features)
            rows = tokens[live].scatter(1, span, block)
            sampled, features = self._target(rows[:, : int(span.max()) + 1], bonus[live], size)
            agree = (sampled[:, :-1] == block[:, 1:]).long().cumprod(1).sum(1)
            # Behind the accepted drafts stands the target's own token: the next bonus.
            tokens[live] = rows.scatter(1, span + 1, sampled)
            bonus[live] += agree + 1
            keep = [self._count(done[i], tokens[i], starts[i], bonus[i], a, max_tokens)
                    for i, a in zip(live.tolist(), agree.tolist(), strict=True)]  # fmt: skip
            kept = torch.tensor(keep, device=self.device)
            live, features = live[kept], features[kept]
        return done

    def _count(
        self, one: Decoded, row: Tensor, start: Tensor, bonus: Tensor, agreed: int, limit: int
    ) -> bool:
        """Books one step; False when the answer is complete."""
        answer: list[int] = row[int(start) : int(bonus) + 1].tolist()
        # The first token came from the prompt: if it ended the answer there was no step.
        ended = self.end_token in answer
        if ended:
            answer = answer[: answer.index(self.end_token) + 1]
        if answer[0] != self.end_token:
            one.steps += 1
            one.accepted += min(agreed, len(answer) - max(len(one.tokens), 1))
        one.tokens = answer
        return not ended and len(answer) < limit

    def _target(self, rows: Tensor, first: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Samples at `count` places from `first` [B] on: [B, count]; and all features."""
        places = torch.arange(rows.shape[1], device=self.device).expand_as(rows)
        last, features = self.target(rows, places, None, self.drafter.taps)
        wanted = first[:, None] + torch.arange(count, device=self.device)
        states = last.gather(1, wanted[:, :, None].expand(-1, -1, last.shape[-1]))
        return self._sample(self.target.logits(states).float(), wanted), features

    def _sample(self, logits: Tensor, places: Tensor) -> Tensor:
        """Gumbel noise keyed by place, so that drafts cannot change what is sampled."""
        if self.temperature == 0:
            return logits.argmax(-1)
        generator = torch.Generator(device=self.device)
        noise = torch.empty_like(logits)
        for place in places.unique().tolist():
            generator.manual_seed(self.seed * 100_003 + place)
            chosen = places == place
            drawn = torch.rand(logits.shape[-1], generator=generator, device=self.device)
            noise[chosen] = -(-drawn.clamp(min=1e-20).log()).log()
        return (logits / self.temperature + noise).argmax(-1)

    def _draft(self, rows: Tensor, bonus: Tensor, features: Tensor) -> Tensor:
        """Blocks [B, block size]: each row's bonus and the drafts behind it."""
        size, context = self.drafter.block_size, features.shape[1]
        span = bonus[:, None] + torch.arange(size, device=self.device)
        block = torch.full_like(span, self.mask_token)
        block[:, 0] = rows.gather(1, bonus[:, None])[:, 0]
        before = torch.arange(context, device=self.device) < bonus[:, None]
        mask = torch.nn.functional.pad(before, (0, size), value=True)[:, None, None, :]
        places = torch.arange(context, device=self.device).expand(len(rows), -1)
        states = self.drafter(
            features, places, self.target.embed_tokens(block), span, mask.expand(-1, -1, size, -1)
        )
        block[:, 1:] = self.target.logits(states[:, 1:]).argmax(-1)
        return block
