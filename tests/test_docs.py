"""What the documents and configurations name exists.

A word in backticks is a path of this checkout if it begins with one of the top-level folders and
a slash, or if it contains a slash and ends in .py, .toml or .md. ``{a,b}`` and ``*`` expand. In
fenced blocks only ``scripts/…`` counts: they may name files that the reader is to make.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.config import load_config

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TREE = re.compile(r"^```text\n(server/.*?)^```", re.MULTILINE | re.DOTALL)
PATH = re.compile(
    r"((server|engine|kernels|configs|loadtest|demo|tests|docs|scripts|\.ci)/[\w.,{}*/-]*"
    r"|[\w.,{}*-]+/[\w.,{}*/-]*\.(py|toml|md))"
)
SCRIPT = re.compile(r"(?<![\w/.-])scripts/[\w.-]+")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def expand(pattern: str) -> Iterator[str]:
    """The alternatives of a pattern with braces: ``a/{b,c}.py`` gives ``a/b.py`` and ``a/c.py``."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if not braces:
        yield pattern
        return
    for choice in braces[1].split(","):
        yield from expand(pattern[: braces.start()] + choice + pattern[braces.end() :])


def named_paths(text: str) -> Iterator[str]:
    for fenced in FENCE.findall(text):
        yield from SCRIPT.findall(fenced)
    for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        for word in re.sub(r",(?=\s)", "", code).split():
            path = word.partition("::")[0].partition("#")[0]
            if PATH.fullmatch(path):
                yield from expand(path)


def tree_entries(text: str) -> Iterator[str]:
    """Paths in the annotated tree: the first word of each line, indented by two per level."""
    parents: list[str] = []
    for line in TREE.findall(text)[0].splitlines():
        entry = re.match(r"((?:  )*)([\w.-]+/?)(?:  |$)", line)
        if entry:
            parents[len(entry[1]) // 2 :] = [entry[2]]
            yield "".join(parents)


def exists(pattern: str) -> bool:
    return any(ROOT.glob(pattern))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_named_paths_exist(document: Path) -> None:
    missing = sorted({p for p in named_paths(document.read_text("utf-8")) if not exists(p)})
    assert not missing, f"{relative(document)} names what does not exist: {missing}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_relative_links_resolve(document: Path) -> None:
    links = LINK.findall(FENCE.sub("", document.read_text("utf-8")))
    files = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]
    missing = [file for file in files if not (document.parent / file).exists()]
    assert not missing, f"{relative(document)} links to what does not exist: {missing}"


def test_tree_of_the_readme_exists() -> None:
    entries = list(tree_entries((ROOT / "README.md").read_text("utf-8")))
    assert entries
    assert [entry for entry in entries if not exists(entry)] == []


@pytest.mark.parametrize("path", CONFIGS, ids=relative)
def test_config_is_valid(path: Path) -> None:
    load_config(path, [])


def test_rule_for_paths() -> None:
    text = (
        "`engine/{a,b}.py`, `scripts/x demo/y.toml --port 1` and `made/up.md` but not `z-lab/Qwen3`"
        " `/v1/models` `top_p` `engine/<name>.py`\n```sh\nscripts/serve my/own.toml\n```\n"
    )
    assert list(named_paths(text)) == [
        "scripts/serve",
        "engine/a.py",
        "engine/b.py",
        "scripts/x",
        "demo/y.toml",
        "made/up.md",
    ]


def test_rule_for_trees() -> None:
    text = "```text\nserver/    the server\n  app.py   routes,\n           more\nLICENSE\n```\n"
    assert list(tree_entries(text)) == ["server/", "server/app.py", "LICENSE"]
