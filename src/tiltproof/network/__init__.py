"""A model as a list of operations, and one rule per operation: forward (affine form; interval is its case d = 0) and
backward."""

from tiltproof.network.agreement import WithoutHead, read_network, users_code, without_head
from tiltproof.network.arithmetic import proof_arithmetic
from tiltproof.network.backward import (
    BackwardCost,
    better,
    forward_shares,
    refine,
    refine_between,
    refine_outputs,
    shallow_share,
)
from tiltproof.network.bound import bound_network
from tiltproof.network.forward import check_labels, margins, over_rows, run, separate_margins
from tiltproof.network.graph import Network, Operation, is_deep
from tiltproof.network.tracing import as_rows, eval_mode, export_network

__all__ = [
    "BackwardCost",
    "Network",
    "Operation",
    "WithoutHead",
    "as_rows",
    "better",
    "bound_network",
    "check_labels",
    "eval_mode",
    "export_network",
    "forward_shares",
    "is_deep",
    "margins",
    "over_rows",
    "proof_arithmetic",
    "read_network",
    "refine",
    "refine_between",
    "refine_outputs",
    "run",
    "separate_margins",
    "shallow_share",
    "users_code",
    "without_head",
]
