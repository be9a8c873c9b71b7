"""Training on a GPU: TF32 and bfloat16 products, and CUDA graphs of a step. Proofs never use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.process_lock import exclusive
from tiltproof.training.losses import LossValue, TrainingLoss

WARM_UP = 3
"""Steps before recording, in which libraries choose their algorithms."""


@contextmanager
def training_arithmetic(device: torch.device) -> Iterator[None]:
    """Use TF32 and cuDNN's fastest kernels on a GPU, and a forked random state; restore the settings afterwards.

    The settings are global: proofs in other threads wait for training on a GPU, and vice versa (`tiltproof.process_lock`).
    """
    switches = _switches() if device.type == "cuda" else []
    with exclusive() if switches else nullcontext():
        before = [getattr(owner, name) for owner, name, _ in switches]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                for owner, name, fast in switches:
                    setattr(owner, name, fast)
                yield
            finally:
                for (owner, name, _), value in zip(switches, before, strict=True):
                    setattr(owner, name, value)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context of a forward pass with a recipe's ``train.precision``; uncached, so that a CUDA graph can record it."""
    short = precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, torch.bfloat16, enabled=short, cache_enabled=False)


def _switches() -> list[tuple[Any, str, Any]]:
    """Return (owner, name, value) of the settings; torch 2.9 has new ones and warns if old and new are mixed."""
    backends = torch.backends
    benchmark: list[tuple[Any, str, Any]] = [(backends.cudnn, "benchmark", True)]
    if hasattr(backends, "fp32_precision"):
        owners = (backends.cuda.matmul, backends.cudnn.conv)  # type: ignore[attr-defined]
        return benchmark + [(owner, "fp32_precision", "tf32") for owner in owners]
    return [*benchmark, (backends.cuda.matmul, "allow_tf32", True), (backends.cudnn, "allow_tf32", True)]


class GraphedLoss:
    """A loss and its backward pass as CUDA graphs, one for each phase: the clean term alone, and with the certified term.

    Small networks otherwise spend nine tenths of a step on launching kernels. Inputs are copied into fixed buffers before a
    replay; gradients are left in the parameters' ``grad``. The optimizer's step is not recorded.
    """

    def __init__(self, loss: TrainingLoss, model: nn.Module, parameters: list[nn.Parameter], precision: str) -> None:
        self.loss, self.model, self.parameters, self.precision = loss, model, parameters, precision
        self.recorded: dict[
            int, tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor | None, ...], list[Tensor]]
        ] = {}

    def step(self, images: Tensor, labels: Tensor, step: int) -> LossValue:
        """Evaluate the loss and its gradients."""
        drawn = self.loss.draw(images, step)
        inputs = [images, labels, *drawn]
        if len(drawn) not in self.recorded:
            self.recorded[len(drawn)] = self._record(inputs)
        graph, buffers, outputs, gradients = self.recorded[len(drawn)]
        for buffer, value in zip(buffers, inputs, strict=True):
            buffer.copy_(value)
        graph.replay()
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        total, clean, certified, correct = outputs
        assert total is not None
        assert clean is not None
        assert correct is not None
        return LossValue(total, clean, certified, correct, self.loss.weight(step), self.loss.size(step))

    def _record(
        self, inputs: list[Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor | None, ...], list[Tensor]]:
        buffers = [value.clone() for value in inputs]

        def work() -> tuple[Tensor | None, ...]:
            with autocast(buffers[0].device, self.precision):
                outputs = self.loss.terms(self.model, *buffers)
            outputs[0].backward()
            return outputs

        state = [(tensor, tensor.clone()) for tensor in self.model.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # see WARM_UP
            for _ in range(WARM_UP):
                self._clear_gradients()
                work()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, before in state:  # undo the changes of running statistics
            tensor.copy_(before)
        self._clear_gradients()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = work()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return graph, buffers, tuple(None if x is None else x.detach() for x in outputs), gradients

    def _clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
