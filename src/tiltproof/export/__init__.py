"""Files for other tools: VNN-LIB properties with the network as ONNX, and results as CSV or JSON lines."""

from tiltproof.export.results import as_csv, as_jsonl, result_rows
from tiltproof.export.vnnlib import Property, VnnlibFolder, export_run, export_vnnlib
from tiltproof.onnx.writer import write_onnx

__all__ = ["Property", "VnnlibFolder", "as_csv", "as_jsonl", "export_run", "export_vnnlib", "result_rows", "write_onnx"]
