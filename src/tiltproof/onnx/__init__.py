"""Networks from ONNX files: ``net.onnx`` becomes a module whose steps are the file's nodes, one by one.

Why a module and not a second reader into bounds: the proof, the attack, the digests of a run folder and the checker must all be about
the same network, and all of these take a module. So a file is read once, into a flat list of plain torch
functions (`module.OnnxModule`); ``network/`` reads that list as it reads any module's, node for operation, and no library translates
in between. What a node says that is not understood is refused by its op and its name, never skipped; and what was read must
agree with onnxruntime before it is used.
"""

from tiltproof.onnx import piecewise, quantized  # noqa: F401  (fills the tables)
from tiltproof.onnx.reader import load_onnx

__all__ = ["load_onnx"]
