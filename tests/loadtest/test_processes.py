import httpx
import pytest
from warmroute_loadtest.processes import StartError, processes, url_in


def test_children_end_with_the_block() -> None:
    with processes() as children:
        process = children.spawn("warmroute_loadtest.mock_worker")
        url = url_in(children.announcement(process))
        assert httpx.get(f"{url}/health").status_code == 200
    assert process.returncode is not None


def test_children_end_when_the_block_fails() -> None:
    with pytest.raises(RuntimeError, match="on the way"), processes() as children:  # noqa: PT012
        process = children.spawn("warmroute_loadtest.mock_worker")
        raise RuntimeError("on the way")
    assert process.returncode is not None


def test_a_child_that_does_not_start_is_told() -> None:
    with processes() as children, pytest.raises(StartError, match="exit code 2"):
        children.start("warmroute_router", "--port", "none")
