"""Certify your own images: a folder with image files and a labels.csv."""

import csv
from pathlib import Path

from PIL import Image

import tiltproof

# Three digits of the bundled sample stand for your images: PNG or JPEG files of one size.
folder = Path("my-images")
folder.mkdir(exist_ok=True)
images, labels = tiltproof.data.load("mnist-sample")
rows = []
for k in range(3):
    pixels = (images[k, 0] * 255).round().byte().numpy()
    Image.fromarray(pixels).save(folder / f"digit-{k}.png")
    rows.append((f"digit-{k}.png", int(labels[k])))
with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("filename", "label"), *rows])

# Your program starts here. On the command line the folder is --data my-images.
images, labels = tiltproof.data.load(folder)
model = tiltproof.models.load("mnist-r30")
certificate = tiltproof.certify(model, images, labels, "R(30)", run=tiltproof.RunFolder("my-run", overwrite=True))
for (name, label), verdict in zip(rows, certificate.verdicts, strict=True):
    print(f"{name} ({label}): {verdict}")

# The checker proves the run folder again and shares no code with the prover.
report = tiltproof.check("my-run", model, images, labels)
print(f"checked: {report.certified} certified images, {report.boxes} boxes")
