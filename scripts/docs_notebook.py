"""Write docs/notebook.ipynb: a network of one's own, from its training to a certificate, with all outputs.

    pip install nbclient ipykernel
    python scripts/docs_notebook.py

The cells are below. A test runs the notebook's code, and fails when the notebook has other cells than these.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"

CELLS = [
    """# From your own network to a certificate

A network learns 100 digits in a few seconds, and tiltproof proves for which angles it keeps its answers. Put your own network and
images into the first two cells. The [tutorial](tutorial.md) says more about each step.""",
    """>>>
import torch
from PIL import Image
from torch import nn

import tiltproof

images, labels = tiltproof.data.load("mnist-sample")  # yours: tensors [N, C, H, W] in [0, 1], and labels [N]
images.shape, labels[:10].tolist()""",
    """>>>
class MyCNN(nn.Module):  # yours, with its weights; it takes normalized images
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 4, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 4, stride=2), nn.ReLU())
        self.head = nn.Linear(16 * 5 * 5, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


MEAN, STD = 0.1307, 0.3081
torch.manual_seed(0)
cnn = MyCNN()
optimizer = torch.optim.Adam(cnn.parameters(), lr=3e-3)
for _ in range(60):  # in place of cnn.load_state_dict(...)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(cnn((images - MEAN) / STD), labels)
    loss.backward()
    optimizer.step()
loss.item()""",
    """Normalization becomes a part of the network, since tiltproof transforms pixels in [0, 1]. Does every operation have a bound rule?""",
    """>>>
model = tiltproof.models.normalized(cnn.eval(), MEAN, STD)
tiltproof.inspect(model, images[:3]).refusals""",
    """Every angle from -3 to 3 degrees. `progress=True` shows a bar while the proof runs:""",
    """>>>
tiltproof.certify(model, images[:40], labels[:40], "R(3)", progress=True)""",
    """And with 15 degrees to either side:""",
    """>>>
certificate = tiltproof.certify(model, images[:40], labels[:40], "R(15)", progress=True)
certificate""",
    """Each counterexample is an angle at which the network is wrong. The first one, beside the image as it is:""",
    """>>>
wrong = next(result for result in certificate.results if result.counterexample)
angle = torch.tensor([wrong.counterexample], dtype=torch.float64)
before = images[wrong.image, None].double()
after = tiltproof.parse("R(15)").apply(before, angle)
answer = model(after.float()).argmax().item()
print(f"image {wrong.image}, a {wrong.label}: at {angle.item():.2f} degrees the answer is {answer}")
pair = torch.cat([before[0, 0], after[0, 0]], dim=1)
Image.fromarray((pair * 255).round().byte().numpy()).resize((448, 224), Image.Resampling.NEAREST)""",
    """How far can each image turn? The first number is proved, the second is wrong:""",
    """>>>
radii = tiltproof.certified_radius(model, images[:5], labels[:5], "R(20)")
radii.radii, radii.unit""",
    """Keep the evidence: a folder that a separate program proves again, and a report that opens in any browser.""",
    """>>>
tiltproof.certify(model, images[:40], labels[:40], "R(3)", run=tiltproof.RunFolder("runs/notebook", overwrite=True))
print(tiltproof.check("runs/notebook", model, images[:40], labels[:40]))
tiltproof.report("runs/notebook", model, images[:40], labels[:40])""",
]
"""Text, or code after a line ``>>>``."""


def cell(number: int, source: str) -> dict[str, Any]:
    """A cell of a notebook, not yet run."""
    code = source.startswith(">>>\n")
    lines = source.removeprefix(">>>\n").splitlines(keepends=True)
    common = {"cell_type": "code" if code else "markdown", "id": f"cell-{number:02d}", "metadata": {}, "source": lines}
    return common | ({"execution_count": None, "outputs": []} if code else {})


def notebook() -> dict[str, Any]:
    """The notebook without outputs."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    cells = [cell(number, source) for number, source in enumerate(CELLS)]
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        ready = nbformat.reads(json.dumps(notebook()), as_version=4)
        NotebookClient(ready, timeout=600, resources={"metadata": {"path": folder}}).execute()
    for each in ready["cells"]:
        each["metadata"] = {}  # the times of execution
        for output in each.get("outputs", []):
            output.get("data", {}).pop("image/jpeg", None)  # the PNG is enough
    ready["metadata"] = notebook()["metadata"]
    nbformat.validate(ready)
    NOTEBOOK.write_text(nbformat.writes(ready) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
