"""The checkpoint's tokenizer, read from ``tokenizer.json`` with the ``tokenizers`` library.

Not through transformers' AutoTokenizer: that imports torch, which takes seconds and hundreds of
megabytes in a process that has no tensors.
"""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from engine.config import ConfigError


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        # A tokenizer.json may carry its training settings; a prompt must never be cut or padded.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the highest token id, added tokens included."""
        self.longest_token = max(map(len, vocabulary), default=1)
        """Characters of text that one token can stand for, at most. (Counted in the vocabulary's
        own spelling, in which nothing is shorter than its text.)"""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` as it stands: a chat template writes its own special tokens."""
        # Of the encoding methods, the batched one lets other threads run meanwhile.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``token_ids``, with U+FFFD for bytes that are no UTF-8."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint; raises ConfigError."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"target.model = {str(directory)!r}: has no tokenizer.json; "
            "use a checkpoint with a fast tokenizer, or save one with transformers"
        )
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(
            f"target.model = {str(directory)!r}: tokenizer.json cannot be read ({error}); "
            "fetch the checkpoint again"
        ) from None
