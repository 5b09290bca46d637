"""A worker starts often, so what it loads is what it needs."""

import subprocess
import sys

import pytest


def test_jobs_do_not_load_torchs_compiler() -> None:
    """`torch._dynamo` alone takes longer than everything else together."""
    pytest.importorskip("torch")
    modules = ("time_events", "verify", "ncu_target")
    imports = "; ".join(f"import fa_tune.gpu.jobs.{name}" for name in modules)
    script = (
        "import sys, types\n"
        "try:\n    import cupy\n"
        "except ImportError:\n    sys.modules['cupy'] = types.ModuleType('cupy')\n"
        f"{imports}\nprint('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
