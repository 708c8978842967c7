from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.stop_strings import StopStrings

# A small alphabet, so that matches, overlaps and false starts are frequent.
TEXT = st.text(alphabet="ab<", max_size=30)
STOPS = st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=4)


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """By the definition: look at each prefix of the text until one ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher, shown = StopStrings(stops), ""
    for piece in pieces:
        text, stopped = matcher.push(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + matcher.flush(), False


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 30)))
def test_any_chunking_finds_the_match_complete_first(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert run(pieces, stops) == expected(text, stops)


@given(text=TEXT, stops=STOPS)
def test_nothing_that_may_begin_a_stop_is_shown(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown, stopped = matcher.push(text)
    assert not any(stop in shown for stop in stops)
    if not stopped:
        beginnings = [stop[:n] for stop in stops for n in range(1, len(stop))]
        possible = [len(b) for b in beginnings if text.endswith(b)]
        assert len(text) - len(shown) == max(possible, default=0)


@pytest.mark.parametrize(
    ("stops", "shown"),
    [(["</answer>", "\n"], "one"), (["b", "ab"], "one\nx"), (["\nxab"], "one")],
)
def test_of_several_matches(stops: list[str], shown: str) -> None:
    assert StopStrings(stops).push("one\nxab</answer>") == (shown, True)


def test_false_start_is_released() -> None:
    matcher = StopStrings(["</end>"])
    assert matcher.push("x</en") == ("x", False)
    assert matcher.push("t>") == ("</ent>", False)
    assert matcher.flush() == ""
