"""Set arithmetic: outward-rounded intervals, affine forms and relaxations of ReLU. No images, no networks."""
