"""What may be tried again."""

import pytest
from warmroute_router.config import RetryConfig
from warmroute_router.errors import ConnectFailed, ConnectionLost, Declined, TimedOut, UpstreamError
from warmroute_router.retries import Retries, is_repeatable

FAILED, LOST = ConnectFailed("nobody"), ConnectionLost("gone")
BUSY, LATE = Declined(503, None), TimedOut("first-byte", 1.0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("method", "path", "repeatable"),
    [
        ("GET", "/anything", True),
        ("DELETE", "/v1/responses/1", True),
        ("POST", "/v1/chat/completions", True),
        ("POST", "/v1/embeddings", True),
        ("POST", "/generate", True),
        ("POST", "/v1/files", False),
        ("POST", "/flush_cache", False),
        ("PATCH", "/v1/chat/completions", False),
    ],
)
def test_what_changes_nothing_may_be_sent_twice(method: str, path: str, repeatable: bool) -> None:
    assert is_repeatable(method, path) is repeatable


def test_what_was_never_sent_may_always_be_sent() -> None:
    assert Retries(RetryConfig()).allows(FAILED, 1, repeatable=False)


@pytest.mark.parametrize("error", [LOST, BUSY, LATE])
def test_what_may_have_been_done_is_only_repeated_where_that_does_no_harm(error: UpstreamError) -> None:
    retries = Retries(RetryConfig())
    assert retries.allows(error, 1, repeatable=True)
    assert not retries.allows(error, 1, repeatable=False)


@pytest.mark.parametrize("error", [FAILED, LOST, BUSY, LATE])
def test_after_the_last_retry_there_is_none(error: UpstreamError) -> None:
    retries = Retries(RetryConfig(max_retries=2))
    assert [retries.allows(error, tries, repeatable=True) for tries in (1, 2, 3)] == [True, True, False]
    assert not Retries(RetryConfig(max_retries=0)).allows(error, 1, repeatable=True)


def test_declined_requests_are_repeated_as_a_share_of_all() -> None:
    retries = Retries(RetryConfig(budget=0.25), Clock())
    spent = 0
    while retries.allows(BUSY, 1, repeatable=True):
        spent += 1
    assert spent == 500, "what was saved before"
    for _ in range(40):
        retries.earn()
    assert [retries.allows(BUSY, 1, repeatable=True) for _ in range(12)] == [True] * 10 + [False] * 2


def test_broken_connections_cost_no_budget() -> None:
    retries = Retries(RetryConfig(budget=0.0), Clock())
    assert all(retries.allows(LOST, 1, repeatable=True) for _ in range(1000))
    assert not retries.allows(BUSY, 1, repeatable=True)


def test_without_traffic_a_second_earns_a_retry() -> None:
    clock = Clock()
    retries = Retries(RetryConfig(), clock)
    while retries.allows(BUSY, 1, repeatable=True):
        pass
    clock.now = 3.5
    assert [retries.allows(BUSY, 1, repeatable=True) for _ in range(4)] == [True, True, True, False]


def test_pauses_grow_to_their_bound_with_jitter_and_only_where_a_worker_has_declined() -> None:
    retries = Retries(RetryConfig(initial_backoff=0.1, max_backoff=0.3, backoff_multiplier=2.0, jitter=0.2))
    for tries, usual in ((1, 0.1), (2, 0.2), (3, 0.3), (9, 0.3)):
        pauses = {retries.pause(BUSY, tries) for _ in range(50)}
        assert len(pauses) > 1
        assert all(0.8 * usual <= pause <= 1.2 * usual for pause in pauses)
    assert retries.pause(LOST, 3) == retries.pause(FAILED, 3) == 0.0
