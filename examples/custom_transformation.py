"""A transformation of your own: write its formula once, and it can be applied, attacked and certified."""

from typing import Any

import tiltproof
from tiltproof.transforms import Pixelwise


class Fog(Pixelwise):
    """Mix every pixel with grey: x' = (1 - f) x + f grey with f = percent / 100; ``Fog(0, 20)`` is 0 to 20 percent.

    The formula must use + - * / (and sin, cos, reciprocal, deg2rad) alone: it runs on tensors, on intervals and on affine
    forms, and that is what makes the proof one about this very formula.
    """

    letter, unit = "Fog", "percent"
    grey = 0.75

    def pixels(self, picture: Any, value: Any) -> Any:
        fog = value / 100
        return picture * (1 - fog) + fog * self.grey


model = tiltproof.models.load("mnist-r30")
images, labels = tiltproof.data.load("mnist-sample")
transform = tiltproof.Compose(tiltproof.transforms.Rotation(1), Fog(0, 5))  # rotate first, then fog
certificate = tiltproof.certify(model, images[:10], labels[:10], transform)
print(certificate.transform, certificate.summary()["certified"], "of 10 certified")
for result in certificate.results:
    print(result.image, result.verdict, result.counterexample or "")
