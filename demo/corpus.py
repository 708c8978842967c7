"""The training text: chats about the standard library, as token ids on disk."""

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from demo import prompts
from demo import tokenizer as bpe
from demo.chats import TURN_KINDS, Chat, Library, Message, Writer, readable
from demo.modules import CORE, WIDER
from demo.renaming import Renamer
from demo.stdlib import collect

# A chat's token ids, and for each the number of the answer that it belongs to, or 0.
Encoded = tuple[list[int], list[int]]
BUILD = Path(__file__).with_name("build")
WORDINGS = 5
RENAMED = 60000
QUESTIONS = 8192
ANSWER = re.compile(
    r"<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n)?(.*?<\|im_end\|>)", re.DOTALL
)


@dataclass
class Corpus:
    """Chats end to end: `tokens` [T], `answer` [T] (n-th answer of its chat, 0 outside),
    `lengths` [chats], `rare` [chats] (only in every fourth epoch)."""

    tokens: Tensor
    answer: Tensor
    lengths: Tensor
    rare: Tensor

    @classmethod
    def of(cls, chats: list[Encoded], rare: int = 0) -> "Corpus":
        """Of encoded chats, the last `rare` of them rare."""
        return cls(
            torch.tensor([t for ids, _ in chats for t in ids]),
            torch.tensor([a for _, marks in chats for a in marks]),
            torch.tensor([len(ids) for ids, _ in chats]),
            torch.arange(len(chats)) >= len(chats) - rare,
        )

    def save(self, path: Path) -> None:
        """Token and answer share 16 bits: no vocabulary here needs more than 13."""
        both = (self.tokens + (self.answer << 13)).to(torch.uint16)
        save_file({"both": both, "lengths": self.lengths.int(), "rare": self.rare}, path)

    @classmethod
    def load(cls, path: Path) -> "Corpus":
        found = load_file(path)
        both = found["both"].to(torch.int64)
        return cls(both & 0x1FFF, both >> 13, found["lengths"].long(), found["rare"])


def build(console: Console, tokenizer_of: Path | None = None) -> None:
    """Writes to build/: the tokenizer, the training chats, the open questions and the prompts.

    `tokenizer_of` is a model whose tokenizer to keep, for a corpus that goes on training it.
    """
    BUILD.mkdir(exist_ok=True)
    core, wider = Library(list(collect(CORE))), Library(list(collect(WIDER)))
    console.print(f"{len(core.items)} items learnt by heart, {len(wider.items)} met a few times")
    rare = [*_wider_chats(wider), *_renamed_chats(core, wider)]
    chats = [*_core_chats(core), *_other_chats(core, wider), *rare]
    tokenizer = bpe.load(tokenizer_of) if tokenizer_of else bpe.train(_texts(chats))
    tokenizer.save_pretrained(BUILD / "tokenizer")
    encoded = [_encode(chat, tokenizer) for chat in track(chats, "Encoding")]
    corpus = Corpus.of(encoded, rare=len(rare))
    corpus.save(BUILD / "chats.safetensors")
    questions = [prompt_ids({"messages": m}, tokenizer) for m in _open_questions(core, wider)]
    (BUILD / "questions.json").write_text(json.dumps(questions))
    rows = [{**p, "ids": prompt_ids(p, tokenizer)} for p in prompts.read()]
    (BUILD / "prompts.json").write_text(json.dumps(rows))
    answers = int((corpus.answer > 0).sum())
    console.print(f"{len(chats)} chats, {len(corpus.tokens)} tokens, {answers} of them in answers")
    console.print(f"{len(questions)} open questions, {len(rows)} evaluation prompts")


def prompt_ids(prompt: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """A prompt of prompts.jsonl as the server would render it."""
    text = tokenizer.apply_chat_template(
        prompt["messages"],
        tools=prompt.get("tools"),
        tokenize=False,
        add_generation_prompt=True,
        **prompt.get("chat_template_kwargs", {}),
    )
    ids: list[int] = tokenizer.encode(str(text), add_special_tokens=False)
    return ids


def _encode(chat: Chat, tokenizer: PreTrainedTokenizerFast) -> Encoded:
    text = render(chat, tokenizer)
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    spans = [match.span(1) for match in ANSWER.finditer(text)]
    ids: list[int] = encoding["input_ids"]
    return ids, [_span_of(start, spans) for start, _ in encoding["offset_mapping"]]


def render(chat: Chat, tokenizer: PreTrainedTokenizerFast) -> str:
    """The chat's text, without the line break after the last answer."""
    text = tokenizer.apply_chat_template(
        chat.messages, tools=list(chat.tools) or None, tokenize=False, enable_thinking=chat.thinking
    )
    return str(text).rstrip("\n")


def _span_of(position: int, spans: list[tuple[int, int]]) -> int:
    """1 + index of the span that holds a character; 0 if none does."""
    return next((i + 1 for i, (a, b) in enumerate(spans) if a <= position < b), 0)


def _core_chats(library: Library) -> Iterator[Chat]:
    """Every answer about every item in several wordings, and follow-ups."""
    writer = Writer(library, seed=1)
    for item in track(library.items, "Core chats"):
        found = library.answers(item)
        for kind in found:
            yield from (writer.single(item, kind) for _ in range(WORDINGS))
        if len(found.keys() & set(TURN_KINDS)) > 1:
            for turns in (2, 3):
                yield writer.several(item, writer.random.choice(library.items), turns)


def _wider_chats(library: Library) -> Iterator[Chat]:
    writer = Writer(library, seed=2)
    for item in track(library.items, "Wider chats"):
        found = library.answers(item)
        yield from (writer.single(item, kind) for kind in found)
        if len(found.keys() & set(TURN_KINDS)) > 1:
            yield writer.several(item, writer.random.choice(library.items), 2)


def _renamed_chats(core: Library, wider: Library) -> Iterator[Chat]:
    """Chats about names that occur nowhere else, which teach to copy a name."""
    items = core.items + wider.items
    writer, rename = Writer(Library(items), seed=5), Renamer(items, seed=6)
    for _ in track(range(RENAMED), "Renamed chats"):
        item = rename(writer.random.choice(items))
        kinds = sorted(writer.library.answers(item))
        if not kinds:
            continue
        roll, kind = writer.random.random(), writer.random.choice(kinds)
        if roll < 0.12 and 20 < len(item.summary) < 300:
            yield writer.look_up(item)
        elif roll < 0.25 and set(kinds) & set(TURN_KINDS):
            yield writer.several(item, rename(writer.random.choice(items)), 2)
        else:
            yield writer.think(item, kind) if roll < 0.3 else writer.single(item, kind)


def _other_chats(core: Library, wider: Library) -> Iterator[Chat]:
    """Thinking, code in the question, tools and other subjects: a small share of the whole."""
    writer = Writer(core, seed=3)
    documented = [i for i in core.items + wider.items if 20 < len(i.summary) < 300]
    shown = list(readable(core.items + wider.items))
    kinds: list[tuple[int, Callable[[], Chat]]] = [
        (1500, lambda: _thinking(writer)),
        (1500, lambda: writer.read(writer.random.choice(shown))),
        (1200, lambda: writer.look_up(writer.random.choice(documented))),
        (4000, writer.call),
        (5000, writer.off_topic),
    ]
    for count, write in kinds:
        yield from (write() for _ in range(count))


def _thinking(writer: Writer) -> Chat:
    item = writer.random.choice([i for i in writer.library.items if i.doc])
    return writer.think(item, writer.random.choice(sorted(writer.library.answers(item))))


def _texts(chats: Iterable[Chat]) -> list[str]:
    """Distinct messages: an answer counts once, not once per wording."""
    distinct = {str(m["content"]) for chat in chats for m in chat.messages}
    return random.Random(0).sample(sorted(distinct), len(distinct))


def _open_questions(core: Library, wider: Library) -> Iterator[list[Message]]:
    """Questions about names that no model knows by heart: rare ones, and ones that do not exist.

    The target's own answers to them teach the drafter what the target says when it must invent.
    """
    items = core.items + wider.items
    writer, rename = Writer(wider, seed=7), Renamer(items, seed=8)
    for number in range(QUESTIONS):
        known = writer.random.choice(wider.items)
        item = known if number % 4 == 0 else rename(writer.random.choice(items))
        kind = writer.random.choice([*TURN_KINDS, "explain", "source"])
        yield [{"role": "user", "content": writer.ask(item, kind)}]
