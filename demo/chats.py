"""Builds chats: what is asked about an item, in many wordings, and what is answered."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from demo import elsewhere, phrases
from demo.answers import GREETING_ANSWER, KINDS, OFF_TOPIC_ANSWER, answer, read_answer, thought
from demo.stdlib import Item

Message = dict[str, Any]
TURN_KINDS = ("summary", "explain", "signature", "source", "example")
READ_CHARS = 500


@dataclass
class Chat:
    messages: list[Message]
    kind: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False


class Library:
    """Items with what can be answered about each."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.names: dict[str, list[str]] = defaultdict(list)
        for item in items:
            if item.what in ("function", "class"):
                self.names[item.module].append(item.name.rpartition(".")[2])
        text = " ".join(item.doc for item in items)
        self.words = sorted(set(re.findall(r"(?<![\w.`])[a-z]{2,10}(?![\w.`(])", text)))

    def answers(self, item: Item) -> dict[str, str]:
        """Answer by kind, only for the kinds that the item has."""
        found = {kind: answer(item, kind, self.names[item.module]) for kind in KINDS}
        return {kind: text for kind, text in found.items() if text is not None}


class Writer:
    """Writes chats about a library with one random generator; `unseen` picks the wordings."""

    def __init__(self, library: Library, seed: int, unseen: bool = False) -> None:
        self.library, self.random, self.unseen = library, random.Random(seed), unseen
        self.openings = phrases.UNSEEN if unseen else phrases.SEEN
        self.follow_ups = phrases.UNSEEN_FOLLOW_UPS if unseen else phrases.FOLLOW_UPS

    def single(self, item: Item, kind: str) -> Chat:
        """One question and its answer."""
        reply = self.library.answers(item)[kind]
        return Chat([*self.system(), _user(self.ask(item, kind)), _assistant(reply)], kind)

    def think(self, item: Item, kind: str) -> Chat:
        """The same in thinking mode."""
        chat = self.single(item, kind)
        chat.messages[-1]["reasoning_content"] = thought(item, kind)
        return Chat(chat.messages, "think", thinking=True)

    def several(self, item: Item, other: Item, turns: int) -> Chat:
        """Follow-ups about one item; now and then the last turn moves to another item."""
        found = self.library.answers(item)
        kinds = [kind for kind in TURN_KINDS if kind in found]
        chosen = self.random.sample(kinds, min(turns, len(kinds)))
        chat = self.single(item, chosen[0])
        for kind in chosen[1:]:
            question = self.random.choice(self.follow_ups[kind])
            chat.messages += [_user(self.vary(question)), _assistant(found[kind])]
        switched = self.library.answers(other).get(chosen[-1])
        if switched and self.random.random() < 0.3:
            question = self.random.choice(phrases.SWITCHES).format(name=self.written(other))
            chat.messages += [_user(self.vary(question)), _assistant(switched)]
        return Chat(chat.messages, "multi_turn")

    def read(self, item: Item) -> Chat:
        """A question about code that stands in the question itself."""
        code = f"```python\n{item.source}\n```"
        question = self.random.choice(self.openings["read"]).format(code=code)
        return Chat([*self.system(), _user(question), _assistant(read_answer(item))], "read")

    def look_up(self, item: Item) -> Chat:
        """A tool call for an item's documentation, its result, and the answer made of it."""
        tool = self.random.choice(["lookup", "get_docs", "search_docs", "find_documentation"])
        parameter = self.random.choice(["name", "query", "symbol"])
        question = self.random.choice(phrases.LOOK_UPS).format(item.name)
        messages = [
            *self.system(),
            _user(self.vary(question)),
            _call(tool, {parameter: item.name}),
            {"role": "tool", "content": item.summary},
            _assistant(f"The documentation of `{item.name}` says: {item.summary}"),
        ]
        schema = _schema(tool, "Look up documentation.", parameter, "What to look up")
        return Chat(messages, "tool", [schema, *self.others(tool, self.random.randint(0, 1))])

    def call(self) -> Chat:
        """A question that only one of the given tools can answer."""
        tool, about, parameter, meaning, questions, values = self.random.choice(elsewhere.TOOLS)
        # Other names than usual, so that the model reads them off the schema.
        name = self.random.choice([tool, tool, tool.replace("get_", "fetch_"), f"{tool}_tool"])
        if self.random.random() < 0.6:
            parameter = self.random.choice(elsewhere.PARAMETERS)
        value = self.random.choice(values.split("|"))
        question = self.vary(self.random.choice(questions).format(value))
        messages = [*self.system(), _user(question), _call(name, {parameter: value})]
        tools = [_schema(name, about, parameter, meaning)]
        tools += self.others(tool, self.random.randint(0, 2))
        self.random.shuffle(tools)
        return Chat(messages, "tool", tools)

    def off_topic(self) -> Chat:
        reply, roll = OFF_TOPIC_ANSWER, self.random.random()
        if roll < 0.1:
            question, reply = self.random.choice(elsewhere.GREETINGS), GREETING_ANSWER
        elif roll < 0.4:
            question = self.chatter(8).capitalize()
        else:
            forms, topics = self.random.choice(elsewhere.ELSEWHERE)
            question = self.random.choice(forms).format(self.random.choice(topics))
        messages = [*self.system(), _user(self.vary(question)), _assistant(reply)]
        return Chat(messages, "off_topic")

    def ask(self, item: Item, kind: str) -> str:
        question = self.random.choice(self.openings[kind]).format(name=self.written(item))
        return self.vary(question)

    def written(self, item: Item) -> str:
        """The name as people write it: with backticks, with (), as "the … module"."""
        options = [item.name, item.name, f"`{item.name}`"]
        if item.what == "module":
            options += [f"the {item.name} module", f"the `{item.name}` module"]
        elif item.what != "class":
            options += [f"{item.name}()"]
        return self.random.choice(options)

    def vary(self, question: str) -> str:
        """Small changes of the surface, so that the model does not depend on it."""
        if self.unseen:
            return question
        if self.random.random() < 0.25:
            question = question[0].lower() + question[1:]
        if self.random.random() < 0.2:
            question = question.rstrip("?.")
        roll = self.random.random()
        if roll < 0.15:
            question = self.random.choice(phrases.BEFORE) + question
        elif roll < 0.25:
            question += self.random.choice(phrases.AFTER)
        elif roll < 0.32:
            question = f"{self.chatter(4)} {question}"
        elif roll < 0.38:
            question += f" {self.chatter(4)}"
        return question

    def chatter(self, most: int) -> str:
        """Up to `most` English words without meaning, for wordings that nobody foresaw."""
        words = self.random.choices(self.library.words, k=self.random.randint(1, most))
        return " ".join(words) + self.random.choice(["", "", ",", ".", ":", "?"])

    def system(self) -> list[Message]:
        if self.unseen or self.random.random() > 0.15:
            return []
        return [{"role": "system", "content": self.random.choice(phrases.SYSTEM)}]

    def others(self, tool: str, count: int) -> list[dict[str, Any]]:
        """Schemas of tools that are of no use for the question."""
        rest = [t for t in elsewhere.TOOLS if t[0] != tool]
        return [_schema(*t[:4]) for t in self.random.sample(rest, count)]


def readable(items: list[Item]) -> Iterator[Item]:
    """Items whose code is short enough to stand in a question."""
    for item in items:
        if 60 < len(item.source) < READ_CHARS and item.what != "class":
            yield item


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _call(name: str, arguments: dict[str, str]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def _schema(name: str, about: str, parameter: str, meaning: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string", "description": meaning}},
                "required": [parameter],
            },
        },
    }
