"""Train the bundled model mnist-r30: the paper's MNIST network for R(30), by worst-of-k sampled angles with a little L1.

    python benchmarks/train_bundled_model.py --data-root DIR --out mnist-r30.safetensors [--epochs 40] [--device cuda]

No bound takes part in training: the affine verifier proves such a network almost up to what an attack leaves (see docs).
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import tiltproof
from tiltproof.zoo import ARCHITECTURES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--angles", type=int, default=4, help="sampled angles per image, of which the worst is trained on"
    )
    parser.add_argument("--l1", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    transform = tiltproof.parse("R(30)")
    images, labels = (
        tensor.to(arguments.device) for tensor in tiltproof.load_data("mnist", root=arguments.data_root, split="train")
    )
    model = ARCHITECTURES["mnist_cnn"]().to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=5e-4)
    batch, steps = 256, len(images) // 256
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=arguments.epochs * steps, pct_start=0.2)
    for epoch in range(arguments.epochs):
        total = 0.0
        for rows in torch.randperm(len(images), device=arguments.device)[: steps * batch].view(steps, batch):
            x, y = images[rows], labels[rows]
            angles = torch.rand(arguments.angles * batch, 1, device=arguments.device) * 60 - 30
            turned = transform.apply(x.repeat(arguments.angles, 1, 1, 1), angles)
            with torch.no_grad():
                losses = F.cross_entropy(model(turned), y.repeat(arguments.angles), reduction="none").view(
                    arguments.angles, batch
                )
            worst = losses.argmax(0) * batch + torch.arange(batch, device=arguments.device)
            loss = F.cross_entropy(model(turned[worst]), y)
            sparsity = sum(p.abs().sum() for p in model.parameters() if p.ndim > 1)
            optimizer.zero_grad(set_to_none=True)
            (loss + arguments.l1 * sparsity).backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1:3d}  worst-of-{arguments.angles} loss {total / steps:.4f}", flush=True)
    save_file({name: tensor.cpu() for name, tensor in model.state_dict().items()}, arguments.out)


if __name__ == "__main__":
    main()
