"""Settings for all tests: one thread each, because workers that share two cores wait for each other's threads."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
