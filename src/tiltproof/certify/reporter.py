"""Tells the caller how far a run has come."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tiltproof.certify.ledger import Ledger
from tiltproof.certify.verdict import Progress, Verdict


class Reporter:
    """Turns the search's state into `Progress` and hands it to the caller's function, if there is one."""

    def __init__(self, images: int, began: float, callback: Callable[[Progress], None] | None) -> None:
        self.images, self.began, self.callback = images, began, callback

    def attacking(self) -> None:
        if self.callback is not None:
            self.callback(Progress(self.images, 0, 0, 0, 0, 0, 0, time.perf_counter() - self.began, "attack"))

    def proving(self, search: Ledger) -> None:
        self.search = search
        self.start = time.perf_counter()
        self.to_prove = len(search.attacker.alive())
        self.report()

    def report(self) -> None:
        if self.callback is None:
            return
        attacker = self.search.attacker
        counts = Counter(self.search.settled.values())
        wrong, falsified = int((~attacker.correct).sum()), int(attacker.falsified.sum())
        left_to_prove = len(attacker.alive()) - counts.total()
        spent, finished = time.perf_counter() - self.start, self.to_prove - left_to_prove
        self.callback(
            Progress(
                images=self.images,
                done=counts.total() + falsified + wrong,
                certified=counts[Verdict.CERTIFIED],
                falsified=falsified,
                unknown=counts[Verdict.UNKNOWN],
                misclassified=wrong,
                boxes=int(self.search.boxes.sum()),
                seconds=time.perf_counter() - self.began,
                phase="prove",
                seconds_left=spent * left_to_prove / finished if finished else None,
            )
        )
