from collections.abc import Iterator

import pytest
from warmroute_router import health


@pytest.fixture(scope="module", autouse=True)
def _the_start_waits_for_all_first_probes() -> Iterator[None]:
    """However slow this machine is. Who has a worker that hangs sets its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health, "FIRST_ROUND", 30.0)
        yield
