"""Train a provable network and certify it: a recipe, the bundled training loop, a certificate."""

import tiltproof
from tiltproof.training import train

# The bundled sample has 100 images, enough to show every step. Omit images and labels to train on all of MNIST.
images, labels = tiltproof.data.load("mnist-sample")
recipe = tiltproof.training.read_recipe("mnist-r30").with_settings(
    [
        "transform=R(10)",  # the range to train for
        "train.epochs=15",
        "train.batch_size=25",
        "loss.samples=2",  # train on the worse of two random angles
    ]
)
result = train(recipe, images=images, labels=labels, out="runs/example", device="cpu")
print("weights and card in", result.folder)

certificate = tiltproof.certify(result.model, images[:8], labels[:8], recipe.transform)
print(certificate.summary()["certified"], "of 8 images certified for", certificate.transform)
