"""Who may look at whom: masks for packed chats and for draft blocks, and attention under them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

# A mask [B, 1, Q, K], the same in blocks for flex attention, or None for plain causal attention.
Mask = Tensor | BlockMask | None
# (batch, head, query, key) indices -> whether the query sees the key.
Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def causal_within_chats(chat: Tensor) -> Visible:
    """`chat` [B, S] numbers the chats that share a row."""

    def visible(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (chat[b, q] == chat[b, k])

    return visible


def draft_blocks(chat: Tensor, anchors: Tensor, block_size: int) -> Visible:
    """Keys are the S context tokens, then the blocks of `anchors` [B, N].

    A block sees its own chat strictly before its anchor, and all of itself.
    """
    context = chat.shape[1]

    def visible(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        anchor = anchors[b, q // block_size]
        before = (k < anchor) & (chat[b, k.clamp(max=context - 1)] == chat[b, anchor])
        own = (k - context) // block_size == q // block_size
        return torch.where(k < context, before, own)

    return visible


def block_mask(visible: Visible, rows: int, queries: int, keys: int) -> Mask:
    """The mask as the device likes it: empty blocks are skipped on a GPU, all is dense on a CPU."""
    if torch.cuda.is_available():
        mask = _compiled_block_mask(visible, rows, None, queries, keys, device="cuda")
        assert isinstance(mask, BlockMask)
        return mask
    b = torch.arange(rows).view(-1, 1, 1, 1)
    q = torch.arange(queries).view(1, 1, -1, 1)
    k = torch.arange(keys).view(1, 1, 1, -1)
    return visible(b, torch.zeros_like(b), q, k)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Query [B, heads, Q, D], key and value [B, kv heads, K, D] -> [B, heads, Q, D]."""
    if isinstance(mask, BlockMask):
        result = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
        assert isinstance(result, Tensor)
        return result
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


_compiled_block_mask: Any = torch.compile(create_block_mask)
