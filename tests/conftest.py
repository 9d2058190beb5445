import os
import shutil
import signal

import pytest
from hypothesis import HealthCheck, settings

# Triton's kernels run in its interpreter where there is no GPU: that has to be said before they are first imported.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Where this was started in the background, SIGINT is ignored, and would be by all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No example fails for having been slow: a busy machine stops any process for a moment.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on the loop that serves."""
    return "asyncio", {"use_uvloop": True}
