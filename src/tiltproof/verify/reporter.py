"""Progress reports."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from tiltproof.verify.results import ImageResult, Progress, RangeResult, Verdict
from tiltproof.verify.state import Search


class Reporter:
    """Counts finished batches and the current search, and passes a `Progress` to the callback, if there is one."""

    def __init__(
        self,
        images: int,
        callback: Callable[[Progress], None] | None = None,
        ranges: bool = False,
        began: float | None = None,
    ) -> None:
        """``began``: start of the run by `time.perf_counter`; by default now."""
        self.images, self.callback, self.ranges = images, callback, ranges
        self.began = time.perf_counter() if began is None else began
        self.verdicts: Counter[Verdict] = Counter()
        self.boxes = self.earlier = 0
        self.search: Search | None = None

    def resumed(self, results: Sequence[ImageResult | RangeResult]) -> None:
        """Count the results of an earlier process; they took none of this one's time."""
        self.earlier = len(results)
        self.verdicts.update(result.verdict for result in results)

    def attacking(self) -> None:
        self._say("attack")

    def proving(self, search: Search) -> None:
        self.search = search
        self.report()

    def finished(self, results: Sequence[ImageResult | RangeResult]) -> None:
        """Count a finished batch."""
        self.search = None
        self.verdicts.update(result.verdict for result in results)
        self.boxes += sum(result.boxes for result in results)
        self.report()

    def report(self) -> None:
        self._say("prove")

    def _say(self, phase: str) -> None:
        if self.callback is None:
            return
        counts, boxes = self.verdicts.copy(), self.boxes
        if self.search is not None:
            counts.update(self.search.spec.tally(self.search.state))
            boxes += int(self.search.state.boxes.sum())
        seconds, done = time.perf_counter() - self.began, counts.total()
        here = done - self.earlier
        self.callback(
            Progress(
                images=self.images,
                done=done,
                certified=counts[Verdict.CERTIFIED],
                falsified=counts[Verdict.FALSIFIED],
                unknown=counts[Verdict.UNKNOWN],
                misclassified=counts[Verdict.MISCLASSIFIED],
                boxes=boxes,
                seconds=seconds,
                phase=phase,
                seconds_left=seconds * (self.images - done) / here if here and phase == "prove" else None,
                ranges=self.ranges,
            )
        )
