"""How many drafts the next step should propose: the width that emits most tokens a second.

More drafts cost time whether they are accepted or not. What they bring is estimated from the
acceptance of late, what they cost from the times of steps of late; the output does not depend on
the choice.
"""

from collections.abc import Sequence

# Weight of the newest observation: a choice follows a change of subject within some ten steps.
_RATE = 0.1
# Drafts that are not proposed are not observed. Their estimate drifts to that of the last one that
# is, so that a run of acceptances makes the width grow again.
_DRIFT = 0.01
_PRIOR = 0.8
_WIDTHS = (0, 2, 3, 5, 7, 11)
_TRIAL_INTERVAL = 32
_OUTLIER = 2.5


class _StepTime:
    """Seconds of a step as a line over its rows: least squares that forgets."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0

    def observe(self, rows: int, seconds: float, slope: float) -> None:
        """One step of ``rows`` tokens."""
        if self._weight:
            expected = self.predict(rows, slope)
            # A pause of the machine says nothing about the work. Being late is an accident, being
            # early is not: then what was remembered was the accident.
            seconds = min(seconds, _OUTLIER * expected)
            self._decay(0.1 if _OUTLIER * seconds < expected else 1 - _RATE / 4)
        self._weight += 1
        self._rows += rows
        self._seconds += seconds
        self._squares += rows * rows
        self._products += rows * seconds

    def _decay(self, keep: float) -> None:
        self._weight *= keep
        self._rows *= keep
        self._seconds *= keep
        self._squares *= keep
        self._products *= keep

    @property
    def slope(self) -> float:
        """Seconds per row; 0 while all steps had the same number of rows."""
        if not self._weight:
            return 0.0
        mean_rows, mean = self._rows / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - mean_rows**2
        covariance = self._products / self._weight - mean_rows * mean
        # Noise must not make more work seem cheaper.
        return max(covariance / variance, 0.0) if variance > 1e-6 else 0.0

    def predict(self, rows: int, slope: float) -> float:
        """Expected seconds at ``slope`` per row, after at least one observation."""
        mean_rows, mean = self._rows / self._weight, self._seconds / self._weight
        return max(mean + slope * (rows - mean_rows), mean * 0.05)


class WidthController:
    """Chooses the number of drafts for each step, from 0 to ``max_drafts``."""

    def __init__(self, max_drafts: int) -> None:
        self.max_drafts = max_drafts
        self.chosen = max_drafts
        self._candidates = [*(n for n in _WIDTHS if n < max_drafts), max_drafts]
        # What is never tried is never known: a line through one point has no slope.
        self._first = [max_drafts, 0, min(3, max_drafts)]
        self._num_steps = 0
        self._accepted = [_PRIOR] * max_drafts
        self._plain, self._speculative = _StepTime(), _StepTime()

    def choose(self, batch_size: int) -> int:
        """Drafts per request for a step of ``batch_size`` requests."""
        if self._first:
            self.chosen = self._first[0]
        elif self._num_steps % _TRIAL_INTERVAL == 0:
            self.chosen = self._trial(self._num_steps // _TRIAL_INTERVAL)
        else:
            self.chosen = max(self._candidates, key=lambda n: self._speed(batch_size, n))
        return self.chosen

    def _trial(self, number: int) -> int:
        """Plain steps, and in between the other widths in turn."""
        turn, plain = divmod(number, 2)
        return 0 if plain else self._candidates[turn % len(self._candidates)]

    def expected_tokens(self, drafts: int) -> float:
        """Tokens that a step with so many drafts is expected to emit, for one request."""
        total, reached = 1.0, 1.0
        for rate in self._accepted[:drafts]:
            reached *= rate
            total += reached
        return total

    def observe(
        self, drafts: int, accepted: Sequence[tuple[int, bool]], seconds: float | None
    ) -> None:
        """What a step brought and the time it took; None if other work is in that time.

        ``accepted``: for each request its accepted drafts, and whether the request ended there, so
        that the draft behind them was not put to the test.
        """
        self._num_steps += 1
        if seconds is not None:
            if self._first and self._first[0] == drafts:
                del self._first[0]
            rows = len(accepted) * (drafts + 1)
            self._model(drafts).observe(rows, max(seconds, 1e-6), self._slope)
        for count, ended in accepted:
            self._observe_acceptance(count if ended else min(count + 1, drafts), count)
        anchor = self._accepted[drafts - 1] if drafts else _PRIOR
        for position in range(drafts, self.max_drafts):
            self._accepted[position] += _DRIFT * (anchor - self._accepted[position])

    def _observe_acceptance(self, tested: int, count: int) -> None:
        """Of the ``tested`` drafts the first ``count`` were accepted."""
        for position in range(tested):
            hit = position < count
            self._accepted[position] += _RATE * (hit - self._accepted[position])

    def _model(self, drafts: int) -> _StepTime:
        return self._speculative if drafts else self._plain

    @property
    def _slope(self) -> float:
        """A row costs the same in both; only speculative steps have different numbers of them."""
        return self._speculative.slope

    def _speed(self, batch_size: int, drafts: int) -> float:
        seconds = self._model(drafts).predict(batch_size * (drafts + 1), self._slope)
        return self.expected_tokens(drafts) / seconds
