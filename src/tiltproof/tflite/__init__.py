"""Networks from TFLite files, float and int8, read operator by operator into a flat list of plain torch functions.

TensorFlow is not needed, and no code from the file is run. TFLite's images are [N, H, W, C]; what is read takes [N, C, H, W] as all of
tiltproof does. A network of whole numbers is read as its kernels compute: what is certified is the integer network itself.
"""

from tiltproof.tflite.reader import load_tflite

__all__ = ["load_tflite"]
