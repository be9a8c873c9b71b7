"""Seconds of proofs over the roofline lower bound: what their arithmetic and traffic take at the measured ceilings.

    python benchmarks/floor.py [--device cuda] [--rows ...] [--images N] [--repeats 5] [--json FILE] [--baseline FILE] [--store FILE]
    python benchmarks/floor.py --threads 1 --cpu-seconds                           # on a shared machine
    python benchmarks/floor.py --networks DIR --data-root DIR [--device cuda]      # the CGT authors' networks
    python benchmarks/floor.py --run FOLDER ... --data-root DIR                    # networks trained here

Without --networks the bundled networks are certified, on bundled samples or, with --data-root, on the data sets.
``cnn7`` and ``cnn7-float64`` are an untrained CNN7 for 32 x 32 RGB images (a trained one: --run): nothing is certified;
a given number of (image, box) pairs goes through the prover, forward and backward, to measure the speed of bound
propagation.

boxes: boxes bounded by the search; f64: those of them in float64; margins: margins refined backward; MFLOP and kB: per
box, including its margins; floor: the lower bound for all boxes, by the formulas of `floor_work.py`; seconds: the whole
of `certify`, median and range of --repeats runs; ratio: seconds / floor. Attack, tracing, pilot runs and search count
in the seconds and not in the floor, as does all work beyond the minimum. ``forward`` and ``backward`` are the fractions
of the matrix ceiling that these passes reach; ``pixels`` is the fraction of the copy ceiling that pixel bounds with
their coordinates reach. These fractions, and the breakdown below the table, come from a separate run in which the clock
waits for the device at every change of stage.

Ceilings are measured before, between and after the rows, and the best counts: a large float32 product without TF32, a
float64 one, and a large copy. On a CPU, forms that fit into caches move faster than the copy, so a memory-bound floor
may be undercut there.

A baseline (--store writes one) holds the ratios of an earlier run; the one in the repository is for --threads 1
--cpu-seconds. ``then -> now`` compares medians; a row is called slower or faster only if the ranges of both runs do not
overlap. Ratios to ceilings are only roughly comparable between machines: caches, the number of cores and the load
affect seconds and ceilings differently.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import reference_networks
import torch
from ablation import device_name, save
from floor_cases import CARDS, DEFAULT_ROWS, UNTRAINED, Case, cases
from floor_table import compared, show, show_comparison
from floor_watch import STAGES, Watch
from floor_work import Counts, copy_seconds, floor_seconds, highest, matrix_seconds, measured_ceilings

import tiltproof
from tiltproof.verify.inputs import check_inputs

BASELINE = Path(__file__).parent / "baselines" / "cpu-one-thread.json"


def measured(case: Case, repeats: int, clock: Callable[[], float]) -> dict:
    """Everything about one row that needs no ceiling."""
    device = case.images.device

    def seconds(work: Callable[[], dict]) -> tuple[float, dict]:
        began = clock()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock() - began, result

    case.job(None if device.type == "cuda" else 8)()  # warm-up; a GPU's kernels are chosen by shape
    network = check_inputs(case.model, case.images, case.labels, case.transform).network
    work, watch = case.job(), Watch(device, Counts(network, case.images.element_size()), clock)
    with watch.running():
        work()
    runs = [seconds(work) for _ in range(repeats)]
    return {"case": case, "watch": watch, "seconds": [each for each, _ in runs], "summary": runs[-1][1]}


def row_of(found: dict, ceilings: dict[str, float]) -> dict:
    """A line of the table, ready for JSON."""
    case, watch, summary = found["case"], found["watch"], found["summary"]
    needed, pilots = watch.tallies["search"], watch.tallies["pilots"]
    everything, boxes = needed + pilots, summary["boxes"]
    by_stage = floor_seconds(needed, ceilings)
    floor, own = sum(by_stage.values()), {stage: watch.seconds[stage] for stage in STAGES}

    def share(floor: float, seconds: float) -> float | None:
        return floor / seconds if seconds else None

    return {
        "row": case.name,
        "source": case.source,
        "transform": case.transform,
        "images": len(case.images),
        "pairs": case.pairs,
        "certified": summary["certified"],
        "boxes": boxes,
        "boxes_watched": sum(needed.pairs.values()),
        "boxes_float64": needed.pairs["float64"],
        "margins_backward": needed.margins,
        "pilot_boxes": sum(pilots.pairs.values()),
        "pilot_margins": pilots.margins,
        "flop_per_box": sum(needed.flop.values()) / max(1, boxes),
        "bytes_per_box": sum(needed.bytes.values()) / max(1, boxes),
        "floor_seconds": floor,
        "floor_by_stage": by_stage,
        "seconds": found["seconds"],
        "ratios": [each / floor for each in sorted(found["seconds"])] if floor else [],
        "breakdown_seconds": own,
        "forward_of_matrix_ceiling": share(matrix_seconds(everything, "forward", ceilings), own["forward"]),
        "backward_of_matrix_ceiling": share(matrix_seconds(everything, "backward", ceilings), own["backward"]),
        "pixels_of_copy_ceiling": share(
            copy_seconds(everything, "pixels", ceilings), own["pixels"] + own["coordinates"]
        ),
    }


def processor() -> str:
    """The CPU's name, if the system reports it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [text.split(":", 1)[1].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", choices=[*CARDS, *UNTRAINED], help=f"default: {' '.join(DEFAULT_ROWS)}")
    parser.add_argument("--networks", type=Path, help="the folder of the authors' networks; needs --data-root")
    parser.add_argument("--data-root", help="data sets; without it the bundled samples are used")
    parser.add_argument("--run", type=Path, nargs="+", default=[], help="folders of finished training runs")
    parser.add_argument("--images", type=int, help="default: 100 for R(30), 10 for others; on a GPU all there are")
    parser.add_argument("--pairs", type=int, help="of cnn7; default: 128, on a GPU 16,384")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of the CPU; default: torch's")
    parser.add_argument(
        "--quick", action="store_true", help="small products and copies, one run: it works, figures mean nothing"
    )
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="of this process, not of the clock on the wall; with one thread on a CPU",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--baseline", type=Path, help=f"default, on a CPU: benchmarks/baselines/{BASELINE.name}")
    parser.add_argument("--store", type=Path, help="write this run as a baseline")
    arguments = parser.parse_args()
    if arguments.networks is not None:
        unknown = set(arguments.rows or []) - {*reference_networks.ROWS, *UNTRAINED}
        if unknown:
            parser.error(f"the authors published no network for {', '.join(sorted(unknown))}")
        if arguments.data_root is None:
            parser.error("--networks needs --data-root: the authors' networks are measured on the data sets")
    for name in ("images", "pairs", "repeats", "threads"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if arguments.baseline is not None and not arguments.baseline.is_file():
        parser.error(f"--baseline: there is no file {arguments.baseline}")
    arguments.clock = time.process_time if arguments.cpu_seconds else time.perf_counter
    if arguments.cpu_seconds and (arguments.device != "cpu" or arguments.threads != 1):
        parser.error("--cpu-seconds needs --device cpu --threads 1: seconds of several threads do not add up to a time")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.quick:
        arguments.repeats = 1
        print("quick run: it shows that the program works; its figures mean nothing.")
    return arguments


def main() -> None:
    arguments = parsed()
    file = arguments.baseline or (BASELINE if arguments.device == "cpu" and BASELINE.exists() else None)
    baseline = None if file is None else json.loads(file.read_text())  # before --store may replace it
    device, ceilings, found = torch.device(arguments.device), [], []
    for case in cases(arguments):
        ceilings.append(measured_ceilings(device, arguments.quick, arguments.clock))
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        found.append(measured(case, arguments.repeats, arguments.clock))
    ceilings.append(measured_ceilings(device, arguments.quick, arguments.clock))
    best = highest(ceilings)
    result = {
        "device": device_name(arguments.device) + (", CPU seconds" if arguments.cpu_seconds else ""),
        "processor": processor(),
        "torch": torch.__version__,
        "version": tiltproof.__version__,
        "quick": arguments.quick,
        "ceilings": best,
        "rows": [row_of(each, best) for each in found],
    }
    show(result)
    if arguments.store is not None:
        save(arguments.store, result)
    if baseline is not None:
        result["comparison"] = compared(result["rows"], baseline)
        show_comparison(result["comparison"], baseline, file, result["device"])
    if arguments.json is not None:
        save(arguments.json, result)


if __name__ == "__main__":
    main()
