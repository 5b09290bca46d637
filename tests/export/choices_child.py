"""What an exported library chooses: run with the stub in place of the driver.

Arguments: the library, a GPU's name, its compute capability as one number, a file with keys of
workloads, one a line.  Prints the config of each.
"""

import ctypes
import sys
from pathlib import Path

from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of
from fa_tune.core.workload import Workload
from tests.csrc.stub import Stub


def main(path: str, gpu: str, capability: str, keys: str) -> None:
    Stub().set_device(gpu, int(capability), 132, 50 << 20)
    library = abi.load(Path(path))
    table, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert library.fa_tune_exported(ctypes.byref(table)) == abi.Status.OK
    for key in Path(keys).read_text(encoding="utf-8").splitlines():
        problem = problem_of(Workload.from_key(key))
        status = library.fa_tune_find(table, problem, 0, kernel)
        if status == abi.Status.OK:
            print(library.fa_tune_kernel_config(kernel).decode())
        else:
            print(abi.Status(status).name)


if __name__ == "__main__":
    main(*sys.argv[1:])
