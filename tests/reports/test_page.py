"""The report's file, without a browser: what it says, what it refuses, that it is safe and small."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from tests.support.run_folder import manifest_of, record, write_run
from tiltproof import RunFolder, check
from tiltproof.errors import InputError
from tiltproof.reports import page as page_module
from tiltproof.reports import report
from tiltproof.reports.assessment import unclaimed
from tiltproof.reports.columns import stages
from tiltproof.reports.page import SCRIPTS, order
from tiltproof.reports.sentences import in_words, meaning_of, percent, quote, scope
from tiltproof.runs.checked import COUNTS, Checked, run_digest, write_checked
from tiltproof.runs.reader import read_finished
from tiltproof.transforms import LETTERS, Compose, Part, Rotation, parse
from tiltproof.verify.api import certify, certify_range

IMAGES_OF_DETAILS = ("image", "turned", "lower", "upper", "width")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{data}} &amp; \u2028"


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, outputs)).eval()


def some_images(count=6):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def run(tmp_path):
    """Return a real run of a small network: folder, model, images, labels."""
    model, images = network(), some_images()
    labels = model(images).argmax(1)
    labels[0] = (labels[0] + 1) % 3
    certify(model, images, labels, "R(20)", run=RunFolder(tmp_path / "run", notes={"model": HOSTILE, "data": "noise"}))
    return tmp_path / "run", model, images, labels


def blocks(page):
    found = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def test_it_holds_every_image_and_their_details(run):
    path = report(*run)
    assert path == run[0] / "report.html"
    data = blocks(path.read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (run[0] / "verdicts.jsonl").read_text().splitlines()]
    main = data["data"]
    assert [main["verdictNames"][k] for k in main["verdicts"]] == [each["verdict"] for each in records]
    assert len(main["thumbnails"]) == 6
    assert all(text.startswith("data:image/png;base64,") for text in main["thumbnails"])
    assert main["parameters"] == [
        {"name": "rotation (degrees)", "letter": "R", "unit": "degrees", "low": -20.0, "high": 20.0}
    ]
    for k, each in enumerate(records):
        detail = data[f"detail-{k}"]
        (line,) = detail["lines"]
        assert len(line["sampled"]) == 61
        assert line["boxes"][0][0] == -20
        assert line["boxes"][-1][1] == 20
        assert all(a[1] == b[0] for a, b in zip(line["boxes"], line["boxes"][1:], strict=False)), "no gap"
        if each["verdict"] == "certified":
            shown = main["margins"][k]
            assert 0 < shown <= each["margin"], "a proved bound is never rounded up"
            assert all(shown <= box[2] for box in line["boxes"])
            assert min(line["sampled"]) >= each["margin"]
        if each["counterexample"]:
            assert detail["worst"] == pytest.approx(each["counterexample"])
            assert detail["worstAnswer"] != each["label"]


def test_bounds_lie_below_what_is_sampled(run):
    data = blocks(report(*run).read_text(encoding="utf-8"))
    for k in range(6):
        (line,) = data[f"detail-{k}"]["lines"]
        for step, sampled in enumerate(line["sampled"]):
            at = -20 + 40 * step / 60
            bounds = [b for low, high, b in line["boxes"] if low - 1e-6 <= at <= high + 1e-6 and b is not None]
            assert all(bound <= sampled + 1e-3 for bound in bounds)


def test_two_parameters_have_a_map(tmp_path):
    model, images = network(), some_images(2)
    labels = model(images).argmax(1)
    certify(model, images, labels, "R(2), Sh(2)", run=RunFolder(tmp_path / "run"))
    data = blocks(report(tmp_path / "run", model, images, labels).read_text(encoding="utf-8"))
    detail = data["detail-0"]
    assert len(detail["lines"]) == 2
    assert [len(row) for row in detail["map"]["margins"]] == [17] * 17
    areas = sum((c - a) * (d - b) for a, b, c, d, _ in detail["map"]["boxes"])
    assert areas == pytest.approx(16, rel=1e-4), "the boxes of the tiling fill the range"
    assert all(bound > 0 for *_, bound in detail["map"]["boxes"])


def test_nothing_of_the_run_becomes_code(run):
    page = report(*run).read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page
    assert "<img src=x" not in page
    assert page.count("<script>") == 1
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page, "it is shown as the text it is"
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page).group(1)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r'(?:src|href)="(?!#|data:)', page), "nothing is loaded"


BREAKING = [
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "x onload=alert(1) ",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "url(javascript:alert(1))",
    "</title></style></script><script>alert(1)</script>",
    "<!--<script>",
    "]]><iframe srcdoc='<script>alert(1)</script>'>",
    "{{script}}{{policy}}",
]


class Structure(HTMLParser):
    """Collects every tag of a page with its attributes and values, and the content of scripts and styles."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.code, self.inside, self.said = [], [], None, ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, attributes))
        self.inside = dict(attributes).get("type", "code") if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self.tags.append(("/" + tag, []))
        self.inside = None

    def handle_comment(self, data):
        self.tags.append(("comment", data))

    def handle_data(self, data):
        if self.inside == "code":
            self.code.append(data)
        elif self.inside is None:
            self.said += data


@pytest.mark.parametrize("text", BREAKING)
def test_texts_of_a_run_change_no_tag_attribute_or_script(tmp_path, text):
    """Wherever a text of the run or of the command line goes, it stays text: the page keeps a harmless one's structure."""
    model, images = network(), some_images(1)
    labels = model(images).argmax(1)

    def page(word):
        folder = tmp_path / word[:1].encode().hex()
        manifest = manifest_of(model, images, labels, "R(2)")
        manifest["claim"] |= {"weights_sha256": word, "semantics": word}
        manifest["settings"] |= {"method": word}
        manifest |= {"notes": {"model": word, "data": word, "arch": word}, "environment": {word: word}}
        write_run(folder, manifest, [record(0, int(labels[0]), "certified", margin=0.1, grid=[2], tree="2.")])
        return report(folder, images=images, notices=(word,)).read_text(encoding="utf-8")

    harmless, hostile = Structure(page("word")), Structure(page(text))
    assert hostile.tags == harmless.tags
    assert hostile.code == harmless.code
    assert hostile.said.count(text) >= 6, "and it is shown as it is"


def test_the_pages_script_makes_no_html_and_no_addresses_of_texts():
    script = "".join((Path(page_module.__file__).parent / "web" / name).read_text("utf-8") for name in SCRIPTS)
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "srcset",
    ):
        assert word not in script
    assert not re.search(r"set(?:Timeout|Interval)\(['\"`]", script)
    addresses = re.findall(r"\b(?:src|href|action|formaction|xlink:href): *([^,}]+[}]?)", script)
    known = {
        "source",
        "thumbnail(k)",
        "block",
        "block.turned",
        "picture",
        "`#mark-${word",
        "`#mark-${kind",
        "'#images'",
    }
    assert {each.strip(" }") for each in addresses} == known
    assert re.findall(r"setAttribute\('src', ([^;]+)\);", script) == [
        "data.stages ? block.image || thumbnail(k) : frames.source"
    ]
    assert not re.search(r"location|window\.open", script)


def test_every_image_is_data(run):
    """The script assigns to `src` nothing but images that the report encoded itself."""
    found = blocks(report(*run).read_text(encoding="utf-8"))
    details = [found[name] for name in found if name != "data"]
    assert details
    sources = found["data"]["thumbnails"] + [each[key] for each in details for key in IMAGES_OF_DETAILS]
    assert all(re.fullmatch(r"data:image/(png|webp|jpeg);base64,[A-Za-z0-9+/=]+", source) for source in sources)


def test_without_model_or_data_it_says_so(run):
    page = report(run[0]).read_text(encoding="utf-8")
    assert "no images" in page
    assert blocks(page)["data"]["thumbnails"] == []
    page = report(run[0], images=run[2]).read_text(encoding="utf-8")
    assert "No model was given" in page
    assert len(blocks(page)["data"]["thumbnails"]) == 6


def test_other_weights_images_and_labels_are_refused(run):
    folder, model, images, labels = run
    with pytest.raises(InputError, match="weights are not those of the run"):
        report(folder, network().double().float().requires_grad_(False).apply(_nudge), images, labels)
    changed = images.clone()
    changed[3, 0, 0, 0] += 1e-6
    with pytest.raises(InputError, match="image 3 is not the run's"):
        report(folder, model, changed, labels)
    with pytest.raises(InputError, match="6 images"):
        report(folder, model, images[:5], labels[:5])
    with pytest.raises(InputError, match="labels"):
        report(folder, model, images, labels + 1)
    assert not (folder / "report.html").exists(), "nothing is drawn before it is compared"


def _nudge(module):
    if isinstance(module, nn.Linear):
        module.bias += 1e-6


def test_a_folder_that_was_changed_is_refused(run, tmp_path):
    folder = run[0]
    with pytest.raises(InputError, match="no run folder"):
        report(tmp_path)
    text = (folder / "verdicts.jsonl").read_text()
    (folder / "verdicts.jsonl").write_text(text.replace("misclassified", "certified"))
    with pytest.raises(InputError, match="sha256 differs"):
        report(folder)
    (folder / "summary.json").unlink()
    with pytest.raises(InputError, match="not complete"):
        report(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"label": "7"},
        {"label": -1},
        {"margin": "big"},
        {"boxes": "<b>"},
        {"seconds": float("inf")},
        {"verdict": "certain"},
        {"counterexample": [1.0, 2.0]},
        {"counterexample": [float("nan")]},
        {"grid": [0]},
        {"grid": [2, 2]},
        {"grid": [2], "tree": "9."},
        {"image": 9},
        {"more": 1},
    ],
)
def test_a_forged_record_is_refused_in_words(tmp_path, change):
    model, images = network(), some_images(1)
    labels = model(images).argmax(1)
    honest = record(0, int(labels[0]), "certified", margin=0.1, grid=[2], tree="2.")
    manifest = manifest_of(model, images, labels, "R(2)")
    write_run(tmp_path / "run", manifest, [honest])
    report(tmp_path / "run", model, images, labels)
    write_run(tmp_path / "run", manifest, [honest | change])
    with pytest.raises(InputError):
        report(tmp_path / "run", model, images, labels)


def test_the_sentence(run):
    sentence = quote(read_finished(run[0]))
    assert re.match(r"For \d of the 6 images \(\d+\.\d\d %\), it is proved that the network ", sentence)
    assert sentence.endswith("gives the right answer for every rotation between -20 and 20 degrees.")
    assert percent(9999, 10000) == "99.99 %"
    assert "shift between -2 and 2 pixels" in in_words(parse("Tu(2)"))
    assert in_words(parse("Tz(0.1@300)")) == (
        "forward move of the camera between -0.1 and 0.1 units of length (focal length 300 pixels, plane 0:-1:0)"
    )
    assert in_words(parse("Yaw(-1:5@300)")) == "camera yaw between -1 and 5 degrees (focal length 300 pixels)"
    assert all(part.noun != Part.noun and part.quantity != Part.quantity for part in LETTERS.values())
    assert in_words(parse("Sc(5), B(0.01)")).startswith(
        "combination of a scaling between -5 and 5 percent and a change"
    )


def test_what_matters_comes_first(run):
    finished = read_finished(run[0])
    ranks = ["falsified", "unknown", "misclassified", "certified"]
    placed = [ranks.index(str(finished.results[k].verdict)) for k in order(finished)]
    assert placed == sorted(placed)
    page = report(*run, details=2).read_text(encoding="utf-8")
    found = blocks(page)
    assert found["data"]["detailed"] == list(range(6)), "all turn"
    assert sorted(k for k in range(6) if "lower" in found[f"detail-{k}"]) == sorted(order(finished)[:2])
    for k in range(6):
        (line,) = found[f"detail-{k}"]["lines"]
        assert len(line["answers"]) == len(line["sampled"]) == 61
    assert "2 of the 6 images" in page


def test_images_by_their_numbers(run):
    page = report(*run, only=[4, 1]).read_text(encoding="utf-8")
    assert blocks(page)["data"]["detailed"] == [1, 4]
    assert "those asked for" in page
    with pytest.raises(InputError, match="no image 6"):
        report(*run, only=[1, 6])


def test_a_page_has_a_size(run, monkeypatch):
    monkeypatch.setattr(page_module, "MAX_BYTES", 9_000)
    page = report(*run).read_text(encoding="utf-8")
    shown = len(blocks(page)["data"]["detailed"])
    assert 0 < shown < 6
    assert f"{shown} of the 6 images turn in this page" in page


def test_who_checked_is_said_only_if_it_fits(run):
    folder, model, images, labels = run
    assert "Not yet proved again" in report(*run).read_text(encoding="utf-8")
    found = check(folder, model, images, labels)
    counts = {name: getattr(found, name) for name in COUNTS}
    write_checked(folder, run_digest(folder), Checked(True, **counts, by="<i>me</i>"))
    page = report(*run).read_text(encoding="utf-8")
    assert re.search(r"Re-proved by the checker on \d+ \w+ \d{4}, \d\d:\d\d UTC, by &lt;i&gt;me&lt;/i&gt;", page)
    path = folder / "check.json"
    path.write_text(path.read_text().replace(run_digest(folder), "0" * 64))
    page = report(*run).read_text(encoding="utf-8")
    assert "Re-proved" not in page
    assert "about another run and was left out" in page
    write_checked(folder, run_digest(folder), Checked(False, reason="image <1>"))
    assert "Refused by the checker" in (page := report(*run).read_text(encoding="utf-8"))
    assert "image &lt;1&gt;" in page


def test_claim_assumptions_evidence_and_what_is_not_claimed(run):
    page = report(*run).read_text(encoding="utf-8")
    digest = run_digest(run[0])
    for words in (
        "Assumptions",
        "What is not claimed",
        "Evidence",
        "Digest of the run",
        digest,
        "Begun",
        "Tensors, sha256",
    ):
        assert words in page
    assert hashlib.sha256((run[0] / "summary.json").read_bytes()).hexdigest() == digest
    assert page.count('class="counts"') == 1, "the counts once"
    assert 'class="still"' in page, "pictures without a script"


@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_each_semantics_says_what_it_leaves_out(run, semantics):
    finished = read_finished(run[0])
    finished.claim["semantics"] = semantics
    about, without = meaning_of(finished)
    assert about in scope(finished)
    assert without in unclaimed(finished)


def test_the_page_transforms_what_it_knows():
    class Own(Rotation):
        pass

    assert stages(Compose(Own(1, 2))) is None
    assert stages(parse("Bl(1)")) is None
    assert stages(parse("R(5); interpolation=nearest")) is None
    assert stages(parse("Yaw(5@30), B(0.1)")) == [["spatial", [[0, "Yaw", 30.0]]], ["values", [[1, "B", None]]]]


def test_frames_of_what_the_page_cannot_transform(tmp_path):
    model, images = network(), some_images(1)
    certify(model, images, model(images).argmax(1), "Bl(0.5)", run=RunFolder(tmp_path / "run"))
    data = blocks(report(tmp_path / "run", model, images).read_text(encoding="utf-8"))
    frames = data["detail-0"]["lines"][0]["frames"]
    picture = Image.open(io.BytesIO(base64.b64decode(frames["source"].split(",")[1])))
    assert picture.size == (8 * frames["count"], 8)
    assert data["data"]["stages"] is None


def test_regression(tmp_path):
    model, images = network(outputs=1), some_images(3)
    values = torch.tensor([0.1, 0.2, 0.3])
    certify_range(model, images, values, "R(5)", run=RunFolder(tmp_path / "run", notes={"model": "road"}))
    page = report(tmp_path / "run", model, images).read_text(encoding="utf-8")
    data = blocks(page)
    assert data["data"]["task"] == "regression"
    assert "leaves its certified range" in page
    for k in range(3):
        (line,) = data[f"detail-{k}"]["lines"]
        lower, upper = data["data"]["lower"][k][0], data["data"]["upper"][k][0]
        assert all(lower - 1e-6 <= value <= upper + 1e-6 for value in line["sampled"])
        assert all(lower - 1e-4 <= a <= b <= upper + 1e-4 for _, _, a, b in line["boxes"])


def test_a_range_without_ends(tmp_path):
    model, images = network(outputs=1), some_images(2)
    certify_range(model, images, None, "R(5)", run=RunFolder(tmp_path / "run"))
    lines = (tmp_path / "run" / "verdicts.jsonl").read_text().splitlines()
    open_ended = json.dumps(json.loads(lines[0]) | {"upper": [None], "complete": False})
    (tmp_path / "run" / "verdicts.jsonl").write_text(f"{open_ended}\n{lines[1]}\n")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    summary["files"]["verdicts.jsonl"] = hashlib.sha256((tmp_path / "run" / "verdicts.jsonl").read_bytes()).hexdigest()
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    page = report(tmp_path / "run", model, images).read_text(encoding="utf-8")
    assert "not bounded" in page
    assert blocks(page)["data"]["upper"][0] == [None]


def test_ten_thousand_images_stay_small(large_run, tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "SLIDERS", 20)
    path = report(*large_run, out=tmp_path / "large.html", details=20)
    assert path.stat().st_size < 11_000_000
    assert len(blocks(path.read_text(encoding="utf-8"))["data"]["thumbnails"]) == 10_000
