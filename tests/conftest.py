import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on the loop that serves."""
    return "asyncio", {"use_uvloop": True}
