"""Acceptance length and speed of the pair in running servers, over their HTTP interface."""

import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from demo.prompts import Prompt, read

SPLITS = ("trained", "held_out", "off_topic")
MAX_TOKENS = 448


@dataclass
class Sum:
    """What one server's answers of one split add up to."""

    prompts: int = 0
    refused: int = 0
    tokens: int = 0
    steps: int = 0
    accepted: int = 0
    seconds: float = 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification step, the bonus included; 1 where nothing was drafted."""
        return 1 + self.accepted / max(1, self.steps)

    @property
    def speed(self) -> float:
        """Tokens per second, the prompt's time included."""
        return self.tokens / self.seconds if self.seconds else 0.0


Sums = dict[str, Sum]


def run(urls: list[str], limit: int | None, console: Console) -> None:
    """Asks every server all prompts, one at a time, at temperature 0 and at 1.

    Several servers take turns at each prompt, so that their speeds come from one run; the last
    column is a server's speed over the last server's.
    """
    columns = "server", "T", "split", "prompts", "refused", "AL", "tokens", "tokens/s", "ratio"
    table = Table(*columns, title="AL: acceptance length, T: temperature")
    clients = [httpx.Client(base_url=url, timeout=120) for url in urls]
    for temperature in (0.0, 1.0):
        results = _ask_all(clients, temperature, limit, console)
        for url, sums in zip(urls, results, strict=True):
            for split, one in sums.items():
                row = _cells(one, results[-1][split])
                table.add_row(url, f"{temperature:g}", split, *row)
    console.print(table)


def _ask_all(
    clients: list[httpx.Client], temperature: float, limit: int | None, console: Console
) -> list[Sums]:
    results: list[Sums] = [defaultdict(Sum) for _ in clients]
    models = [_model(client) for client in clients]
    chosen = [p for s in SPLITS for p in islice(_of_split(s), limit)]
    for prompt in track(chosen, f"Temperature {temperature:g}", console=console):
        for client, model, sums in zip(clients, models, results, strict=True):
            start = time.perf_counter()
            reply = _ask(client, model, prompt, temperature)
            _add(sums[prompt["split"]], reply, time.perf_counter() - start)
    return results


def _of_split(split: str) -> list[Prompt]:
    return [prompt for prompt in read() if prompt["split"] == split]


def _model(client: httpx.Client) -> str:
    return str(client.get("/v1/models").raise_for_status().json()["data"][0]["id"])


def _ask(
    client: httpx.Client, model: str, prompt: Prompt, temperature: float
) -> dict[str, Any] | None:
    """The reply; None where the server refuses a parameter of the prompt (tools, say)."""
    request: dict[str, Any] = {
        "model": model,
        "temperature": temperature,
        "seed": 0,
        "max_tokens": MAX_TOKENS,
        "stream": False,
        **{k: prompt[k] for k in ("messages", "tools", "chat_template_kwargs") if k in prompt},
    }
    reply = client.post("/v1/chat/completions", json=request)
    if reply.status_code == httpx.codes.BAD_REQUEST:
        return None
    found: dict[str, Any] = reply.raise_for_status().json()
    return found


def _add(one: Sum, reply: dict[str, Any] | None, seconds: float) -> None:
    one.prompts += 1
    if reply is None:
        one.refused += 1
        return
    speculation = (reply.get("metrics") or {}).get("speculative_decoding", {})
    one.tokens += reply["usage"]["completion_tokens"]
    one.steps += speculation.get("num_spec_steps", 0)
    one.accepted += speculation.get("num_accepted_draft_tokens", 0)
    one.seconds += seconds


def _cells(one: Sum, last: Sum) -> list[str]:
    return [
        str(one.prompts),
        str(one.refused),
        f"{one.acceptance_length:.2f}",
        str(one.tokens),
        f"{one.speed:.0f}",
        f"{one.speed / last.speed:.2f}" if last.speed else "",
    ]
