"""Regression: prove a range that a network's output never leaves under a range of transformations."""

import torch
from torch import nn

import tiltproof

# The task: predict the mean column of a digit's pixels, weighted by brightness, from -13.5 to 13.5.
images, _ = tiltproof.data.load("mnist-sample")
columns = torch.arange(28) - 13.5
values = (images * columns).sum((1, 2, 3)) / images.sum((1, 2, 3))

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
shift = tiltproof.transforms.TranslationU(2)
for _ in range(150):
    moved = torch.empty(len(images), 1).uniform_(-2, 2)
    target = values + moved[:, 0]
    optimizer.zero_grad()
    (model(shift.apply(images, moved))[:, 0] - target).square().mean().backward()
    optimizer.step()

model.eval()
certificate = tiltproof.certify_range(model, images[:5], values[:5], shift, tolerance=tiltproof.Tolerance(relative=0.2))
for result in certificate.results:
    (low,), (high,) = result.lower, result.upper  # one output
    (reached_low,), (reached_high,) = result.inner_lower, result.inner_upper
    print(f"image {result.image}: {result.prediction[0]:.2f} (true: {result.value[0]:.2f})")
    print(f"  proved: [{low:.2f}, {high:.2f}], inner range: [{reached_low:.2f}, {reached_high:.2f}]")
