"""GPU kernels behind one registry: each accelerates one reference function and is compared with it before it is used."""
