"""A GPU that need not be there, to compile kernels for."""

from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver


class Absent:
    """What Triton asks a driver for, to compile."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, _):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


class Compiled:
    def __init__(self, kernel, names):
        self.kernel, self.names = kernel, names

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.names.append(
            self.kernel.warmup(*arguments, grid=grid, **options).name
        )


def compiled(module, *kernels):
    """From now on a module's kernels are compiled where they would be launched; the names of those that were, as they come."""
    driver.set_active(Absent())
    names = []
    for name in kernels:
        setattr(module, f"{name}_kernel", Compiled(getattr(module, f"{name}_kernel"), names))
    return names
