"""For other tools: VNN-LIB properties with the network as ONNX; results as CSV, JSON lines, JUnit XML, or in MLflow."""

from tiltproof.export.junit import as_junit
from tiltproof.export.results import as_csv, as_jsonl, result_rows
from tiltproof.export.tracking import log_mlflow
from tiltproof.export.vnnlib import Property, VnnlibFolder, export_run, export_vnnlib
from tiltproof.onnx.writer import write_onnx

__all__ = [
    "Property",
    "VnnlibFolder",
    "as_csv",
    "as_jsonl",
    "as_junit",
    "export_run",
    "export_vnnlib",
    "log_mlflow",
    "result_rows",
    "write_onnx",
]
