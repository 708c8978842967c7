"""Fixtures over the bundled pair: its prompts, and one server for all tests."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.running_server import ROOT, RunningServer, run_server


@pytest.fixture(scope="session")
def demo_prompts() -> list[dict[str, Any]]:
    lines = (ROOT / "demo/prompts.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    # A fixed width, so that tests can count; other tests leave the choice to the server.
    with run_server("--set", "engine.num_draft_tokens=15") as running:
        yield running
