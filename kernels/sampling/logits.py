"""What sampling parameters do to logits before the temperature, for one chunk of one row."""

# mypy: disable-error-code="import-untyped,untyped-decorator,no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def processed_logits(
    row_ptr,
    tokens,
    vocab_size,
    block_ptr,
    rank,
    slot,
    state,
    NUM_STOP_IDS: tl.constexpr,
):
    """float32 logits of ``tokens [N]``, -inf past the vocabulary.

    In the order of ``engine.sampling``: soft-cap, logit_bias, min_tokens, penalties. ``block_ptr``:
    the request's draft block; ``rank``: which of its rows this is.
    """
    inside = tokens < vocab_size
    logits = tl.load(row_ptr + tokens, inside, -float("inf")).to(tl.float32)
    if state.softcap is not None:
        capped = state.softcap * (2 * tl.sigmoid(2 * logits / state.softcap) - 1)
        logits = tl.where(inside, capped, logits)
    # Nested: the first condition is decided when the kernel is compiled, the second when it runs.
    if state.logit_bias is not None:  # noqa: SIM102
        if tl.load(state.has_logit_bias + slot):
            bias_ptr = state.logit_bias + slot * vocab_size
            logits += tl.load(bias_ptr + tokens, inside, 0.0)
    if state.min_output is not None:
        emitted_before = tl.load(state.num_output + slot) + rank
        if emitted_before < tl.load(state.min_output + slot):
            for i in range(NUM_STOP_IDS):
                stop_id = tl.load(state.stop_ids + slot * NUM_STOP_IDS + i)
                logits = tl.where(tokens == stop_id, -float("inf"), logits)
    if state.repetition_penalty is not None:
        repetition = tl.load(state.repetition_penalty + slot)
        frequency = tl.load(state.frequency_penalty + slot)
        presence = tl.load(state.presence_penalty + slot)
        # The counts of requests without penalties are stale, and reading them is most of the cost.
        if (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0):
            counts = tl.load(state.output_counts + slot * vocab_size + tokens, inside, 0)
            for i in range(1, rank + 1):
                counts += (tokens == tl.load(block_ptr + i)).to(tl.int32)
            in_prompt = tl.load(state.in_prompt + slot * vocab_size + tokens, inside, 0)
            seen = (counts > 0) | (in_prompt != 0)
            scaled = tl.where(logits > 0, tl.math.div_rn(logits, repetition), logits * repetition)
            logits = tl.where(seen, scaled, logits)
            logits -= frequency * counts.to(tl.float32)
            logits -= presence * (counts > 0).to(tl.float32)
    return logits
