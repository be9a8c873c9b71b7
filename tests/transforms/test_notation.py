"""Text, objects and repr of transformations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltproof import InputError, parse
from tiltproof.transforms import (
    LETTERS,
    Brightness,
    Camera,
    CameraMove,
    Compose,
    Contrast,
    Gamma,
    GaussianBlur,
    Hue,
    MotionBlur,
    MoveX,
    MoveY,
    MoveZ,
    Pitch,
    Roll,
    Rotation,
    Saturation,
    Scaling,
    ScalingU,
    ScalingV,
    Shearing,
    ShearingV,
    TranslationU,
    Yaw,
)

NAMES = {part.__name__: part for part in LETTERS.values()} | {"Compose": Compose}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("R(30)", Rotation(30)),
        ("R(-10:25)", Rotation(-10, 25)),
        ("Sc(5), R(5), C(5), B(0.01)", Compose(Scaling(5), Rotation(5), Contrast(5), Brightness(0.01))),
        (" Sh( 2 ) ,Tu(1e-1:0.5)", Compose(Shearing(2), TranslationU(0.1, 0.5))),
        ("G(-20:30), S(50), H(20)", Compose(Gamma(-20, 30), Saturation(50), Hue(20))),
        ("Bl(2)", GaussianBlur(0, 2, 6)),
        ("Bl(0.5:2@4)", GaussianBlur(0.5, 2, radius=4)),
        ("Mb( 5 @ 30 ), Mb(1:2@0)", Compose(MotionBlur(5, angle_degrees=30), MotionBlur(1, 2))),
        ("R(30); padding=border", Compose(Rotation(30), padding="border")),
        ("R(30);padding=zeros; interpolation=nearest", Compose(Rotation(30), interpolation="nearest")),
        (
            "R(3); interpolation=bicubic; padding=reflect",
            Compose(Rotation(3), padding="reflect", interpolation="bicubic"),
        ),
        ("Scu(5), Scv(-1:2), Shv(3)", Compose(ScalingU(5), ScalingV(-1, 2), ShearingV(3))),
        ("Yaw(5@300)", Yaw(5, focal_pixels=300)),
        (
            "Yaw( -5 : 2 @ 31.5),Pitch(1@1e3), Roll(2)",
            Compose(Yaw(-5, 2, focal_pixels=31.5), Pitch(1, focal_pixels=1000), Roll(2)),
        ),
        ("Tx(0.1@300)", MoveX(0.1, focal_pixels=300)),
        ("Tx(0.1@300@0:-1:0)", MoveX(0.1, focal_pixels=300)),
        (
            "Ty(-0.1:1 @ 3e2 @ 0 : -0.5:0.25 ), Tz(0.1@20)",
            Compose(MoveY(-0.1, 1, 300, normal=(0, -0.5, 0.25)), MoveZ(-0.1, 0.1, 20, (0.0, -1.0, 0.0))),
        ),
    ],
)
def test_text_reads_as_objects_and_back(text, expected):
    assert parse(text) == expected
    assert parse(str(expected)) == expected


def test_the_focal_length_and_the_kind_belong_to_a_transform():
    assert Yaw(5, focal_pixels=300) != Yaw(5, focal_pixels=301)
    assert Yaw(5, focal_pixels=300) != Pitch(5, focal_pixels=300)
    assert ScalingU(5) != ScalingV(5) != Scaling(5)
    assert Roll(5) != Rotation(5)
    assert Yaw(5, focal_pixels=300).over(1, 2) == Yaw(1, 2, focal_pixels=300)
    assert MoveZ(0.1, focal_pixels=300) != MoveZ(0.1, focal_pixels=300, normal=(0, 0, 1))
    assert str(MoveZ(0.1, focal_pixels=300, normal=(0, 0, 1)).over(0, 1e-3)) == "Tz(0:0.001@300@0:0:1)"
    with pytest.raises(InputError, match="three numbers"):
        MoveZ(0.1, focal_pixels=300, normal=(1, 2))
    for focal in ("wide", None, float("nan"), 0, -3):
        with pytest.raises(InputError, match="focal length"):
            Yaw(5, focal_pixels=focal)


def make_part(part, low, width, focal):
    if issubclass(part, CameraMove):
        return part(low / 100, (low + width) / 100, focal, *([[width / 50, -0.5, low / 80]] if low > 0 else []))
    if issubclass(part, Camera):
        return part(low, low + width, focal)
    if part.minimum is None:
        return part(low, low + width)
    low, width = abs(low) / 10, width / 2  # blurs: not below 0, not too large
    return part(low * (width < 5), low * (width < 5) + width, round(low) + 1) if width > 2 else part(low, low + width)


parts = st.builds(
    make_part,
    st.sampled_from(list(LETTERS.values())),
    st.floats(-50, 45),
    st.floats(1e-3, 40),
    st.floats(0.01, 1e6),
)


@given(
    st.lists(parts, min_size=1, max_size=5),
    st.sampled_from(["zeros", "border", "reflect"]),
    st.sampled_from(["bilinear", "nearest", "bicubic"]),
)
@settings(max_examples=80, deadline=None)
def test_repr_and_text_rebuild_the_transform(some, padding, interpolation):
    transform = Compose(*some, padding=padding, interpolation=interpolation)
    assert eval(repr(transform), NAMES) == transform
    assert parse(str(transform)) == transform
    assert hash(parse(str(transform))) == hash(transform)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Q(3)", "R (Rotation"),
        ("R(5:5)", "empty"),
        ("R(0)", "empty"),
        ("R(6:5)", "reversed"),
        ("R(-5)", "reversed"),
        ("Sc(-100:3)", "-100"),
        ("R(361)", "full turn"),
        ("Scv(-100:3)", "-100"),
        ("Roll(361)", "full turn"),
        ("Yaw(5)", "focal length"),
        ("Yaw(5@)", "cannot read"),
        ("Yaw(5@a)", "not a number"),
        ("Yaw(5@0)", "millimeters"),
        ("Pitch(5@nan)", "millimeters"),
        ("Yaw(86@300)", "85 degrees"),
        ("R(5@300)", "no setting"),
        ("Tz(0.1)", "focal length"),
        ("Tz(0.1@9@0:1)", "cannot read"),
        ("Tz(0.1@9@0:0:0)", "not all 0"),
        ("Tz(0.1@9@0:nan:1)", "not all 0"),
        ("Tz(0.1@9@0:a:1)", "not a number"),
        ("Tz(0.1:0.95@9@0:0:1)", "1/16"),
        ("Ty(-1:0@9)", "1/16"),
        ("Yaw(5@9@0:0:1)", "no plane"),
        ("G(-100:3)", "-100"),
        ("H(361)", "full turn"),
        ("Bl(-1:2)", "between 0 and 32"),
        ("Bl(0)", "empty"),
        ("Bl(40)", "between 0 and 32"),
        ("Bl(2@1.5)", "whole number"),
        ("Bl(2@0)", "whole number"),
        ("Bl(2@nan)", "whole number"),
        ("Mb(-2)", "reversed"),
        ("Mb(2@400)", "360"),
        ("Mb(2@x)", "not a number"),
        ("Mb(2@)", "cannot read"),
        ("S(2@30)", "no setting"),
        ("R(nan)", "finite"),
        ("R(inf)", "finite"),
        ("R(a)", "not a number"),
        ("R(3) Sh(2)", "comma"),
        ("", "cannot read"),
        ("R()", "cannot read"),
        ("R(3),", "cannot read"),
        ("R(3); padding=wrap", "zeros"),
        ("R(3); center=0", "padding"),
        ("R(3); interpolation=cubic", "bicubic"),
        ("R(3); interpolation=nearest; interpolation=nearest", "once"),
    ],
)
def test_bad_notation_is_refused(text, message):
    with pytest.raises(InputError, match=None) as error:
        parse(text)
    assert message in str(error.value)


def test_identity_shift_and_quarter_turn():
    x = torch.rand(2, 3, 7, 7, dtype=torch.float64)
    assert torch.equal(Rotation(30).apply(x, torch.zeros(1)), x)
    assert torch.equal(parse("Tu(2)").apply(x, torch.ones(1))[..., 1:], x[..., :-1])
    assert torch.equal(parse("Tv(2)").apply(x, torch.ones(1))[..., :-1, :], x[..., 1:, :])
    turned = Rotation(90).apply(x, torch.tensor([90.0]))
    assert torch.allclose(turned, torch.rot90(x, 1, (2, 3)), atol=1e-12)


def test_each_image_has_its_own_parameters_and_gradients():
    x = torch.rand(3, 1, 9, 5, dtype=torch.float64)
    transform = parse("Sc(5), R(5), C(5), B(0.01)")
    theta = torch.tensor(
        [[1.0, 2, 3, 0.001], [-4, 5, 0, 0], [0, -1, -5, 0.01]], dtype=torch.float64, requires_grad=True
    )
    together = transform.apply(x, theta)
    for k in range(3):
        assert torch.allclose(together[k], transform.apply(x[k : k + 1], theta[k])[0])
    assert torch.autograd.gradcheck(lambda t: transform.apply(x, t), theta, atol=1e-5)


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match="one row per image"):
        Rotation(3).apply(torch.rand(2, 1, 4, 4), torch.zeros(3, 1))
    with pytest.raises(InputError, match="batch"):
        Rotation(3).apply(torch.rand(1, 4, 4), torch.zeros(1))


def test_what_is_fixed_is_part_of_the_transformation():
    assert parse("Mb(5@30)") != parse("Mb(5@31)")
    assert parse("Bl(1)") != parse("Bl(1@6)")
    assert str(parse("Bl(2)").over(0, 1)) == "Bl(1@6)"  # the same function over a smaller range
    assert str(parse("Mb(1:5@30)").over(0, 1)) == "Mb(1@30)"
    assert str(parse("Bl(0:2@6)")) == "Bl(2)"


def test_options_belong_to_a_transform():
    near = parse("R(3); interpolation=nearest")
    assert near != parse("R(3)") != parse("R(3); interpolation=bicubic") != near
    assert str(Compose(near, Gamma(3), interpolation="nearest")) == "R(3), G(3); interpolation=nearest"
    for inner in (near, parse("R(3); padding=border")):
        with pytest.raises(InputError, match="share one"):
            Compose(inner, Gamma(3))


def test_a_users_class_does_not_take_a_letter():
    class Mine(Rotation):
        letter = "R"

    assert LETTERS["R"] is Rotation
    assert Mine(3) != Rotation(3)
    assert next(iter(LETTERS)) == "R", "geometric ones come first in messages and tables"
