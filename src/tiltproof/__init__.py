"""tiltproof: proof that an image network keeps its answer when the picture tilts.

    certificate = tiltproof.certify(model, images, labels, "R(30)")      # a verdict per image
    print(certificate.summary())
    ranges = tiltproof.certify_range(model, images, "R(2)")              # regression: a range per image

Training: the losses are here, for a loop of your own; the loop that comes with the package is the function `train` of the
subpackage of the same name, where what goes with it (results, progress, `tune`) is found as well.

    from tiltproof.train import train
    train(tiltproof.read_recipe("mnist-r30"), out="runs/mine")

A run folder as a page that opens offline: `tiltproof.report.write_report`.

Everything a user needs is on this page, in `tiltproof.train` and in `tiltproof.report`; nothing else is public.
"""

from tiltproof.bounds import AffineForm, bound_pixels
from tiltproof.certify import (
    AttackResult,
    Budget,
    Certificate,
    ImageResult,
    Progress,
    RangeCertificate,
    RangeProgress,
    RangeResult,
    Verdict,
    attack,
    certify,
    certify_range,
)
from tiltproof.checker import CheckFailed, CheckReport, check_run
from tiltproof.data import load_data
from tiltproof.errors import InputError, UnsupportedOperation
from tiltproof.network import bound_network
from tiltproof.train import (
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
    Rotation,
    Saturation,
    Scaling,
    Shearing,
    Transform,
    TranslationU,
    TranslationV,
    parse,
)
from tiltproof.zoo import load_model, load_onnx

__version__ = "0.1.0"

__all__ = [
    # what may happen to a picture
    "Transform",
    "Compose",
    "Rotation",
    "TranslationU",
    "TranslationV",
    "Scaling",
    "Shearing",
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
    # check a run folder without trusting the prover
    "check_run",
    "CheckReport",
    "CheckFailed",
    # the bounds behind a proof
    "bound_pixels",
    "bound_network",
    "AffineForm",
    # train: losses for a loop of your own, and recipes for `tiltproof.train.train`
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
