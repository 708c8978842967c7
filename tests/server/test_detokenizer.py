from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from server.detokenizer import MAX_HELD_CHARACTERS, Detokenizer
from server.tokenizer import Tokenizer

SIZES = st.lists(st.integers(1, 7), min_size=1)


def chunks(token_ids: list[int], sizes: list[int]) -> Iterator[list[int]]:
    position, turn = 0, 0
    while position < len(token_ids):
        size = sizes[turn % len(sizes)]
        yield token_ids[position : position + size]
        position, turn = position + size, turn + 1


def detokenize(tokenizer: Tokenizer, token_ids: list[int], sizes: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(chunk) for chunk in chunks(token_ids, sizes)]
    return [*pieces, detokenizer.flush()]


@given(text=st.text(), sizes=SIZES)
def test_any_chunking_gives_the_text(tokenizer: Tokenizer, text: str, sizes: list[int]) -> None:
    assert "".join(detokenize(tokenizer, tokenizer.encode(text), sizes)) == text


@given(text=st.text(alphabet="a你好😀👩‍👩‍👧é\ufffd"), sizes=SIZES)
def test_wide_characters(tokenizer: Tokenizer, text: str, sizes: list[int]) -> None:
    assert "".join(detokenize(tokenizer, tokenizer.encode(text), sizes)) == text


@given(data=st.data(), sizes=SIZES)
def test_any_tokens_give_what_decoding_at_once_gives(
    tokenizer: Tokenizer, data: st.DataObject, sizes: list[int]
) -> None:
    """Also for tokens that are no UTF-8, as a model may well sample them."""
    token_ids = data.draw(st.lists(st.integers(0, 300), max_size=60))
    assert "".join(detokenize(tokenizer, token_ids, sizes)) == tokenizer.decode(token_ids)


@settings(max_examples=50)
@given(text=st.text(alphabet="ab 你😀", max_size=20), sizes=SIZES)
def test_sentencepiece_with_byte_fallback(text: str, sizes: list[int]) -> None:
    tokenizer = byte_fallback_tokenizer()
    assert "".join(detokenize(tokenizer, tokenizer.encode(text), sizes)) == text


def byte_fallback_tokenizer() -> Tokenizer:
    """Llama-like: spaces as ▁, unknown characters as bytes, the first space stripped."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "b": 258}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    from tokenizers import normalizers  # noqa: PLC0415

    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend)


def test_incomplete_character_is_held_back(tokenizer: Tokenizer) -> None:
    first, *rest = tokenizer.encode("😎")
    assert rest, "the character must be spread over tokens"
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(rest) == "😎"
    assert detokenizer.flush() == ""


def test_flush_shows_the_incomplete_character(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    detokenizer.push(tokenizer.encode("😎")[:1])
    assert detokenizer.flush() == "\ufffd"


@pytest.mark.parametrize(("skip", "text"), [(True, "Hi"), (False, "Hi<|im_end|>")])
def test_special_tokens(tokenizer: Tokenizer, skip: bool, text: str) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    assert detokenizer.push(tokenizer.encode("Hi<|im_end|>")) == text


def test_invalid_bytes_are_not_held_for_ever(tokenizer: Tokenizer) -> None:
    invalid = tokenizer.encode("😎")[0]
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.push([invalid]) for _ in range(MAX_HELD_CHARACTERS + 2))
    assert len(shown) > MAX_HELD_CHARACTERS
