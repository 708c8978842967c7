"""The two losses: next token for the target, draft block for the drafter."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from demo.attention import Mask, block_mask, causal_within_chats, draft_blocks
from demo.batches import Batch
from demo.model import Drafter, Target


def choose_anchors(batch: Batch, count: int) -> Tensor:
    """`count` sorted positions a row, [rows, count], each in an answer and not its last token."""
    inside = (batch.answer[:, :-1] > 0) & (batch.answer[:, :-1] == batch.answer[:, 1:])
    chances = inside.float() + 1e-9
    return torch.multinomial(chances, count, replacement=True).sort(1).values


def masks(batch: Batch, anchors: Tensor, block_size: int) -> tuple[Mask, Mask]:
    """The target's mask and the drafter's."""
    rows, length = batch.tokens.shape
    queries = anchors.shape[1] * block_size
    return (
        block_mask(causal_within_chats(batch.chat), rows, length, length),
        block_mask(
            draft_blocks(batch.chat, anchors, block_size), rows, queries, length + queries
        ),
    )  # fmt: skip


@dataclass
class Blocks:
    """Draft blocks of the anchors, all [rows, blocks, block size]: what the drafter is given
    (`tokens` at `position`), and what it should say (`labels`, where `valid`)."""

    tokens: Tensor
    position: Tensor
    labels: Tensor
    valid: Tensor


def cut_blocks(batch: Batch, anchors: Tensor, size: int, mask_token: int) -> Blocks:
    """The anchor's token and then masks; the labels stop where the answer does."""
    steps = torch.arange(size, device=anchors.device)
    places = anchors[:, :, None] + steps
    inside = places.flatten(1).clamp(max=batch.tokens.shape[1] - 1)
    labels = batch.tokens.gather(1, inside).view_as(places)
    answer = batch.answer.gather(1, inside).view_as(places)
    valid = (answer == answer[:, :, :1]) & (places < batch.tokens.shape[1])
    position = batch.position.gather(1, anchors)[:, :, None] + steps
    return Blocks(torch.where(steps == 0, labels, mask_token), position, labels, valid)


def pair_losses(
    target: Target,
    drafter: Drafter,
    batch: Batch,
    anchors: Tensor,
    target_mask: Mask,
    draft_mask: Mask,
    mask_token: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Language-model loss, draft loss, and the drafter's accuracy by place [block size - 1].

    The draft loss reaches into the target: it teaches the target's features to carry the future.
    """
    last, features = target(batch.tokens, batch.position, target_mask, drafter.taps)
    blocks = cut_blocks(batch, anchors, drafter.block_size, mask_token)
    embedded = target.embed_tokens(blocks.tokens.flatten(1))
    states = drafter(features, batch.position, embedded, blocks.position.flatten(1), draft_mask)
    logits = target.logits(states).unflatten(1, blocks.tokens.shape[1:])[:, :, 1:]
    draft, accuracy = draft_loss(logits, blocks.labels[:, :, 1:], blocks.valid[:, :, 1:])
    return next_token_loss(target.logits(last), batch), draft, accuracy


def next_token_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Mean over the tokens of answers; logits [rows, length, vocabulary]."""
    wanted = batch.answer[:, 1:] > 0
    labels = torch.where(wanted, batch.tokens[:, 1:], -100)
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels.flatten())


def draft_loss(logits: Tensor, labels: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """D-PACE: a place weighs as much as the acceptance that depends on it.

    Logits [rows, blocks, places, vocabulary]; labels, valid [rows, blocks, places].
    """
    flat = logits.flatten(0, 2).float()
    loss = cross_entropy(flat, labels.flatten(), reduction="none").view_as(labels) * valid
    confidence = 0.5 * torch.exp(-loss.detach()) + 0.5
    reach = confidence.cumprod(-1) * valid
    weight = reach.flip(-1).cumsum(-1).flip(-1) * valid
    right = (logits.argmax(-1) == labels) & valid
    accuracy = right.sum((0, 1)) / valid.sum((0, 1)).clamp(min=1)
    return (loss * weight).sum() / weight.sum(), accuracy
