"""Out to other tools: pixel boxes as VNN-LIB with the network as ONNX, and a run's results as CSV or JSON lines."""

from tiltproof.export.instances import Property, VnnlibFolder, export_run, export_vnnlib
from tiltproof.export.results import as_csv, as_jsonl, result_rows
from tiltproof.onnx.writer import write_onnx

__all__ = [
    "Property",
    "VnnlibFolder",
    "as_csv",
    "as_jsonl",
    "export_run",
    "export_vnnlib",
    "result_rows",
    "write_onnx",
]
