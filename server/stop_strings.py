"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string, which it swallows.

    The match that is *complete* first wins (what follows it was never asked for); of those that
    are complete at the same character, the longest. Text that may turn out to be the beginning of
    a stop string is withheld until that is known.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._withheld = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece; return the text to show and whether a stop string is complete."""
        text = self._withheld + text
        matches = [(start + len(s), start) for s in self._stops if (start := text.find(s)) >= 0]
        if matches:
            self._withheld = ""
            return text[: min(matches)[1]], True
        shown = len(text) - self._beginning_at_end(text)
        self._withheld = text[shown:]
        return text[:shown], False

    def flush(self) -> str:
        """The end: what was withheld was no stop string after all."""
        rest, self._withheld = self._withheld, ""
        return rest

    def _beginning_at_end(self, text: str) -> int:
        """Length of the longest suffix of ``text`` that a stop string begins with."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
