"""`python -m demo`: builds, trains and measures the demo pair."""

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console

from demo import checkpoint, corpus, evaluate, prompts, tokenizer, training
from demo.decoding import Decoder
from demo.generation import own_answers
from demo.measuring import measure, save_answers
from demo.model import Drafter, Target
from demo.training import DEVICE, Plan

CONSOLE = Console(width=100, soft_wrap=True)
HERE = Path(__file__).parent
CHATS = corpus.BUILD / "chats.safetensors"


def main() -> None:
    arguments = _parser().parse_args()
    match arguments.command:
        case "prompts":
            CONSOLE.print(f"{prompts.write()} prompts")
        case "corpus":
            kept = arguments.models / "target" if arguments.keep_tokenizer else None
            corpus.build(CONSOLE, kept)
        case "train":
            _train(arguments)
        case "measure":
            _measure(arguments.models)
        case "evaluate":
            evaluate.run(arguments.urls, arguments.limit, CONSOLE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prompts", help="choose the evaluation prompts")
    build = commands.add_parser("corpus", help="tokenizer and chats from the standard library")
    build.add_argument("--keep-tokenizer", action="store_true", help="that of the trained target")
    train = commands.add_parser("train", help="train both models, or the drafter alone")
    train.add_argument("what", choices=["pair", "drafter"])
    train.add_argument("--resume", action="store_true", help="the pair from where it stands")
    train.add_argument("--steps", type=int, default=Plan.steps, help="at most")
    train.add_argument("--minutes", type=float, default=Plan.minutes, help="at most")
    for name, kind in (("rows", int), ("anchors", int), ("lr", float), ("draft-weight", float)):
        default = getattr(Plan, name.replace("-", "_"))
        train.add_argument(f"--{name}", type=kind, default=default)
    commands.add_parser("measure", help="acceptance length with the plain decoder")
    run = commands.add_parser("evaluate", help="acceptance length over HTTP")
    run.add_argument(
        "urls", metavar="URL", nargs="+",
        help="of OpenAI-compatible servers, such as http://127.0.0.1:8000",
    )  # fmt: skip
    run.add_argument("--limit", type=int, default=None, help="prompts of each split")
    for command in commands.choices.values():
        command.add_argument("--models", type=Path, default=HERE, help="folder of both models")
    return parser


def _train(given: argparse.Namespace) -> None:
    options = ("steps", "minutes", "rows", "anchors", "lr", "draft_weight")
    plan = Plan(**{name: getattr(given, name) for name in options})
    if given.what == "pair":
        _train_pair(plan, given.models, given.resume)
    else:
        _train_drafter(plan, given.models)
    _measure(given.models)


def _train_pair(plan: Plan, models: Path, resume: bool) -> None:
    size = len(tokenizer.load(corpus.BUILD / "tokenizer"))
    target, drafter = _load(models) if resume else training.new_pair(size, plan.seed)
    training.train(target, drafter, corpus.Corpus.load(CHATS), plan, CONSOLE)
    checkpoint.save_target(target, models / "target", corpus.BUILD / "tokenizer")
    checkpoint.save_drafter(drafter, target, models / "drafter")


def _train_drafter(plan: Plan, models: Path) -> None:
    target, drafter = _load(models)
    training.freeze(target)
    questions = json.loads((corpus.BUILD / "questions.json").read_text())
    own = own_answers(_decoder(target, drafter), questions, CONSOLE)
    chats = training.join(corpus.Corpus.load(CHATS), own)
    training.train(target, drafter, chats, plan, CONSOLE)
    checkpoint.save_drafter(drafter, target, models / "drafter")


def _measure(models: Path) -> None:
    """Reads the models back from disk: what is measured is what is served, bf16 and all."""
    decoder = _decoder(*_load(models))
    rows = json.loads((corpus.BUILD / "prompts.json").read_text())
    words = tokenizer.load(models / "target")
    measure(decoder, rows, words, CONSOLE)
    save_answers(decoder, rows, words, corpus.BUILD / "answers.json")


def _load(models: Path) -> tuple[Target, Drafter]:
    target = checkpoint.load_target(models / "target", DEVICE)
    return target, checkpoint.load_drafter(models / "drafter", DEVICE)


def _decoder(target: Target, drafter: Drafter) -> Decoder:
    torch.set_float32_matmul_precision("high")
    return Decoder(target, drafter, checkpoint.MASK, checkpoint.END)


if __name__ == "__main__":
    main()
