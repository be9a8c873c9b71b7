"""An independent checker: re-proves a finished run folder with code that it shares with nothing else in the package.

Read it in this order: `form` (the arithmetic), `smooth`, `padding`, `pixels`, `blurs` and `values` (the transformed picture), `moves`,
`layers`, `activations`, `network` and `margins` (the network), `failed`, `strict`, `tiling`, `hashes`, `verdict_records`, `range_records`
and `folder` (the run folder), `proving`, `verdicts` (classification), `ranges` (regression) and `check` (what has to hold).
"""

from tiltproof.checker.check import CheckReport, check_run
from tiltproof.checker.failed import CheckFailed

__all__ = ["CheckFailed", "CheckReport", "check_run"]
