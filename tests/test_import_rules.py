"""Who may import what. Reads the sources' syntax trees; nothing is imported or run.

Every ``import`` counts, also inside functions and under ``TYPE_CHECKING``: what a module needs
for its types, it depends on. Tests may import what they test.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"server", "engine", "kernels", "loadtest", "demo", "tests"}

# Which of our modules a folder may import, besides itself. Folders not named here: anything
# except the folders in PRIVATE.
MAY_IMPORT = {
    "server": {"engine.config", "engine.messages", "engine.client", "engine.launch"},
    "engine": {"kernels"},
    "kernels": set[str](),
    "loadtest": set[str](),
    "tests": OURS,
}
PRIVATE = {"tests", "demo", "loadtest"}
THIRD_PARTY_OF_KERNELS = {"torch", "triton"}
STANDARD_LIBRARY = set(sys.stdlib_module_names)

TORCH_FREE = ["server"] + [
    f"engine.{name}"
    for name in (
        "config",
        "messages",
        "client",
        "launch",
        "scheduler",
        "pages",
        "prefix_cache",
        "request",
    )
]
TENSOR_CODE = re.compile(
    r"(torch|triton|kernels|safetensors\.torch)(\.|$)"
    r"|transformers\.(models|modeling_\w+|generation|(TF|Flax)?AutoModel\w*|\w+(Model|For[A-Z]\w+))"
    r"(\.|$)"
)
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib"}
UNSAFE_LOADS = {f"torch.{name}" for name in ("load", "serialization.load", "hub.load", "jit.load")}
UNSAFE_FLAGS = {"trust_remote_code", "allow_pickle"}
SHAPELESS_NAMES = {"utils", "helpers", "common"}


def tree_sources() -> dict[str, str]:
    """Every Python file of the checkout, by its path."""
    folders = [d for d in ROOT.iterdir() if d.is_dir() and not d.name.startswith(".")]
    paths = [*ROOT.glob("*.py"), *(path for d in folders for path in d.rglob("*.py"))]
    named = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in sorted(named.items())
        if not name.startswith("demo/build/")
    }


def module_name(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


def top_of(name: str) -> str:
    return name.partition(".")[0]


def within(module: str, ancestor: str) -> bool:
    return module == ancestor or module.startswith(ancestor + ".")


def imported_names(tree: ast.Module, path: str) -> Iterator[str]:
    """Absolute dotted names that a file imports; ``from a import b`` gives ``a.b``."""
    package = PurePosixPath(path).parent.parts
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else ()
                prefix = ".".join([*base, *([module] if module else [])])
                yield from (f"{prefix}.{alias.name}".removesuffix(".*") for alias in names)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(
                func
            ) in {"__import__", "import_module", "importlib.import_module"}:
                yield name
            case ast.Attribute() if (name := ast.unparse(node)).startswith("transformers."):
                yield name


class Tree:
    """The parsed files and what each of them imports."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources = sources
        self.parsed = {path: ast.parse(text, path) for path, text in sources.items()}
        self.path_of = {module_name(path): path for path in sources}
        self.names = {p: sorted(set(imported_names(t, p))) for p, t in self.parsed.items()}

    def violations(self) -> list[str]:
        return [
            f"{path}: {problem}"
            for path in self.sources
            for rule in (self.directions, self.torch_freedom, self.safety, self.shape)
            for problem in rule(path)
        ]

    def directions(self, path: str) -> Iterator[str]:
        folder = PurePosixPath(path).parts[0]
        allowed = MAY_IMPORT.get(folder, OURS - PRIVATE)
        for name in self.names[path]:
            top = top_of(name)
            if top in OURS:
                if not any(within(name, other) for other in (folder, *allowed)):
                    yield f"imports {name}; of ours, {folder}/ may import {sorted(allowed)}"
            elif folder == "kernels" and top not in THIRD_PARTY_OF_KERNELS | STANDARD_LIBRARY:
                yield f"imports {name}; kernels/ may import {sorted(THIRD_PARTY_OF_KERNELS)}"

    def torch_freedom(self, path: str) -> Iterator[str]:
        if any(within(module_name(path), free) for free in TORCH_FREE):
            chain = self.way_to_tensors(path, {path})
            if chain:
                yield "must stay free of tensor code: " + " → ".join([path, *chain])

    def way_to_tensors(self, path: str, seen: set[str]) -> list[str]:
        for name in self.names[path]:
            if TENSOR_CODE.match(name):
                return [name]
        for neighbour in self.neighbours(path):
            if neighbour not in seen:
                seen.add(neighbour)
                chain = self.way_to_tensors(neighbour, seen)
                if chain:
                    return [neighbour, *chain]
        return []

    def neighbours(self, path: str) -> list[str]:
        """Our files that importing this one runs: its imports, and the packages they lie in."""
        dotted = [name.split(".") for name in self.names[path]]
        modules = {".".join(parts[:end]) for parts in dotted for end in range(1, len(parts) + 1)}
        return sorted(self.path_of[module] for module in modules & self.path_of.keys())

    def safety(self, path: str) -> Iterator[str]:
        for name in self.names[path]:
            if top_of(name) in UNSAFE_MODULES or name in UNSAFE_LOADS:
                yield f"imports {name}, which runs code out of data; use safetensors or msgspec"
        for node in ast.walk(self.parsed[path]):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_LOADS:
                yield f"line {node.lineno}: torch.load runs code out of data; use safetensors"
            if (
                isinstance(node, ast.keyword)
                and node.arg in UNSAFE_FLAGS
                and not (isinstance(node.value, ast.Constant) and node.value.value is False)
            ):
                yield f"line {node.value.lineno}: {node.arg} runs code out of checkpoints"

    def shape(self, path: str) -> Iterator[str]:
        for part in PurePosixPath(path).with_suffix("").parts:
            if part in SHAPELESS_NAMES:
                yield f"'{part}' names no concept; name the file after what is in it"
        if path == "kernels/__init__.py" and self.sources[path].strip():
            yield "must stay empty: transformers imports a package of this name to read its version"


def test_tree_keeps_the_rules() -> None:
    sources = tree_sources()
    assert "engine/config.py" in sources
    problems = Tree(sources).violations()
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("path", "source", "problem"),
    [
        ("server/app.py", "from engine.worker import run", "imports engine.worker"),
        ("server/app.py", "from engine import worker", "imports engine.worker"),
        ("server/app.py", "import engine", "imports engine;"),
        ("server/app.py", "import kernels.rope", "imports kernels.rope"),
        ("server/app.py", "def f():\n    import engine.worker", "imports engine.worker"),
        ("server/app.py", "import importlib\nimportlib.import_module('demo.x')", "imports demo.x"),
        ("server/deep/x.py", "from ...engine import worker", "imports engine.worker"),
        ("engine/step.py", "from server import app", "imports server.app"),
        ("engine/step.py", "from demo.modules import CORE", "imports demo.modules"),
        ("engine/step.py", "from tests import fakes", "imports tests"),
        ("demo/train.py", "import loadtest.client", "imports loadtest.client"),
        ("tools/x.py", "import tests.fakes", "imports tests.fakes"),
        ("loadtest/client.py", "from engine.messages import Output", "imports engine.messages"),
        ("kernels/rope/triton.py", "import numpy as np", "imports numpy"),
        ("kernels/rope/triton.py", "from engine.config import DType", "imports engine.config"),
        ("engine/scheduler.py", "import torch", "tensor code: engine/scheduler.py → torch"),
        ("engine/pages.py", "from torch import Tensor", "→ torch.Tensor"),
        ("server/app.py", "def f():\n    import torch.nn", "→ torch.nn"),
        ("server/text.py", "from transformers import AutoModelForCausalLM", "→ transformers.Auto"),
        (
            "server/text.py",
            "import transformers\ntransformers.Qwen3ForCausalLM",
            "→ transformers.Q",
        ),
        ("server/text.py", "from transformers.models.qwen3 import x", "→ transformers.models"),
        ("engine/config.py", "from safetensors.torch import load_file", "→ safetensors.torch"),
        ("engine/request.py", "from engine import worker", "request.py → engine/worker.py → torch"),
        ("engine/client.py", "import engine.chain", "chain.py → engine/worker.py → torch"),
        ("demo/train.py", "import pickle", "imports pickle"),
        ("demo/train.py", "from pickle import loads", "imports pickle.loads"),
        ("demo/train.py", "import torch\ntorch.load('x')", "line 2: torch.load"),
        ("demo/train.py", "from torch import load", "imports torch.load"),
        ("tests/test_x.py", "f(trust_remote_code=True)", "trust_remote_code"),
        ("tests/test_x.py", "f(trust_remote_code=flag)", "trust_remote_code"),
        ("kernels/__init__.py", "VERSION = 1", "must stay empty"),
        ("engine/utils.py", "", "names no concept"),
        ("tests/helpers.py", "", "names no concept"),
        ("server/common/x.py", "", "names no concept"),
    ],
)
def test_violation_is_found(path: str, source: str, problem: str) -> None:
    around = {"engine/worker.py": "import torch", "engine/chain.py": "from . import worker"}
    found = Tree({**around, path: source}).violations()
    assert any(line.startswith(path) and problem in line for line in found), found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("server/app.py", "from engine.client import EngineClient\nfrom engine import config"),
        ("server/app.py", "from server import streaming\nfrom . import streaming"),
        ("server/text.py", "from transformers import AutoTokenizer\nimport numpy"),
        ("engine/worker.py", "import torch\nfrom kernels.rope import triton\nimport transformers"),
        ("engine/scheduler.py", "from engine.pages import Pages\nfrom engine.request import R"),
        ("kernels/rope/triton.py", "import math\nimport triton.language as tl\nfrom . import x"),
        ("demo/train.py", "from engine.config import ConfigError\nfrom demo import modules"),
        ("tests/test_demo.py", "from demo import modules\nimport loadtest\nimport torch"),
        ("demo/data.py", "NAMES = 'pickle torch.load'\nf(trust_remote_code=False)"),
        ("loadtest/client.py", "import asyncio\nimport httpx"),
    ],
)
def test_allowed_import_is_not_reported(path: str, source: str) -> None:
    around = {"engine/config.py": "import pydantic", "engine/client.py": "import zmq"}
    assert Tree({**around, path: source}).violations() == []
