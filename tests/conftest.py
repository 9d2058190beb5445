import os
import shutil

import pytest

# Triton's kernels run in its interpreter where there is no GPU: that has to be said before they are first imported.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on the loop that serves."""
    return "asyncio", {"use_uvloop": True}
