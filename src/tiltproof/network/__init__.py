"""A model as a list of operations, and one rule per operation: forward (affine form; interval is its case d = 0) and
backward."""

from tiltproof.network.agreement import read_network
from tiltproof.network.arithmetic import proof_arithmetic
from tiltproof.network.backward import forward_shares, refine, refine_outputs
from tiltproof.network.bound import bound_network
from tiltproof.network.effort import Effort, shallow_share
from tiltproof.network.evaluation import eval_mode
from tiltproof.network.export import export_network
from tiltproof.network.forward import check_labels, margins, run, separate_margins
from tiltproof.network.graph import Network, Operation
from tiltproof.network.pull import better

__all__ = [
    "Effort",
    "Network",
    "Operation",
    "better",
    "bound_network",
    "check_labels",
    "eval_mode",
    "export_network",
    "forward_shares",
    "margins",
    "proof_arithmetic",
    "read_network",
    "refine",
    "refine_outputs",
    "run",
    "separate_margins",
    "shallow_share",
]
