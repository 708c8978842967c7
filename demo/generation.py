"""The target's own answers, as training text for the drafter."""

from rich.console import Console
from rich.progress import track

from demo.corpus import Corpus, Encoded
from demo.decoding import Decoder

TOGETHER = 512
MAX_TOKENS = 300


def own_answers(decoder: Decoder, questions: list[list[int]], console: Console) -> Corpus:
    """Answers, half greedy and half sampled; the drafter in the decoder only makes it faster."""
    chats: list[Encoded] = []
    for start in track(range(0, len(questions), TOGETHER), "Generating", console=console):
        part = questions[start : start + TOGETHER]
        temperature = float(start // TOGETHER % 2)
        for question, decoded in zip(part, decoder(part, MAX_TOKENS, temperature), strict=True):
            marks = [0] * len(question) + [1] * len(decoded.tokens)
            chats.append((question + decoded.tokens, marks))
    return Corpus.of(chats)
