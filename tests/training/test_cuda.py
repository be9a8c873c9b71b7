"""A loss that claims to be recordable never lets the host read a value, and no shape depends on one."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.test_losses import every_loss, problem
from tiltproof.losses import Certified, WorstOf

LOOKS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "item", "lift_fresh")
"""The last one turns a host number into a tensor, a copy that waits for the host."""


class Blind(TorchDispatchMode):
    """Refuses operations that would break a recording: a value for the host, a shape that depends on values."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function.__name__.partition(".")[0]
        if any(name.startswith(look) for look in LOOKS):
            raise AssertionError(f"{name} looks at values")
        chosen = arguments[1] if name.startswith("index") and isinstance(arguments[1], list | tuple) else ()
        if any(isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8) for x in chosen):
            raise AssertionError("a mask chooses entries")
        return function(*arguments, **(keywords or {}))


def recordable():
    more = {
        f"worst of 3, affine {text}": Certified(
            text, [w / 9 for w in widths], bounds="affine", propagation="affine", samples=3
        )
        for text, widths in {
            "Tu(2), Tv(2)": (4, 4),
            "Sc(5), R(5), C(5), B(0.01)": (10, 10, 10, 0.02),
            "Sh(2), R(2), Sc(2), C(2), B(0.001)": (4, 4, 4, 4, 0.002),
            "Yaw(5@10), Pitch(5@10), Scu(5)": (10, 10, 10),
        }.items()
    }
    return {name: loss for name, loss in (every_loss() | more).items() if loss.recordable}


@pytest.mark.parametrize("name", recordable())
def test_terms_are_blind(name):
    model, images, labels = problem()
    loss = recordable()[name]
    drawn = loss.draw(images, 3)
    before = loss.terms(model, images, labels, *drawn)  # reads the network, counts cells: before recording starts
    with Blind():
        after = loss.terms(model, images, labels, *drawn)
        after[0].backward()
    assert torch.equal(before[0], after[0])


def test_after_the_first_step_nothing_is_copied_from_the_host():
    """Such a copy waits until the GPU is idle."""
    _, images, _ = problem()
    loss = WorstOf("R(30)", 3)
    with Blind(), pytest.raises(AssertionError, match="lift_fresh looks at values"):
        loss.draw(images, 0)
    loss.draw(images, 0)
    with Blind():
        loss.draw(images, 1)


def test_the_mode_would_notice():
    _, images, _ = problem()
    with Blind(), pytest.raises(AssertionError, match="looks at values"):
        bool(images.sum() > 0)
    with Blind(), pytest.raises(AssertionError, match="looks at values|mask"):
        images[images > 0.5]


def test_most_losses_are_recordable():
    assert {name for name, loss in every_loss().items() if not loss.recordable} == {"pgd"}
    assert WorstOf("R(3)", 2).recordable
