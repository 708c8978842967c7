"""The tokenizer: byte-level BPE with Qwen's special tokens, and the chat template."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 6144
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
# Part of the visible text, so decoding with skip_special_tokens must keep them.
VISIBLE_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
                  "</tool_response>"]  # fmt: skip
MAX_LENGTH = 2048
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of VOCAB_SIZE tokens whose merges are learnt from `texts`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(VISIBLE_TOKENS),
        special_tokens=CONTROL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in VISIBLE_TOKENS])
    return _with_chat(core)


def load(folder: Path) -> PreTrainedTokenizerFast:
    """A saved tokenizer with the chat template as it stands here."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    tokenizer.chat_template = TEMPLATE.read_text()
    return tokenizer


def _with_chat(core: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        mask_token="<|mask|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE.read_text()
    return tokenizer
