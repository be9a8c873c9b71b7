"""Seconds per stage of a proof and the amount of work, for `floor.py`: wraps the package's functions from outside.

A stage's seconds exclude those of the stages it calls; what belongs to no stage is search. Attack and tracing also
compute bounds, which count as theirs. On a GPU the clock waits for the device at every change of stage, so a watched
run is slower than a timed one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from floor_work import Counts, Tally

from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.network import margins, refine, run
from tiltproof.network.backward import BackwardPass
from tiltproof.pixels.api import pair_bounds
from tiltproof.pixels.coordinates import coordinates
from tiltproof.verify.attack import Attacker
from tiltproof.verify.branch_and_bound import PilotRuns
from tiltproof.verify.inputs import Inputs, check_inputs
from tiltproof.verify.prover import Prover

PACKAGE = "tiltproof"
STAGES = ("coordinates", "pixels", "forward", "backward", "attack", "reading", "search")
SEALED = {"attack", "reading"}


class Watch:
    """Seconds by stage, and two tallies of work: of the search, and of the pilots that choose where it starts."""

    def __init__(self, device: torch.device, counts: Counts, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.counts, self.clock = device, counts, clock
        self.seconds: Counter[str] = Counter()
        self.tallies = {"search": Tally(), "pilots": Tally()}
        self._stages, self._last, self._who = ["search"], 0.0, "search"
        self._bounding = False
        self._reached: dict[str, int] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the package's functions report here."""
        functions: list[tuple[Callable[..., Any], str, Callable[..., None] | None]] = [
            (coordinates, "coordinates", None),
            (pair_bounds, "pixels", self._saw_pixels),
            (run, "forward", self._saw_forward),
            (margins, "forward", None),
            (refine, "backward", self._saw_backward),
            (check_inputs, "reading", None),
        ]
        methods = [(Attacker, name, "attack") for name, _ in inspect.getmembers(Attacker, inspect.isfunction)]
        with ExitStack() as stack:

            def put(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
                stack.enter_context(mock.patch.object(owner, name, replacement))

            for function, stage, saw in functions:  # wherever it was imported to
                for module in [each for name, each in sys.modules.items() if name.split(".")[0] == PACKAGE]:
                    for name in [name for name, value in vars(module).items() if value is function]:
                        put(module, name, self._wrapped(function, stage, saw))
            for owner, name, stage in [*methods, (Inputs, "network_as", "reading")]:
                put(owner, name, self._wrapped(getattr(owner, name), stage, None))
            put(AffineForm, "to", self._wrapped_to(AffineForm.to))
            put(Prover, "bound", self._wrapped_bound(Prover.bound))
            put(PilotRuns, "run", self._wrapped_pilots(PilotRuns.run))
            put(BackwardPass, "step", self._wrapped_step(BackwardPass.step))
            self._last = self._now()
            try:
                yield
            finally:
                self._switch()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()

    def _switch(self) -> None:
        now = self._now()
        self.seconds[self._stages[-1]] += now - self._last
        self._last = now

    def _wrapped(self, function: Callable[..., Any], stage: str, saw: Callable[..., None] | None) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if self._stages[-1] in SEALED:
                return function(*arguments, **options)
            self._switch()
            self._stages.append(stage)
            try:
                result = function(*arguments, **options)
            finally:
                self._switch()
                self._stages.pop()
            if saw is not None and self._bounding:
                saw(result, *arguments, **options)
            return result

        return call

    def _wrapped_to(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Rounding the pixels' forms to the network's dtype belongs to them; other conversions to whatever makes them."""
        counted = self._wrapped(method, "pixels", None)
        return lambda *arguments: (counted if self._stages[-1] == "search" else method)(*arguments)

    def _wrapped_bound(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(
            prover: Any, images: Any, low: Any, high: Any, policy: Any, dtype: torch.dtype | None = None, *more: Any
        ) -> Any:
            self._dtype, self._bounding = str(dtype or prover.dtype).removeprefix("torch."), True
            try:
                result = method(prover, images, low, high, policy, dtype, *more)
            finally:
                self._bounding = False
            self._tally.pairs[self._dtype] += len(images)
            return result

        return call

    def _wrapped_pilots(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            self._who = "pilots"
            try:
                return method(*arguments, **options)
            finally:
                self._who = "search"

        return call

    @property
    def _tally(self) -> Tally:
        return self.tallies[self._who]

    def _saw_pixels(self, form: AffineForm, *_: Any, **__: Any) -> None:
        self.counts.add_pixels(self._tally, len(form), form.symbols, self._dtype)

    def _saw_forward(self, forms: dict[str, AffineForm], network: Any, pixels: AffineForm, *_: Any, **__: Any) -> None:
        self.counts.add_forward(self._tally, len(pixels), self._symbols(network, forms, pixels), self._dtype)

    def _saw_backward(
        self, _: Any, network: Any, forms: dict[str, AffineForm], labels: Any, pairs: Any, *__: Any, **___: Any
    ) -> None:
        symbols = self._symbols(network, forms, forms[network.input])
        self.counts.add_backward(self._tally, len(pairs), symbols, self._dtype, self._reached)
        self._reached = {}

    def _wrapped_step(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(backward: Any, operation: Any) -> Any:
            self._reached[operation.name] = len(backward.active)
            return method(backward, operation)

        return call

    def _symbols(self, network: Any, forms: dict[str, AffineForm], pixels: AffineForm) -> dict[str, int]:
        known = {name: form.symbols for name, form in forms.items() if name in self.counts.entries}
        return {self.counts.input: pixels.symbols} | known
