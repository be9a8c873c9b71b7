"""A custom transformation: write its formula once, and it can be applied, attacked and certified."""

from typing import Any

import tiltproof
from tiltproof.transforms import Pixelwise


class Fog(Pixelwise):
    """Mix every pixel with gray: x' = (1 - f) x + f gray with f = percent / 100; ``Fog(0, 20)`` is 0 to 20 percent.

    The formula may use only + - * / (and sin, cos, reciprocal, deg2rad): it runs on tensors, intervals and affine forms, so the
    proof is about exactly this formula.
    """

    letter, unit = "Fog", "percent"
    gray = 0.75

    def pixels(self, image: Any, value: Any) -> Any:
        fog = value / 100
        return image * (1 - fog) + fog * self.gray


model = tiltproof.models.load("mnist-r30")
images, labels = tiltproof.data.load("mnist-sample")
transform = tiltproof.transforms.Compose(tiltproof.transforms.Rotation(1), Fog(0, 5))  # rotate first, then fog
certificate = tiltproof.certify(model, images[:10], labels[:10], transform)
print(certificate.transform, certificate.summary()["certified"], "of 10 certified")
for result in certificate.results:
    print(result.image, result.verdict, result.counterexample or "")
