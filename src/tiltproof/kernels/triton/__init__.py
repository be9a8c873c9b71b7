"""Bodies of the Triton kernels. They are imported on a GPU only."""
