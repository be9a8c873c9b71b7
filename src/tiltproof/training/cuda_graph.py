"""Steps that a GPU replays by itself (CUDA graphs): small networks otherwise spend nine tenths of a step on launching kernels.

Recorded once for each phase of a run, clean term alone and with the certified term: forward and backward of the loss, on
buffers that are filled anew before each replay. Gradients come out in the parameters' ``grad``; the optimizer's step stays outside.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tiltproof.training.losses import LossValue, TrainingLoss
from tiltproof.training.precision import short_products

WARM_UP = 3


class Replay:
    """Calls a loss and its backward pass, recorded."""

    def __init__(self, loss: TrainingLoss, model: nn.Module, parameters: list[nn.Parameter], precision: str) -> None:
        self.loss, self.model, self.parameters, self.precision = loss, model, parameters, precision
        self.recorded: dict[
            int, tuple[torch.cuda.CUDAGraph, list[Tensor], tuple[Tensor | None, ...], list[Tensor]]
        ] = {}

    def step(self, images: Tensor, labels: Tensor, step: int) -> LossValue:
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
            with short_products(buffers[0].device, self.precision):
                outputs = self.loss.terms(self.model, *buffers)
            outputs[0].backward()
            return outputs

        state = [(tensor, tensor.clone()) for tensor in self.model.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose their algorithms before anything is recorded
            for _ in range(WARM_UP):
                self._forget()
                work()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, before in state:  # running statistics: these passes have not happened
            tensor.copy_(before)
        self._forget()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = work()
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return graph, buffers, tuple(None if x is None else x.detach() for x in outputs), gradients

    def _forget(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
