import os
import shutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Triton's kernels run in its interpreter where there is no GPU: that has to be said before they are first imported.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Where this was started in the background, SIGINT is ignored, and would be by all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No example fails for having been slow: a busy machine stops any process for a moment.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Each run draws the same examples, so that none fails by chance. `pytest --hypothesis-profile search` draws new ones.
settings.register_profile("same", patient, derandomize=True)
settings.register_profile("search", patient, print_blob=True)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _no_handler_of_a_signal_is_left_behind() -> Iterator[None]:
    """Processes that a later test forks would not end by it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on the loop that serves."""
    return "asyncio", {"use_uvloop": True}
