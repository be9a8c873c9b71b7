"""tiltproof: proof that an image network keeps its answer when the picture tilts.

    certificate = tiltproof.certify(model, images, labels, "R(30)")      # a verdict per image
    print(certificate.summary())
    ranges = tiltproof.certify_range(model, images, "R(2)")              # regression: a range per image

Training: the losses are here, for a loop of your own; the loop that comes with the package is the function `train` of the
subpackage of the same name, where what goes with it (results, progress, `tune`) is found as well.

    from tiltproof.training import train
    train(tiltproof.read_recipe("mnist-r30"), out="runs/mine")

A run folder as a page that opens offline: `tiltproof.report.write_report`. Results as rows, and problems for other verifiers:
`tiltproof.export`.

Everything a user needs is on this page, in `tiltproof.training`, `tiltproof.report` and `tiltproof.export`; transformations of your own
derive from `tiltproof.transforms.Spatial` or `tiltproof.transforms.Pixelwise` (docs/add-a-transformation.md). Nothing else is public.
"""

import tiltproof.startup  # noqa: F401 - first of all
from tiltproof.checker import CheckFailed, CheckReport, check_run
from tiltproof.data import load_data
from tiltproof.distributed import RayWorkers
from tiltproof.enclosures.affine_form import AffineForm
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.models import load_model, load_onnx
from tiltproof.network import bound_network
from tiltproof.pixels.api import bound_pixels
from tiltproof.training import (
    AugmentationLoss,
    CertifiedLoss,
    CertifiedRegressionLoss,
    IbpLoss,
    LossValue,
    PgdLoss,
    Ramp,
    Recipe,
    WorstOfLoss,
    read_recipe,
)
from tiltproof.transforms import (
    Brightness,
    Compose,
    Contrast,
    Gamma,
    GaussianBlur,
    Hue,
    MotionBlur,
    Pitch,
    Roll,
    Rotation,
    Saturation,
    Scaling,
    ScalingU,
    ScalingV,
    Shearing,
    ShearingV,
    Transform,
    TranslationU,
    TranslationV,
    Yaw,
    parse,
)
from tiltproof.verify.api import certify
from tiltproof.verify.attack import AttackResult, attack
from tiltproof.verify.regression import RangeProgress, certify_range
from tiltproof.verify.results import Budget, Certificate, ImageResult, Progress, RangeCertificate, RangeResult, Verdict
from tiltproof.version import __version__ as __version__

__all__ = [
    # what may happen to a picture
    "Transform",
    "Compose",
    "Rotation",
    "TranslationU",
    "TranslationV",
    "Scaling",
    "ScalingU",
    "ScalingV",
    "Shearing",
    "ShearingV",
    "Yaw",
    "Pitch",
    "Roll",
    "Contrast",
    "Brightness",
    "Gamma",
    "Saturation",
    "Hue",
    "GaussianBlur",
    "MotionBlur",
    "parse",
    # prove it, or find out that it is not so
    "certify",
    "certify_range",
    "attack",
    "Certificate",
    "ImageResult",
    "RangeCertificate",
    "RangeResult",
    "RangeProgress",
    "AttackResult",
    "Verdict",
    "Budget",
    "Progress",
    "RayWorkers",
    # check a run folder without trusting the prover
    "check_run",
    "CheckReport",
    "CheckFailed",
    # the bounds behind a proof
    "bound_pixels",
    "bound_network",
    "AffineForm",
    # train: losses for a loop of your own, and recipes for `tiltproof.training.train`
    "WorstOfLoss",
    "CertifiedLoss",
    "CertifiedRegressionLoss",
    "AugmentationLoss",
    "PgdLoss",
    "IbpLoss",
    "LossValue",
    "Ramp",
    "Recipe",
    "read_recipe",
    # bundled networks, networks from ONNX files, data sets and samples
    "load_model",
    "load_onnx",
    "load_data",
    # what bad input raises
    "InputError",
    "UnsupportedOperation",
]
