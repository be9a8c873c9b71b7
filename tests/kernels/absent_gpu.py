"""A fake GPU target to compile kernels for."""

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
    """Compile a module's kernels where they would be launched; return a growing list of their names."""
    driver.set_active(Absent())
    names = []
    for name in kernels:
        setattr(module, f"{name}_kernel", Compiled(getattr(module, f"{name}_kernel"), names))
    return names
