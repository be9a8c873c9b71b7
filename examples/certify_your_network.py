"""Certify your own network: any torch.nn.Module of supported operations, normalization inside."""

import torch
from torch import nn

import tiltproof


class MyNetwork(nn.Module):
    """Takes pixels in [0, 1]: normalization belongs inside, so that it is part of the proof."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 5, stride=2)
        self.linear = nn.Linear(8 * 12 * 12, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.convolution((images - 0.1307) / 0.3081))
        return self.linear(features.flatten(1))


torch.manual_seed(0)
images, labels = tiltproof.data.load("mnist-sample")
model = MyNetwork()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(60):  # stands for your own training
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()

model.eval()
certificate = tiltproof.certify(model, images[:10], labels[:10], "R(5), B(0.02)")
for result in certificate.results:
    print(f"image {result.image}: {result.verdict}, margin {result.margin:.3f}, {result.boxes} boxes")
print(certificate.summary()["certified"], "of", len(certificate.results), "certified for", certificate.transform)
