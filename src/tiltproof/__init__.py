"""tiltproof: proof that an image network keeps its answer under geometric and photometric transformations.

    certificate = tiltproof.certify(model, images, labels, "R(30)")      # a verdict per image
    print(certificate.summary())
    ranges = tiltproof.certify_range(model, images, targets, "R(2)")     # regression: a range per image
    radii = tiltproof.certified_radius(model, images, labels, "R(90)")   # the largest proved range per image

Options are objects, the same for all functions:

    certificate = tiltproof.certify(
        model, images, labels, "R(30)", semantics="float32",
        keep=tiltproof.TopK(2),                                # or KeepOwn(), Allow(...), Forbid(...), Linear(C, d)
        bounds=tiltproof.AffineBounds(),                       # or IntervalHull(), FGV()
        search=tiltproof.BranchAndBound(max_boxes=20_000),     # or UniformGrid((20, 80))
        attack=tiltproof.Attack(samples=24),
        execution=tiltproof.Execution(memory="2GB", workers=tiltproof.RayWorkers("auto")),
        run=tiltproof.RunFolder("runs/r30", resume=True),
    )

The names below are the ones most programs need. The rest of the public API is in submodules: `tiltproof.transforms`
(`Rotation`, `Scaling`, `Compose`, ...; derive your own from `Spatial` or `Pixelwise`), `tiltproof.models`,
`tiltproof.data`, `tiltproof.losses`, `tiltproof.training`, `tiltproof.reports` and `tiltproof.export`. Everything else
is internal.
"""

from typing import TYPE_CHECKING

import tiltproof.startup  # noqa: F401 - must run before torch is imported
from tiltproof.lazy import lazy
from tiltproof.version import __version__ as __version__

if TYPE_CHECKING:
    from tiltproof import data, export, losses, models, reports, training, transforms
    from tiltproof.checker import CheckFailed, check
    from tiltproof.distributed import RayWorkers
    from tiltproof.errors import InputError, UnsupportedOperation
    from tiltproof.network import bound_network
    from tiltproof.pixels.api import bound_pixels
    from tiltproof.reports import report
    from tiltproof.training import train
    from tiltproof.transforms import parse
    from tiltproof.verify.api import certified_radius, certify, certify_range
    from tiltproof.verify.attack import attack
    from tiltproof.verify.inspection import inspect
    from tiltproof.verify.keep import Allow, Forbid, KeepOwn, Linear, TopK
    from tiltproof.verify.options import (
        FGV,
        AffineBounds,
        Attack,
        BranchAndBound,
        Execution,
        IntervalHull,
        RunFolder,
        Tolerance,
        UniformGrid,
    )
    from tiltproof.verify.radius_results import RadiusCertificate
    from tiltproof.verify.results import Certificate, RangeCertificate, Verdict
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "checker": ("CheckFailed", "check"),
            "distributed": ("RayWorkers",),
            "errors": ("InputError", "UnsupportedOperation"),
            "network": ("bound_network",),
            "pixels.api": ("bound_pixels",),
            "reports": ("report",),
            "training": ("train",),
            "transforms": ("parse",),
            "verify.api": ("certified_radius", "certify", "certify_range"),
            "verify.attack": ("attack",),
            "verify.inspection": ("inspect",),
            "verify.keep": ("Allow", "Forbid", "KeepOwn", "Linear", "TopK"),
            "verify.options": (
                *("FGV", "AffineBounds", "Attack", "BranchAndBound", "Execution", "IntervalHull", "RunFolder"),
                *("Tolerance", "UniformGrid"),
            ),
            "verify.radius_results": ("RadiusCertificate",),
            "verify.results": ("Certificate", "RangeCertificate", "Verdict"),
        },
        modules=("data", "export", "losses", "models", "reports", "training", "transforms"),
    )

__all__ = [
    # the claim
    "parse",
    # prove it, refute it, check the evidence, show it
    "certify",
    "certify_range",
    "certified_radius",
    "attack",
    "check",
    "report",
    # what must hold, if not that the network predicts the label
    "KeepOwn",
    "TopK",
    "Allow",
    "Forbid",
    "Linear",
    # how to prove it
    "AffineBounds",
    "IntervalHull",
    "FGV",
    "BranchAndBound",
    "UniformGrid",
    "Attack",
    "Tolerance",
    # where to, and where the evidence goes
    "Execution",
    "RayWorkers",
    "RunFolder",
    # results
    "Certificate",
    "RangeCertificate",
    "RadiusCertificate",
    "Verdict",
    # the bounds behind a proof
    "bound_pixels",
    "bound_network",
    # analyze a network before a proof
    "inspect",
    # train a network that can be proved
    "train",
    # errors
    "InputError",
    "UnsupportedOperation",
    "CheckFailed",
    # submodules
    "data",
    "export",
    "losses",
    "models",
    "reports",
    "training",
    "transforms",
]
