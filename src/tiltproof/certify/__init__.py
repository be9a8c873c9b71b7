"""Search over parameters, attack, verdicts, certificates."""

from tiltproof.certify.api import certify
from tiltproof.certify.attack import AttackResult, attack
from tiltproof.certify.certificate import Certificate, ImageResult
from tiltproof.certify.ranges import RangeCertificate, RangeResult
from tiltproof.certify.regression import RangeProgress, certify_range
from tiltproof.certify.verdict import Budget, Progress, Verdict

__all__ = [
    "AttackResult",
    "Budget",
    "Certificate",
    "ImageResult",
    "Progress",
    "RangeCertificate",
    "RangeProgress",
    "RangeResult",
    "Verdict",
    "attack",
    "certify",
    "certify_range",
]
