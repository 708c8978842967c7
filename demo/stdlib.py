"""Reads functions, classes and methods out of the running Python's standard library."""

import ast
import importlib
import inspect
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Item:
    """One documented name, such as `json.dumps`; an empty string where a fact is missing."""

    module: str
    name: str
    what: str
    signature: str
    doc: str
    source: str

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, unwrapped into one line."""
        return unwrap(self.doc.split("\n\n")[0])

    @property
    def examples(self) -> str:
        """The interactive examples in the docstring, prompts included."""
        lines = self.doc.splitlines()
        kept = [line for i, line in enumerate(lines) if _in_example(lines, i)]
        return textwrap.dedent("\n".join(kept))


def collect(modules: Iterable[str]) -> Iterator[Item]:
    """Items of each module in order: the module, then its public names sorted."""
    for name in modules:
        module = _load(name)
        if module is not None:
            yield from _of_module(module, name)


def unwrap(text: str) -> str:
    return " ".join(text.split())


def _load(name: str) -> ModuleType | None:
    """None when this platform's Python lacks the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def _of_module(module: ModuleType, name: str) -> Iterator[Item]:
    yield Item(name, name, "module", "", _doc(module), "")
    for key, value in _public(module):
        if inspect.isclass(value) and value.__name__ != key:
            continue  # Another name of a class that stands elsewhere.
        if inspect.isclass(value):
            yield from _of_class(value, name, f"{name}.{key}")
        elif callable(value) and _doc(value):
            yield _item(value, name, f"{name}.{key}", "function")


def _of_class(cls: type, module: str, name: str) -> Iterator[Item]:
    if _doc(cls):
        yield _item(cls, module, name, "class")
    for key, value in sorted(vars(cls).items()):
        function = inspect.unwrap(getattr(value, "__func__", value))
        if not key.startswith("_") and inspect.isroutine(function) and _doc(function):
            yield _item(function, module, f"{name}.{key}", "method")


def _public(module: ModuleType) -> list[tuple[str, Any]]:
    """Public names that the module itself defines, not those it imported for its own use."""
    exported = getattr(module, "__all__", None)
    names = exported if exported is not None else [n for n in dir(module) if _is_own(module, n)]
    found = {n: getattr(module, n) for n in names if not n.startswith("_") and hasattr(module, n)}
    return sorted(found.items())


def _is_own(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    home = getattr(value, "__module__", None) or ""
    return callable(value) and home.lstrip("_") in (module.__name__, module.__name__ + "module", "")


def _item(value: Any, module: str, name: str, what: str) -> Item:
    # Builtins need no module in front, and people never write one.
    short = name.removeprefix("builtins.")
    return Item(module, short, what, _signature(value), _doc(value), _source(value, what))


def _doc(value: Any) -> str:
    doc = getattr(value, "__doc__", None)
    return _plain(inspect.cleandoc(doc)) if isinstance(doc, str) else ""


def _plain(doc: str) -> str:
    """reST markup reads badly in a chat: ``x`` becomes `x`, and so does :role:`x`."""
    doc = re.sub(r":[a-z:]+:`~?([^`]+)`", r"`\1`", doc)
    return re.sub(r"\n{3,}", "\n\n", doc.replace("``", "`")).strip()


def _signature(value: Any) -> str:
    """Parameters as written. What differs between machines and runs is put back as its source
    has it: the environment, the interpreter's path, the addresses of objects."""
    try:
        signature = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    for default, written in ((os.environ, "os.environ"), (sys.executable, "sys.executable")):
        signature = signature.replace(repr(default), written)
    signature = re.sub(r"<(\w+)[^<>]* at 0x[0-9a-f]+>", r"<\1>", signature)
    return re.sub(r" at 0x[0-9a-f]+", "", signature)


def _source(value: Any, what: str) -> str:
    """The code without its docstring, which other answers give; "" for code written in C."""
    if what == "class":
        return ""
    try:
        code = textwrap.dedent(inspect.getsource(value))
        return _without_docstring(code)
    except (OSError, TypeError, SyntaxError):
        return ""


def _without_docstring(code: str) -> str:
    node = ast.parse(code).body[0]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 2:
        return ""
    first, lines = node.body[0], code.splitlines()
    if ast.get_docstring(node) is not None and first.end_lineno is not None:
        del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(line.rstrip() for line in lines if line.strip()).strip()


def _in_example(lines: list[str], index: int) -> bool:
    """Whether a line is an interactive prompt or output right below one."""
    for line in reversed(lines[: index + 1]):
        if not line.strip():
            return False
        if line.lstrip().startswith(">>> "):
            return True
    return False
