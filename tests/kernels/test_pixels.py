"""The kernels of pixel bounds: in Triton's interpreter against the reference and the exact image, compiled for a GPU, and on one."""

from inspect import signature
from unittest.mock import MagicMock

import pytest
import torch

from tests.kernels.child import COMPILE, needs_triton, run
from tests.kernels.coordinate_boxes import agree, coordinates_of
from tiltproof import device as registry
from tiltproof.names import PADDINGS
from tiltproof.pixels import api
from tiltproof.pixels.api import pair_bounds
from tiltproof.transforms.base import parse

pytest.importorskip("triton")
from tiltproof.kernels import matrix_program
from tiltproof.kernels import pixels as fused
from tiltproof.kernels.triton import bilinear, matrix_entries, pixels_float32
from tiltproof.kernels.triton import pixels as kernel
from tiltproof.kernels.triton.pixels import pixels


@needs_triton
@pytest.mark.parametrize("what", ["same", "odd", "shared", "sound", "wild", "damaged"])
def test_in_the_interpreter(what):
    run(["-m", "tests.kernels.interpreted_pixels", what], TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize(("transform", "channels"), [("Sh(2), R(2), Tu(1); padding=reflect", "3")])
def test_compiles_for_a_gpu(transform, channels, tmp_path):
    """The interpreter accepts more than the compiler does."""
    run(["-c", COMPILE, transform, channels], TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")


def test_a_cpu_uses_the_reference(monkeypatch):
    monkeypatch.setattr(registry, "find", lambda _: pytest.fail("not on a CPU"))
    low = torch.tensor([[1.0]], dtype=torch.float64)
    form = pair_bounds(
        torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.tensor([0]), parse("R(5)"), "affine", low, low + 1
    )
    assert form.symbols == 1


def test_launchers_and_kernels_agree_on_constants():
    """The kernels know paddings and operations by number, and repeat some constants of the reference."""
    assert set(fused.PADDINGS) == set(PADDINGS)
    assert len({*fused.PADDINGS.values()}) == len(fused.PADDINGS)
    for name, number in fused.PADDINGS.items():
        assert number == getattr(bilinear, name.upper()).value
    for number, name in enumerate(matrix_program.OPERATIONS):
        assert number == getattr(matrix_entries, name.upper().replace(" ", "_")).value
    assert kernel.MANY_POINTS.value == api.MANY_POINTS
    assert pixels_float32.RING.value == fused.RING


def test_the_last_dtype_is_that_of_a_conversion():
    images, low = torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)
    for method in ("affine", "hull"):
        arguments = images, torch.tensor([0]), parse("R(5)"), method, low, low + 1
        wanted, found = pair_bounds(*arguments).to(torch.float32), pair_bounds(*arguments, dtype=torch.float32)
        assert torch.equal(wanted.stack, found.stack)
        assert torch.equal(wanted.radius, found.radius)


def test_running_out_of_memory_leaves_the_kernels_in_use(monkeypatch):
    """A smaller batch may succeed; any other exception of a launch disables them."""
    errors = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no compiler")]

    def launch(*_):
        raise errors.pop(0)

    monkeypatch.setattr(registry, "INTERPRETED", {"pixels:spatial"})
    monkeypatch.setattr(fused.spatial, "disabled", False)
    monkeypatch.setattr(fused.spatial, "checked", {})
    monkeypatch.setattr(fused, "_launch", launch)
    low = torch.tensor([[1.0]], dtype=torch.float64)
    arguments = torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.tensor([0]), parse("R(5)"), "affine", low, low + 1
    with pytest.raises(torch.OutOfMemoryError):
        pair_bounds(*arguments)
    assert not fused.spatial.disabled
    with pytest.warns(UserWarning, match="no compiler"):
        pair_bounds(*arguments)
    assert fused.spatial.disabled


def test_shapes_that_kernels_cannot_index_are_left_to_the_reference():
    image, rows = torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.tensor([0, 0])
    box, turn = torch.zeros(2, 1, dtype=torch.float64), parse("R(5)")

    def possible(images=image, rows_of=rows, low=box, high=box):
        return fused._possible(images, rows_of, turn, [0], low, high, torch.float64)

    assert possible()
    assert not possible(low=box[:1])
    assert not possible(high=torch.zeros(2, 2, dtype=torch.float64))
    assert not possible(rows_of=rows[None])
    assert not possible(rows_of=rows.to("meta"))
    assert not possible(images=torch.zeros(1, dtype=torch.float64).expand(1, 1, 2**15, 2**15))
    many = 2**24
    assert not possible(rows_of=rows[:1].expand(many), low=box[:1].expand(many, 1), high=box[:1].expand(many, 1))


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(320, 320), (301, 301), (4000, 32), (2**13, 16), (3, 2**15), (17, 4099), (70, 1001)])
def test_a_small_image_stands_for_a_large_one_as_the_kernel_sees_it(size, dtype, monkeypatch):
    """It uses the same block and arithmetic, with masks or without, and strips; and few pixels, as the reference runs on them too."""

    class Seen:
        def __getitem__(self, grid):
            return lambda *given, **_: calls.append(signature(pixels.fn).bind(*given).arguments)

    calls, looked_at, transform = [], [], parse("Tu(3), Tv(3)")
    monkeypatch.setattr(fused, "pixels_kernel", Seen())
    monkeypatch.setattr(fused, "entries_kernel", MagicMock())
    monkeypatch.setattr(fused, "_launched", set())
    monkeypatch.setattr(fused.spatial, "checked", {})
    monkeypatch.setattr(fused, "_agrees", lambda *given: looked_at.append(given) or True)
    monkeypatch.setattr(fused.spatial, "launch", lambda *_: True)
    entries, pairs = fused.trace(transform, [0, 1]), 31
    box = torch.zeros(pairs, 2, dtype=torch.float64), torch.ones(pairs, 2, dtype=torch.float64), "zeros", dtype
    image, rows_of = torch.zeros(1, 1, *size, dtype=torch.float64), torch.zeros(pairs, dtype=torch.long)

    def run(image):
        return fused.spatial.run(image.device, image, rows_of, transform, [0, 1], box[0], box[1], dtype)

    assert run(image)
    ((small, *_, way),) = looked_at
    fused._launch(small, rows_of, entries, *box, way)
    fused._launch(image, rows_of, entries, *box)
    assert small[0, 0].numel() <= 2048
    mine, real = (
        (call["block"], "copies" in call, call["height"] * call["width"] % call["block"] == 0) for call in calls
    )
    assert mine == real
    assert mine[1] == (dtype == torch.float32 and sum(size) <= 4096)
    assert all(1 < call["strip"] <= fused.LARGE_STRIP for call in calls)
    assert run(small[:1])
    assert len(looked_at) == 2, "an image that is small itself is another matter"


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "text", ["R(10)", "R(2), Sh(2)", "Sc(5), R(5), C(5); padding=border", "Tu(30), Sc(9); padding=reflect"]
)
def test_on_a_gpu(text, dtype, monkeypatch):
    """The reference's results on the same GPU, pair by pair; and the images of sampled parameters lie inside."""
    transform = parse(text)
    ends = [torch.tensor(end, dtype=torch.float64, device="cuda") for end in (transform.low, transform.high)]
    images = torch.rand(3, 3, 17, 20, dtype=torch.float64, device="cuda")
    place = torch.rand(24, len(transform.parts), dtype=torch.float64, device="cuda")
    half = 10.0 ** -torch.arange(24, device="cuda").remainder(8).double().unsqueeze(1) * (ends[1] - ends[0]) / 2
    middle = ends[0] + (ends[1] - ends[0]) * place
    low, high = (middle - half).clamp(*ends), (middle + half).clamp(*ends)
    rows_of = torch.arange(24, device="cuda") % 3
    used = []
    launch = fused._launch
    monkeypatch.setattr(fused, "_launch", lambda *arguments: used.append(1) or launch(*arguments))
    found = pair_bounds(images, rows_of, transform, "affine", low, high, dtype=dtype)
    assert used
    for share in (0.0, 0.3, 1.0):
        true = transform.apply(images[rows_of], low + share * (high - low))
        assert (found.lower.double() <= true + 1e-12).all()
        assert (true - 1e-12 <= found.upper.double()).all()
    monkeypatch.setattr(fused.spatial, "disabled", True)
    for k in range(24):
        box = low[k : k + 1], high[k : k + 1]
        wanted = pair_bounds(images, rows_of[k : k + 1], transform, "affine", *box, dtype=dtype)
        place = coordinates_of(transform, *box, *images.shape[-2:])
        assert agree(found[k : k + 1], wanted, place, transform.padding).all()
