"""Acceptance length and word-for-word accuracy of the pair, measured by the plain decoder."""

import difflib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerFast

from demo.decoding import Decoded, Decoder

MAX_TOKENS = 448
Row = dict[str, Any]


def measure(
    decoder: Decoder, rows: list[Row], tokenizer: PreTrainedTokenizerFast, console: Console
) -> dict[str, float]:
    """Prints a table for each temperature; returns acceptance lengths by "split temperature"."""
    figures: dict[str, float] = {}
    for temperature in (0.0, 1.0):
        answers = decoder([row["ids"] for row in rows], MAX_TOKENS, temperature)
        console.print(_table(rows, answers, tokenizer, temperature))
        for split in ("trained", "held_out", "off_topic"):
            chosen = [a for r, a in zip(rows, answers, strict=True) if r["split"] == split]
            figures[f"{split} {temperature:g}"] = acceptance_length(chosen)
    return figures


def save_answers(
    decoder: Decoder, rows: list[Row], tokenizer: PreTrainedTokenizerFast, path: Path
) -> None:
    """The greedy answers as text, to be read by a person."""
    answers = decoder([row["ids"] for row in rows], MAX_TOKENS)
    lines = [{**row, "ids": None, "answer": tokenizer.decode(a.tokens), "steps": a.steps}
             for row, a in zip(rows, answers, strict=True)]  # fmt: skip
    path.write_text(json.dumps(lines, indent=1))


def acceptance_length(answers: Sequence[Decoded]) -> float:
    """Tokens per step, the bonus included."""
    return 1 + sum(a.accepted for a in answers) / max(1, sum(a.steps for a in answers))


def similarity(reference: str, answer: str) -> float:
    """1 if word for word the same."""
    return difflib.SequenceMatcher(None, reference.split(), answer.split(), False).ratio()


def _table(
    rows: list[Row], answers: list[Decoded], tokenizer: PreTrainedTokenizerFast, temperature: float
) -> Table:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        for key in ("all", row["phrasing"], row["kind"]):
            groups[row["split"], key].append(index)
    table = Table("split", "kind", "prompts", "length", "similarity", "tokens", "unended",
                  title=f"temperature {temperature:g}")  # fmt: skip
    for (split, key), members in groups.items():
        chosen = [answers[i] for i in members]
        alike = [_likeness(rows[i], answers[i], tokenizer) for i in members]
        table.add_row(
            split,
            key,
            str(len(members)),
            f"{acceptance_length(chosen):.2f}",
            f"{sum(alike) / len(alike):.3f}" if rows[members[0]]["reference"] else "",
            f"{sum(len(a.tokens) for a in chosen) / len(chosen):.0f}",
            str(sum(len(a.tokens) >= MAX_TOKENS for a in chosen)),
        )
    return table


def _likeness(row: Row, answer: Decoded, tokenizer: PreTrainedTokenizerFast) -> float:
    text = tokenizer.decode(answer.tokens, skip_special_tokens=True)
    return similarity(row["reference"], str(text).split("</think>")[-1])
