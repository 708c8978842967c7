"""What the model should answer about an item, by kind of question."""

import ast
import textwrap
from collections.abc import Iterable

from demo.stdlib import Item, unwrap

KINDS = ("summary", "explain", "signature", "source", "example", "contents")
ANSWER_CHARS = 1200
OFF_TOPIC_ANSWER = (
    "I only know the Python standard library. Ask me about one of its modules, classes or "
    "functions, for example `json.dumps`."
)
GREETING_ANSWER = (
    "Hello! I know the Python standard library. Ask me what a function does, or for its "
    "signature, its source or an example."
)


def answer(item: Item, kind: str, names: list[str]) -> str | None:
    """The answer, or None when the item lacks what it takes; `names` are the module's own."""
    if kind == "contents":
        return _contents(item, names) if item.what == "module" and names else None
    text = {
        "summary": _summary,
        "explain": _explain,
        "signature": _signature,
        "source": _source,
        "example": _example,
    }[kind](item)
    return text if text and len(text) <= ANSWER_CHARS + 200 else None


def thought(item: Item, kind: str) -> str:
    """The reasoning shown before an answer in thinking mode."""
    wish = {"summary": "a short summary", "explain": "an explanation"}.get(kind, f"the {kind}")
    place = "" if item.what == "module" else f", a {item.what} of the `{item.module}` module"
    return f"The user wants {wish} of `{item.name}`{place}."


def read_answer(item: Item) -> str:
    """The signature as it stands in the code that the question shows."""
    head = item.source.split(":\n")[0].splitlines()
    lines = [line for line in head if not line.startswith("@")]
    return "The signature is:\n\n" + _fence("\n".join(lines) + ":")


def _summary(item: Item) -> str | None:
    if not item.doc:
        return None
    return f"{_introduction(item)} {_cut(item.summary, 400)}"


def _explain(item: Item) -> str | None:
    if not item.doc:
        return None
    body = item.doc if len(item.doc) <= ANSWER_CHARS else _cut_paragraphs(item.doc)
    return f"`{item.name}{item.signature}`\n\n{body}"


def _signature(item: Item) -> str | None:
    if not item.signature:
        return None
    return f"The signature of `{item.name}` is:\n\n{_fence(item.name + item.signature)}"


def _source(item: Item) -> str | None:
    if item.what in ("module", "class"):
        return None
    if not item.source:
        return f"`{item.name}` is built into the interpreter: it has no Python source."
    return f"The source of `{item.name}`:\n\n{_fence(item.source)}"


def _example(item: Item) -> str | None:
    if item.examples and len(item.examples) < ANSWER_CHARS:
        return f"Examples of `{item.name}`:\n\n{_fence(item.examples)}"
    arguments = _required(item.signature)
    if item.what == "module" or arguments is None:
        return None
    return f"An example of `{item.name}`:\n\n{_fence(_call(item, arguments))}"


def _contents(item: Item, names: Iterable[str]) -> str:
    listed = [f"- `{name}`" for name in names]
    more = f"\n- and {len(listed) - 24} more" if len(listed) > 24 else ""
    return f"The `{item.name}` module has:\n\n" + "\n".join(listed[:24]) + more


def _introduction(item: Item) -> str:
    if item.what == "module":
        return f"`{item.name}` is a module of the standard library."
    article = "built-in " if item.module == "builtins" else ""
    place = "" if article else f" of the `{item.module}` module"
    return f"`{item.name}` is a {article}{item.what}{place}."


def _call(item: Item, arguments: list[str]) -> str:
    """A call with the required arguments, after the import that it needs."""
    owner, _, last = item.name.rpartition(".")
    if item.what == "method":
        variable = owner.rpartition(".")[2].lower()[:1] or "x"
        call = f"{variable} = {owner}(...)\n{variable}.{last}({', '.join(arguments)})"
    else:
        call = f"result = {item.name}({', '.join(arguments)})"
    return call if item.module == "builtins" else f"import {item.module}\n\n{call}"


def _required(signature: str) -> list[str] | None:
    """Names of the positional parameters without a default; None if it cannot be parsed."""
    try:
        node = ast.parse(f"def f{signature}: ...").body[0]
    except SyntaxError:
        return None
    if not isinstance(node, ast.FunctionDef) or not signature:
        return None
    found = node.args.posonlyargs + node.args.args
    names = [a.arg for a in found[: len(found) - len(node.args.defaults)]]
    return [n for n in names if n not in ("self", "cls")]


def _fence(code: str) -> str:
    return f"```python\n{code}\n```"


def _cut(text: str, limit: int) -> str:
    """At the end of a sentence where there is one."""
    if len(text) <= limit:
        return text
    head = text[:limit].rpartition(". ")[0]
    return f"{head}." if head else textwrap.shorten(unwrap(text), limit, placeholder=" ...")


def _cut_paragraphs(text: str) -> str:
    """Whole paragraphs up to the limit; at least the first, cut at a sentence."""
    kept: list[str] = []
    for paragraph in text.split("\n\n"):
        if sum(map(len, kept)) + len(paragraph) > ANSWER_CHARS:
            break
        kept.append(paragraph)
    return "\n\n".join(kept) if kept else _cut(unwrap(text), ANSWER_CHARS)
