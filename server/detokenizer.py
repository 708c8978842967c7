"""Token ids to text while they arrive, several at a time.

A character may be spread over tokens, and tokens over steps. Decoded too early its bytes become
U+FFFD, so text is held back while it ends with U+FFFD, until it can be told or at the end.
"""

from collections.abc import Sequence

from server.tokenizer import Tokenizer

# A run of U+FFFD this long is no character in the making: let go, or a stream of invalid bytes
# would be held back for ever and decoded again and again.
MAX_HELD_CHARACTERS = 256


class Detokenizer:
    """The text of one token sequence. Whatever its split into chunks, the sum is the same text.

    Tokens are decoded together with those of the chunk before, because a decoder may look back
    (SentencePiece strips the first space of what it is given).
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._context: list[int] = []  # tokens whose text is out, decoded before the next ones
        self._context_length = 0  # characters of the context's own text
        self._pending: list[int] = []  # tokens since then
        self._emitted = 0  # characters of the pending tokens' text that are out

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens and return the text that is now certain."""
        self._pending += token_ids
        text = self._pending_text()
        certain = len(text.rstrip("\ufffd"))
        if len(text) - certain > MAX_HELD_CHARACTERS:
            certain = len(text)
        new = text[self._emitted : certain]
        self._emitted = max(self._emitted, certain)
        if certain == len(text) and self._pending:
            self._start_afresh()
        return new

    def flush(self) -> str:
        """The end: the text held back, incomplete characters as U+FFFD."""
        rest = self._pending_text()[self._emitted :]
        self._emitted += len(rest)
        return rest

    def _pending_text(self) -> str:
        return self._decode(self._context + self._pending)[self._context_length :]

    def _start_afresh(self) -> None:
        """All text is out and ends with a whole character: what was pending becomes context."""
        self._context, self._pending = self._pending, []
        self._context_length = len(self._decode(self._context))
        self._emitted = 0

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)
