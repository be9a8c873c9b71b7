"""Search over parameters, attack, verdicts."""

from tiltproof.certify.api import certify
from tiltproof.certify.attack import AttackResult, attack
from tiltproof.certify.verdict import Budget, Certificate, Progress, Verdict

__all__ = ["AttackResult", "Budget", "Certificate", "Progress", "Verdict", "attack", "certify"]
