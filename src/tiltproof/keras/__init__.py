"""Networks from Keras files: ``.keras`` and ``.h5``, read layer by layer into a flat list of plain torch functions.

TensorFlow and Keras are not needed, and no code from the file is run. A Keras network takes images [N, H, W, C]; what is read takes
[N, C, H, W] as all of tiltproof does, with kernels transposed and a permutation wherever Keras flattens or reshapes an image.
"""

from tiltproof.keras.reader import load_keras

__all__ = ["load_keras"]
