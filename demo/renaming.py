"""Gives items names that nobody has seen.

A model that only ever meets names it knows learns to recall them and never to copy them from the
question. Here the text stays, and the name is new every time: it can only be copied.
"""

import random
import re
import string
from dataclasses import replace

from demo.stdlib import Item

SYLLABLES = "ba co di fu ga he ji ko lu ma ne po qui ra si ta ul vo wex ya zor th st br cl".split()


class Renamer:
    """Makes names of words out of the given items' names, and of syllables."""

    def __init__(self, items: list[Item], seed: int) -> None:
        self.random = random.Random(seed)
        parts = {p.lower() for i in items for p in re.findall(r"[A-Z]?[a-z]{2,}", i.name)}
        self.words = sorted(parts)

    def __call__(self, item: Item) -> Item:
        """The item under a new module and class; its own last name stays half of the time."""
        module = self._joined(self.random.choice(["", "", "_", "."]), self.random.randint(1, 2))
        if item.what == "module":
            return replace(item, module=module, name=module)
        old = item.name.rpartition(".")[2]
        new = old if self.random.random() < 0.5 else self._joined("_", self.random.randint(1, 3))
        if item.what == "class":
            new = self._camel()
        parts = [module, self._camel(), new] if item.what == "method" else [module, new]
        source = re.sub(rf"\bdef {re.escape(old)}\b", f"def {new}", item.source)
        return replace(item, module=module, name=".".join(parts), source=source)

    def _joined(self, separator: str, count: int) -> str:
        return separator.join(self._word() for _ in range(count))

    def _camel(self) -> str:
        return "".join(self._word().capitalize() for _ in range(self.random.randint(1, 2)))

    def _word(self) -> str:
        roll = self.random.random()
        if roll < 0.1:
            return "".join(self.random.choices(string.ascii_lowercase, k=self.random.randint(1, 4)))
        if roll < 0.35:
            return "".join(self.random.choices(SYLLABLES, k=self.random.randint(2, 3)))
        return self.random.choice(self.words)
