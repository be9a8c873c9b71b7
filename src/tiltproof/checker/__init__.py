"""Independent checker: re-prove a finished run folder with code that the prover does not share.

Read it in this order:

1. Affine arithmetic: `form` (with `branches`: products), then `operations`, `piecewise`, `statistics`, `curves`, `attention`, `compounds`,
   `rearranging`, `sums`, `fixed_point` and `moved`, one rule per torch function.
2. The transformed image: `photometric` (smooth functions, padding, blurs, value changes) and `pixels` (coordinates, interpolation;
   `cubic`), `noise`; `polynomials`, for boxes of one parameter.
3. The network: `network`, and `head`, which a claim about classes may take off; `deep` for networks behind which radii are useless, with
   the norms of `spectral`; `digits`, `long_forms` and `long_pixels` for those that multiply roundings beyond their margins.
4. The run folder: `failed`, `strict_json`, `tiling`, `records`, `folder`.
5. The proof: `prover`, `kept` and `verdicts` (classification), `ranges` (regression), `single_pixels`, `alike`, `picture_bounds` and
   `pictures` (uint8 semantics), `check` (the entry point).
"""

from tiltproof.checker.check import CheckReport, check
from tiltproof.checker.failed import CheckFailed

__all__ = ["CheckFailed", "CheckReport", "check"]
