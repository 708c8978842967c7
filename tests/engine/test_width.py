"""The width controller on simulated steps: it finds the width that emits most tokens a second."""

import random

import pytest

from engine.width import WidthController

FIXED, PER_ROW, PLAIN = 0.006, 0.0009, 0.006


def seconds(batch: int, drafts: int) -> float:
    """A step's time: a fixed part (with the drafter: twice) and a part for each row."""
    return PLAIN + (FIXED if drafts else 0) + PER_ROW * batch * (drafts + 1)


def simulate(
    controller: WidthController,
    rate: float,
    batch: int,
    steps: int,
    seed: int = 0,
    pauses: float = 0,
) -> float:
    """Run steps in which each next draft is accepted with probability ``rate``: tokens a second,
    without the time of the ``pauses``, the share of steps in which the machine does something else.
    """
    chance = random.Random(seed)
    tokens, time = 0, 0.0
    for _ in range(steps):
        drafts = controller.choose(batch)
        counts = []
        for _ in range(batch):
            count = 0
            while count < drafts and chance.random() < rate:
                count += 1
            counts.append((count, False))
        spent = seconds(batch, drafts) * chance.uniform(0.9, 1.1)
        pause = chance.random() < pauses
        controller.observe(drafts, counts, spent + 0.3 * pause)
        tokens += sum(count + 1 for count, _ in counts)
        time += spent
    return tokens / time


def best_fixed(rate: float, batch: int) -> float:
    def speed(drafts: int) -> float:
        return batch * sum(rate**k for k in range(drafts + 1)) / seconds(batch, drafts)

    return max(speed(drafts) for drafts in range(16))


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.05, 0.4, 0.7, 0.9, 0.99])
def test_close_to_the_best_fixed_width(rate: float, batch: int) -> None:
    controller = WidthController(15)
    simulate(controller, rate, batch, 100)
    reached = simulate(controller, rate, batch, 600, seed=1)
    assert reached > 0.85 * best_fixed(rate, batch)


def test_follows_a_change_of_subject() -> None:
    controller = WidthController(15)
    simulate(controller, 0.97, 1, 200)
    assert controller.choose(1) >= 11
    simulate(controller, 0.05, 1, 60)
    assert controller.choose(1) <= 2
    simulate(controller, 0.97, 1, 200)
    assert controller.choose(1) >= 11


def test_an_end_is_no_rejection() -> None:
    """Answers of five full blocks that end in the middle of the sixth."""
    controller = WidthController(15)
    for step in range(120):
        drafts = controller.choose(1)
        ended = step % 6 == 5
        count = min(4, drafts) if ended else drafts
        controller.observe(drafts, [(count, ended)], seconds(1, drafts))
    assert controller.choose(1) == 15


@pytest.mark.parametrize("most", [1, 2, 3, 7, 15])
def test_never_more_than_there_are(most: int) -> None:
    controller = WidthController(most)
    for _ in range(300):
        drafts = controller.choose(3)
        assert 0 <= drafts <= most
        controller.observe(drafts, [(0, False), (drafts, True), (drafts // 2, False)], 0.01)


def test_a_clock_that_stands_still_does_no_harm() -> None:
    controller = WidthController(15)
    for _ in range(10):
        controller.observe(controller.choose(1), [(0, False)], 0.0)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_pauses_of_the_machine(rate: float) -> None:
    controller = WidthController(15)
    simulate(controller, rate, 1, 200, pauses=0.05)
    assert simulate(controller, rate, 1, 600, seed=1, pauses=0.05) > 0.75 * best_fixed(rate, 1)


@pytest.mark.parametrize("slow_step", [0, 1, 2])
def test_a_slow_start(slow_step: int) -> None:
    """Whichever of the first steps has an accident: it is forgotten."""
    controller = WidthController(15)
    for step in range(3):
        drafts = controller.choose(1)
        factor = 10 if step == slow_step else 1
        controller.observe(drafts, [(0, False)], factor * seconds(1, drafts))
    simulate(controller, 0.05, 1, 100)
    assert simulate(controller, 0.05, 1, 300, seed=1) > 0.85 * best_fixed(0.05, 1)


def test_from_many_requests_to_one() -> None:
    controller = WidthController(15)
    simulate(controller, 0.05, 16, 300)
    assert simulate(controller, 0.05, 1, 300, seed=1) > 0.8 * best_fixed(0.05, 1)


def test_times_with_other_work_in_them_do_not_count() -> None:
    controller = WidthController(15)
    for _ in range(50):
        drafts = controller.choose(1)
        controller.observe(drafts, [(drafts, False)], None)
    assert controller.choose(1) == 15
