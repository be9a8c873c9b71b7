"""Pictures of 8 bits for programs, and what must be known of a program: the shape and the precision of its answers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.network import Network, Operation, as_rows, eval_mode, read_network

LEVELS = 256
"""Values of an 8-bit pixel."""


def pictures_dtype(model: nn.Module) -> torch.dtype:
    """Return the precision of pictures: float64 for a network of such numbers, else float32."""
    kinds = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    return torch.float64 if kinds == {torch.float64} else torch.float32


def shades(dtype: torch.dtype) -> Tensor:
    """Return the pixels that whole numbers 0 to 255 stand for, k / 255 rounded once, on the CPU."""
    return torch.arange(LEVELS, dtype=dtype) / torch.full((LEVELS,), 255.0, dtype=dtype)


def rounded(images: Tensor) -> Tensor:
    """Return images with values in [0, 1] as whole numbers [N, C, H, W] on the CPU, ties to even."""
    return (images.detach().cpu().double() * 255).round().clamp(0, 255).to(torch.uint8)


def eps_of(model: nn.Module, answers: Tensor) -> float:
    """Return the machine epsilon of the coarsest floating-point numbers that the program is known to use."""
    kinds = {tensor.dtype for tensor in (*model.parameters(), *model.buffers(), answers) if tensor.is_floating_point()}
    return max(torch.finfo(dtype).eps for dtype in (*kinds, pictures_dtype(model)))


def stand_in(model: nn.Module, images: Tensor) -> Network:
    """Return a network of one unknown operation with the shape of the program's answers; the program is called once."""
    pictures = shades(pictures_dtype(model))[rounded(images[:2]).long()].to(images.device)
    try:
        with torch.no_grad(), eval_mode(model):
            answers = model(pictures)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            "the program failed on images",
            got=f"{type(error).__name__}: {shown(' '.join(str(error).split()), 300)}",
            why=f"it takes other images than {tuple(pictures.shape)}, {pictures.dtype}",
        ) from error
    if not isinstance(answers, Tensor):
        raise InputError("the program must return one tensor of scores", got=type(answers).__name__)
    answers = as_rows(answers)
    if answers.ndim != 2 or len(answers) != len(pictures):
        raise InputError(
            "the program must return one row of scores for each image",
            got=f"shape {tuple(answers.shape)} for {len(pictures)} images",
        )
    last = Operation("scores", "program", ("images",), {}, tuple(answers.shape[1:]))
    return Network("images", "scores", tuple(images.shape[1:]), [last])


def is_plain(model: nn.Module) -> bool:
    """Return whether torch runs the module's operations one by one as they are listed, in float32: no session, no function of which only
    the answers are known, nothing compiled or scripted."""
    kinds = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    return kinds <= {torch.float32} and not any(
        getattr(module, "opaque", False) or hasattr(module, "_orig_mod") or isinstance(module, torch.jit.ScriptModule)
        for module in model.modules()
    )


def bounded_network(model: nn.Module, images: Tensor) -> Network | None:
    """Return the network whose float32 evaluation, as bounds cover it, is what a program computes on a CPU; None if there is none."""
    if images.is_cuda or not is_plain(model):
        return None
    pictures = shades(torch.float32)[rounded(images[:2]).long()]
    try:
        return read_network(model, tuple(pictures.shape[1:]), pictures)
    except InputError:  # an operation without a rule, or a module that cannot be traced
        return None
