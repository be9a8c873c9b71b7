"""Read a finished run, and compare the network and images it is about with its digests."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltproof.errors import InputError, shown
from tiltproof.runs.checked import Checked, read_checked
from tiltproof.runs.curve import CURVE, CurvePoint, curve_of_radii, read_curve
from tiltproof.runs.folder import FORMAT, MANIFEST, RECORDS, RESUMED, RUN_FILES, SUMMARY, VERSION
from tiltproof.runs.manifest import image_digests, weights_digest
from tiltproof.transforms import Transform, parse
from tiltproof.transforms.noise import from_text
from tiltproof.verify.keep import Keep, is_own, keep_of
from tiltproof.verify.radius_results import RadiusCertificate, RadiusResult
from tiltproof.verify.results import Certificate, ImageResult, RangeCertificate, RangeResult, Verdict

MOST_BYTES = 2**31
KINDS: dict[str | None, tuple[type[Any], type[Any]]] = {
    None: (ImageResult, Certificate),
    "regression": (RangeResult, RangeCertificate),
    "radius": (RadiusResult, RadiusCertificate),
}
"""The classes of an image's result and of a certificate, by the task in a claim."""
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True)
class FinishedRun:
    """A finished run. ``results``: of classification, or of ``regression``."""

    folder: Path
    claim: dict[str, Any]
    settings: dict[str, Any]
    notes: dict[str, Any]
    environment: dict[str, Any]
    resumed: list[dict[str, Any]]
    """Other environments in which the run was resumed."""
    summary: dict[str, Any]
    transform: Transform
    regression: bool
    results: list[Any]
    curve: list[CurvePoint] | None
    notices: list[str]
    keep: Keep | None = None
    """What a classifier keeps, if that is not the label."""
    digest: str = ""
    """Of the whole run: the sha256 of its summary, which holds those of the other files."""
    began: str = ""
    """When the run began (UTC), if its manifest says so."""
    checked: Checked | None = None
    """What a check of this very run found."""

    @property
    def task(self) -> str:
        """What the run needs of its data: target values, labels, or nothing."""
        return "regression" if self.regression else "any" if is_own(self.keep) else "classification"

    @property
    def tightened(self) -> bool:
        """Whether margins of certified images are tight enough to compare them."""
        return self.settings.get("tighten") is not None

    @property
    def radii(self) -> bool:
        """Whether the run looked for the largest proved range of each image."""
        return self.claim.get("task") == "radius"

    @property
    def first(self) -> int:
        return int(self.claim["first"])

    def name(self, kind: str) -> str:
        """Return the name of the model or the data in the notes, or an empty text."""
        text = self.notes.get(kind)
        return shown(text, 120) if isinstance(text, str) else ""


def read_finished(folder: str | Path) -> FinishedRun:
    """Read a run; refuse a folder without a complete run, or with files that differ from the sealed ones."""
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise InputError(
            "there is no run folder here", got=folder, do="name a folder that tiltproof certify --out wrote"
        )
    if not (folder / SUMMARY).is_file():
        raise InputError(
            "the run is not complete", got=f"{folder} without {SUMMARY}", do="finish it with certify ... --resume"
        )
    content = {name: _bytes(folder / name) for name in RUN_FILES}
    try:
        manifest, summary = json.loads(content[MANIFEST]), json.loads(content[SUMMARY])
        if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
            raise ValueError(f"{MANIFEST} is not of the format {FORMAT}, version {VERSION}")
        digests = {name: hashlib.sha256(content[name]).hexdigest() for name in RUN_FILES if name != SUMMARY}
        for name, digest in digests.items():
            if summary["files"][name] != digest:
                raise ValueError(f"{name} is not the file that the run wrote (its sha256 differs)")
        claim = manifest["claim"]
        regression = claim.get("task") == "regression"
        kind, of_kind = KINDS[claim.get("task")]
        results: list[Any] = [kind.of_record(json.loads(line)) for line in content[RECORDS].splitlines()]
        numbers = list(range(claim["first"], claim["first"] + len(claim["images_sha256"])))
        if not numbers or [result.image for result in results] != numbers:
            raise ValueError("records and claim are not about the same images")
        transform = parse(claim["transform"])
        if not isinstance(claim["weights_sha256"], str) or not isinstance(claim["semantics"], str):
            raise ValueError("the claim's sha256 or semantics is not text")
        for result in results:
            _check_record(result, len(transform.parts))
            if not regression:
                _check_perturbation(result, transform, tuple(claim["shape"]))
        settings, notes, environment = (dict(manifest[name]) for name in ("settings", "notes", "environment"))
        resumed = [dict(each) for each in manifest.get(RESUMED, [])]
        if not regression:
            _same_counts(results, summary)
        about = str(transform), str(settings.get("method", "affine")), str(claim["semantics"])
        keep = None if regression else keep_of(claim.get("keep"))
        certificate = of_kind(*about, results, float(summary["seconds"]))
        if keep is not None and isinstance(certificate, Certificate):
            certificate.keep = keep.words
        summary = certificate.summary()  # counted from the records, whatever else the file says
    except DAMAGED as error:
        raise InputError(f"the run in {folder} is damaged", got=shown(error)) from None
    curve, notices = None, []
    if claim.get("task") == "radius":
        curve = curve_of_radii(results, transform)
    elif not regression:
        curve = read_curve(folder, digests[RECORDS], len(results))
        if curve is None and (folder / CURVE).exists():
            notices.append(f"{CURVE} belongs to other verdicts than this run's and was left out.")
    digest, checked = hashlib.sha256(content[SUMMARY]).hexdigest(), None
    found = read_checked(folder, digest, len(results), *_proved_and_broken(regression, results))
    if isinstance(found, Checked):
        checked = found
    elif found is not None:
        notices.append(f"{found} and was left out; tiltproof check writes a new one.")
    return FinishedRun(
        folder,
        claim,
        settings,
        notes,
        environment,
        resumed,
        summary,
        transform,
        regression,
        results,
        curve,
        notices,
        keep,
        digest,
        _date(manifest.get("began")),
        checked,
    )


def _proved_and_broken(regression: bool, results: list[Any]) -> tuple[int, int]:
    """How many images a complete check proves again, and how many counterexamples it evaluates."""
    if regression:
        return len(results), 0
    proved = [r.share > 0 if isinstance(r, RadiusResult) else r.verdict is Verdict.CERTIFIED for r in results]
    return sum(proved), sum(result.verdict is Verdict.FALSIFIED for result in results)


def _date(text: Any) -> str:
    """Return a date and time as `datetime` writes them; an empty text for anything else."""
    try:
        return datetime.fromisoformat(text).isoformat()
    except (TypeError, ValueError):
        return ""


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is too large to be a run's")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path.name} of the run cannot be read", got=f"{path} ({error.strerror})") from None


def _check_record(result: ImageResult | RangeResult, parameters: int) -> None:
    """Check the types and lengths of numbers against parameters and outputs; ValueError if wrong."""
    vectors: list[tuple[Any, int]]
    if isinstance(result, RangeResult):
        outputs = len(result.prediction)
        names = ("prediction", "inner_lower", "inner_upper")
        vectors = [(getattr(result, name), outputs) for name in names]
        vectors += [(point, parameters) for point in (*result.lowest_at, *result.highest_at)]
        vectors += [] if result.value is None else [(result.value, outputs)]
        lengths = {len(ends) for ends in (result.lower, result.upper, result.lowest_at, result.highest_at)}
        right = outputs > 0 and lengths == {outputs} and not any(map(math.isnan, (*result.lower, *result.upper)))
    else:
        points = [result.counterexample, *(result.open_box or ())]
        vectors = [(point, parameters) for point in points if point is not None]
        right = type(result.label) is int and 0 <= result.label < 2**31 and not math.isnan(result.margin)
        if result.reached is not None:
            vectors += [((result.reached,), 1), (result.reached_at or (), parameters)]
        if isinstance(result, RadiusResult):
            vectors.append(((result.share,), 1))
            right = right and 0 <= result.share <= 1
    grid = () if result.grid is None else result.grid
    right = right and all(type(n) is int and n > 0 for n in grid) and len(grid) in (0, parameters)
    right = right and isinstance(result.tree, str | None) and type(result.boxes) is int
    vectors.append(((result.seconds,), 1))
    for vector, length in vectors:
        right = right and len(vector) == length and all(type(x) in (int, float) and abs(x) < 1e300 for x in vector)
    if not right:
        raise ValueError(f"the record of image {result.image} does not hold what belongs there")


def _check_perturbation(result: ImageResult, transform: Transform, shape: tuple[int, ...]) -> None:
    """Check what moves the pixels of a counterexample; ValueError if wrong."""
    if result.perturbation is not None:
        if not transform.noise or result.counterexample is None or not isinstance(result.perturbation, str):
            raise ValueError(f"the record of image {result.image} has a perturbation where none belongs")
        from_text(result.perturbation, shape)


def _same_counts(results: list[ImageResult], summary: dict[str, Any]) -> None:
    for verdict in Verdict:
        count = sum(result.verdict is verdict for result in results)
        if summary[verdict] != count:
            raise ValueError(f"the summary says {verdict} {summary[verdict]}, the records say {count}")


def check_model(run: FinishedRun, model: nn.Module) -> None:
    """Refuse a model with other weights than the run's."""
    digest = weights_digest(model)
    if digest != run.claim["weights_sha256"]:
        raise InputError(
            "the network's weights are not those of the run",
            got=f"sha256 {digest} instead of {shown(run.claim['weights_sha256'], 64)}",
            do="give the model that the run was made with",
        )


def check_images(run: FinishedRun, images: Tensor, labels: Tensor | None) -> Tensor:
    """Return the run's images in the run's precision; refuse other pixels or labels."""
    try:
        stored = images.to({"float32": torch.float32, "float64": torch.float64}[run.claim["dtype"]])
    except (KeyError, TypeError):
        raise InputError(f"the run in {run.folder} is damaged", got=f"dtype {shown(run.claim.get('dtype'))}") from None
    if len(stored) != len(run.results):
        raise InputError(f"the run is about {len(run.results)} images", got=f"{len(stored)} images")
    wanted = run.claim["images_sha256"]
    differs = [k for k, digest in enumerate(image_digests(stored)) if digest != wanted[k]]
    if differs:
        raise InputError(
            f"image {run.first + differs[0]} is not the run's (its pixels' sha256 differs)",
            got=f"{len(differs)} of {len(wanted)} images that differ",
            do="give the data that the run was made with",
        )
    if (
        labels is not None
        and run.task == "classification"
        and labels.tolist() != [result.label for result in run.results]
    ):
        raise InputError("the labels are not those of the run", do="give the data that the run was made with")
    return stored
