"""The fixed evaluation prompts: chosen once by seed, kept in prompts.jsonl."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo.chats import Chat, Library, Writer, readable
from demo.modules import CORE, HELD_OUT
from demo.stdlib import Item, collect

PATH = Path(__file__).with_name("prompts.jsonl")
Prompt = dict[str, Any]

# How many of each kind among the trained and the held-out prompts.
MIX = {
    "summary": (20, 12),
    "explain": (20, 12),
    "signature": (14, 8),
    "source": (18, 10),
    "example": (8, 5),
    "contents": (3, 2),
    "multi_turn": (11, 6),
    "read": (2, 2),
    "tool": (4, 3),
    "think": (4, 2),
}
PROMPT_CHARS = 900
OFF_TOPIC = [
    "What's the weather like on Mars?",
    "Who won the world cup in 1998?",
    "Write me a haiku about autumn.",
    "How do I bake a chocolate cake?",
    "What is the capital of Australia?",
    "Tell me a joke.",
    "Can you recommend a good film for tonight?",
    "How far away is the nearest star?",
    "Explain the rules of cricket.",
    "What should I eat for breakfast?",
    "Is it dangerous to swim in a thunderstorm?",
    "Hello, how are you doing?",
]


def write() -> int:
    """Writes prompts.jsonl and returns the number of prompts."""
    lines = [json.dumps(prompt, ensure_ascii=False) for prompt in _all()]
    PATH.write_text("\n".join(lines) + "\n")
    return len(lines)


def read() -> list[Prompt]:
    return [json.loads(line) for line in PATH.read_text().splitlines()]


def _all() -> Iterator[Prompt]:
    for index, (split, modules) in enumerate((("trained", CORE), ("held_out", HELD_OUT))):
        library = Library(list(collect(modules)))
        writers = [Writer(library, 90 + index, unseen=True), Writer(library, 80 + index)]
        for kind, counts in MIX.items():
            for number in range(counts[index]):
                # Two in three in wordings that training never used.
                unseen = number % 3 < 2
                yield _prompt(split, unseen, _chat(writers[0 if unseen else 1], kind))
    for text in OFF_TOPIC:
        chat = Chat([{"role": "user", "content": text}, {"content": ""}], "off_topic")
        yield _prompt("off_topic", True, chat)


def _prompt(split: str, unseen: bool, chat: Chat) -> Prompt:
    """The chat up to its last answer, which becomes the reference."""
    prompt: Prompt = {
        "split": split,
        "kind": chat.kind,
        "phrasing": "unseen" if unseen else "seen",
        "messages": chat.messages[:-1],
        "reference": chat.messages[-1]["content"],
    }
    if chat.tools:
        prompt["tools"] = chat.tools
    if chat.thinking:
        prompt["chat_template_kwargs"] = {"enable_thinking": True}
    return prompt


def _chat(writer: Writer, kind: str) -> Chat:
    """A chat of this kind whose prompt is short enough."""
    while True:
        chat = _draw(writer, kind)
        if chat and len(json.dumps([chat.messages[:-1], chat.tools])) < PROMPT_CHARS:
            return chat


def _draw(writer: Writer, kind: str) -> Chat | None:
    item = _item(writer)
    found = writer.library.answers(item)
    if kind == "read":
        return writer.read(writer.random.choice(list(readable(writer.library.items))))
    if kind == "tool":
        return _tool_chat(writer, item) if item.summary else None
    if kind == "multi_turn":
        chat = writer.several(item, _item(writer), 3) if len(found) > 2 else None
        return chat if chat and len(chat.messages) > 3 else None
    if kind == "think":
        return writer.think(item, "summary") if "summary" in found else None
    return writer.single(item, kind) if kind in found else None


def _tool_chat(writer: Writer, item: Item) -> Chat:
    """Either the call is wanted, or the answer made of the tool's result."""
    chat = writer.look_up(item)
    if writer.random.random() < 0.5:
        return chat
    function = chat.messages[-3]["tool_calls"][0]["function"]
    call = f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
    wanted = {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"}
    return Chat([*chat.messages[:-3], wanted], chat.kind, chat.tools)


def _item(writer: Writer) -> Item:
    """Modules first, so that large ones do not crowd out the others."""
    module = writer.random.choice(sorted({item.module for item in writer.library.items}))
    return writer.random.choice([i for i in writer.library.items if i.module == module])
