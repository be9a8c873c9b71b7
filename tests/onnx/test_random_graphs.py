"""Random ONNX graphs in which values have several names and readers: converted as onnxruntime computes them, output by output."""

from __future__ import annotations

import random as python_random

import numpy as np
import pytest
import torch
from onnx import helper

from tests.onnx.onnx_files import answers, message, random
from tests.support.readings import assert_same_network
from tiltproof.models import load_onnx

SIZE = 5
KINDS = (
    "MatMul", "MatMul", "MatMul", "Gemm", "Add constant", "Add constant", "Add constant", "constant Add", "Sub constant", "constant Sub",
    "Mul constant", "Div constant", "Add", "Add", "Sub", "Identity", "Identity", "Identity", "Dropout", "Cast", "Pad", "Relu", "LeakyRelu",
    "Tanh", "Neg", "Reshape", "halves",
)  # fmt: skip


class Graph:
    """Vectors of five numbers under all their names; the output is a sum of some of them, of very different magnitudes."""

    def __init__(self, seed, nodes=14):
        self.draw, self.nodes, self.constants = python_random.Random(seed), [], {}
        self.seed, self.count = seed, 0
        self.add("Flatten", "images")
        self.names = [self.add("Gemm", self.nodes[-1].output[0], self.weight(60, 1.0), self.vector())]
        for _ in range(nodes):
            self.step(self.draw.choice(KINDS))
        total = self.names[0]
        for name in self.draw.sample(self.names, min(5, len(self.names))):
            total = self.add("Add", total, name)
        scales = (10.0 ** np.random.default_rng(seed).integers(-3, 4, SIZE)).astype(np.float32)
        self.add("Mul", total, self.constant(scales))

    def add(self, op, *inputs, **attributes):
        self.count += 1
        self.nodes.append(helper.make_node(op, inputs, [f"n{self.count}"], name=f"n{self.count}", **attributes))
        return f"n{self.count}"

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        # a constant may have a second name too
        return self.add("Identity", name) if self.draw.random() < 0.3 else name

    def vector(self):
        self.seed += 1000
        return self.constant(random(SIZE, seed=self.seed))

    def weight(self, inputs=SIZE, scale=0.6):
        self.seed += 1000
        return self.constant((scale * random(inputs, SIZE, seed=self.seed) * np.sqrt(SIZE / inputs)).astype(np.float32))

    def step(self, kind):
        # recent values are read often: chains of names, and products with several readers
        x, y = (self.draw.choice(self.names[-4:] if self.draw.random() < 0.7 else self.names) for _ in range(2))
        op, _, constant = kind.partition(" ")
        if kind == "MatMul":
            made = self.add("MatMul", x, self.weight())
        elif kind == "Gemm":
            made = self.add("Gemm", x, self.weight(), self.vector())
        elif constant == "constant":
            made = self.add(
                op, x, self.constant(1 + np.abs(random(SIZE, seed=self.count))) if op == "Div" else self.vector()
            )
        elif op == "constant":
            made = self.add(constant, self.vector(), x)
        elif kind in ("Add", "Sub"):
            made = self.add(kind, x, y)
        elif kind == "Cast":
            made = self.add("Cast", x, to=1)
        elif kind == "Pad":
            made = self.add("Pad", x, self.constant(np.zeros(4, np.int64)))
        elif kind == "Reshape":
            made = self.add("Reshape", x, self.constant(np.array([-1, SIZE])))
        elif kind == "halves":
            first, last = (
                self.add("Slice", of, *(self.constant(np.array([n])) for n in ends), self.constant(np.array([1])))
                for of, ends in ((x, (2, 5)), (y, (0, 2)))
            )
            made = self.add("Concat", first, last, axis=1)
        else:
            made = self.add(kind, x)
        self.names.append(made)


def check(seeds, folder):
    widest = 0.0
    for seed in seeds:
        graph = Graph(seed)
        file = message(graph.nodes, graph.constants)
        path = folder / f"{seed}.onnx"
        path.write_bytes(file.SerializeToString())
        images = torch.rand(3, 2, 6, 5, generator=torch.Generator().manual_seed(seed))
        widest = max(widest, assert_same_network(load_onnx(path), images, answers(path.read_bytes(), images)))
    return widest


def test_readings_agree(tmp_path):
    assert check(range(30), tmp_path) < 0.1, "bounds that say nothing would agree with everything"


@pytest.mark.slow
def test_many_readings_agree(tmp_path):
    check(range(1000, 1600), tmp_path)
