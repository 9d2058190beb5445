"""Headers, one function call at a time; test_proxy.py has the same over a real socket."""

from typing import Any

import pytest
from warmroute_router.headers import request_headers, request_id, response_headers
from warmroute_router.types import Headers

HOP_BY_HOP = [
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
]


def forwarded(headers: Headers, length: int = 0, **scope: Any) -> list[bytes]:
    """The lines, without those that the router adds where there is no client and no host."""
    lines = request_headers({"headers": headers, "scheme": "http", "client": None, **scope}, length, b"id")
    assert lines[-2:] == [b"x-forwarded-proto: http", b"x-request-id: id"]
    return lines[:-2]


def all_lines(headers: Headers, **scope: Any) -> list[bytes]:
    return request_headers({"headers": headers, "scheme": "http", "client": None, **scope}, 0, b"id")


def test_end_to_end_headers_pass_in_their_order_and_as_often_as_they_came() -> None:
    headers = [
        (b"x-b", b"2"),
        (b"authorization", b"Bearer k"),
        (b"x-a", b"1"),
        (b"x-b", b"3"),
        (b"x-empty", b""),
        (b"x-latin", b"\xe9"),
        (b"cookie", b"a=b"),
    ]
    assert forwarded(headers) == [name + b": " + value for name, value in headers]


@pytest.mark.parametrize("name", HOP_BY_HOP, ids=bytes.decode)
def test_hop_by_hop_headers_stay_here(name: bytes) -> None:
    around: Headers = [(b"x-before", b"1"), (name, b"value"), (b"x-after", b"2")]
    # A body that came in chunks goes out with its length, even where it was empty.
    length = [b"content-length: 0"] if name == b"transfer-encoding" else []
    assert forwarded(around) == [b"x-before: 1", b"x-after: 2", *length]
    assert response_headers(200, around, []) == [(b"x-before", b"1"), (b"x-after", b"2")]


def test_expect_and_host_stay_here_in_a_request_and_pass_in_a_response() -> None:
    headers: Headers = [(b"expect", b"100-continue"), (b"host", b"h")]
    assert all_lines(headers) == [b"x-forwarded-host: h", b"x-forwarded-proto: http", b"x-request-id: id"]
    assert response_headers(200, headers, []) == headers


NAMED: Headers = [
    (b"connection", b"close, X-One ,x-TWO"),
    (b"x-one", b"1"),
    (b"x-two", b"2"),
    (b"x-three", b"3"),
    (b"x-four", b"4"),
    (b"connection", b",X-Three"),
    (b"close", b"5"),
]


def test_what_the_connection_header_names_stays_here() -> None:
    assert forwarded(NAMED) == [b"x-four: 4"]
    assert response_headers(200, NAMED, []) == [(b"x-four", b"4")]


def test_the_connection_header_hides_no_more_than_it_names() -> None:
    assert forwarded([(b"connection", b"x-on"), (b"x-one", b"1")]) == [b"x-one: 1"]


def test_the_clients_address_is_appended_to_the_chain() -> None:
    client = ("10.0.0.9", 1234)
    end = [b"x-forwarded-proto: http", b"x-request-id: id"]
    assert all_lines([], client=client) == [b"x-forwarded-for: 10.0.0.9", *end]
    one: Headers = [(b"x-forwarded-for", b"1.1.1.1")]
    assert all_lines(one, client=client) == [b"x-forwarded-for: 1.1.1.1, 10.0.0.9", *end]
    two: Headers = [*one, (b"x-a", b"1"), (b"x-forwarded-for", b"2.2.2.2, 3.3.3.3")]
    chain = b"x-forwarded-for: 1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.9"
    assert all_lines(two, client=client) == [b"x-a: 1", chain, *end]
    assert all_lines([], client=("::1", 1)) == [b"x-forwarded-for: ::1", *end]


def test_where_the_client_has_no_address_the_chain_stays_as_it_came() -> None:
    assert forwarded([]) == []
    assert forwarded([(b"x-forwarded-for", b"1.1.1.1")]) == [b"x-forwarded-for: 1.1.1.1"]


def test_the_public_host_is_told_and_one_that_was_told_is_kept() -> None:
    assert forwarded([(b"host", b"public:8080")]) == [b"x-forwarded-host: public:8080"]
    told: Headers = [(b"host", b"inner"), (b"x-forwarded-host", b"public")]
    assert forwarded(told) == [b"x-forwarded-host: public"]


def test_the_public_host_that_was_told_is_kept_in_any_order() -> None:
    told: Headers = [(b"x-forwarded-host", b"public"), (b"host", b"inner")]
    assert forwarded(told) == [b"x-forwarded-host: public"]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_scheme_is_told_and_one_that_was_told_is_kept(scheme: str) -> None:
    assert all_lines([], scheme=scheme) == [b"x-forwarded-proto: " + scheme.encode(), b"x-request-id: id"]
    told: Headers = [(b"x-forwarded-proto", b"wss"), (b"x-a", b"1")]
    assert all_lines(told, scheme=scheme) == [b"x-forwarded-proto: wss", b"x-a: 1", b"x-request-id: id"]


def test_other_forwarding_headers_pass_untouched() -> None:
    headers: Headers = [(b"forwarded", b"for=1.1.1.1"), (b"via", b"1.1 a"), (b"x-real-ip", b"1.1.1.1")]
    assert forwarded(headers) == [b"forwarded: for=1.1.1.1", b"via: 1.1 a", b"x-real-ip: 1.1.1.1"]


@pytest.mark.parametrize(
    ("headers", "length", "lines"),
    [
        ([], 0, []),
        ([(b"content-length", b"0")], 0, [b"content-length: 0"]),
        ([(b"content-length", b"5")], 5, [b"content-length: 5"]),
        ([(b"transfer-encoding", b"chunked")], 7, [b"content-length: 7"]),
        ([(b"transfer-encoding", b"chunked")], 0, [b"content-length: 0"]),
        ([(b"content-length", b"5"), (b"content-length", b"5")], 5, [b"content-length: 5"]),
        ([(b"connection", b"content-length"), (b"content-length", b"5")], 5, [b"content-length: 5"]),
    ],
    ids=["no-body", "empty-body", "body", "chunked", "empty-chunked", "twice", "named-by-connection"],
)
def test_the_length_is_that_of_the_body_as_it_goes_out(headers: Headers, length: int, lines: list[bytes]) -> None:
    assert forwarded(headers, length) == lines


def test_the_clients_request_id_is_taken_and_sent_once() -> None:
    headers: Headers = [(b"x-request-id", b"first"), (b"x-request-id", b"second")]
    assert request_id(headers) == b"first"
    assert all_lines(headers) == [b"x-forwarded-proto: http", b"x-request-id: id"]


def test_without_a_request_id_a_new_one_is_made() -> None:
    made = {request_id([(b"x-other", b"1")]) for _ in range(20)}
    assert len(made) == 20
    assert {len(bytes.fromhex(each.decode())) for each in made} == {16}


def test_a_response_keeps_order_and_doubles() -> None:
    received: Headers = [
        (b"set-cookie", b"a=1"),
        (b"content-type", b"text/X"),
        (b"set-cookie", b"b=2"),
        (b"date", b"d"),
    ]
    assert response_headers(200, received, [(b"x-added", b"1")]) == [*received, (b"x-added", b"1")]


@pytest.mark.parametrize(
    ("status", "kept"), [(200, True), (206, True), (404, True), (500, True), (204, False), (304, False)]
)
def test_a_status_without_a_body_has_no_length(status: int, kept: bool) -> None:
    etag, length = (b"etag", b"x"), (b"content-length", b"5")
    assert response_headers(status, [length, etag], []) == ([length, etag] if kept else [etag])


def test_the_workers_own_request_id_wins() -> None:
    added: Headers = [(b"x-request-id", b"router"), (b"x-warmroute-worker", b"w")]
    assert response_headers(200, [(b"x-request-id", b"worker")], added) == [
        (b"x-request-id", b"worker"),
        (b"x-warmroute-worker", b"w"),
    ]
    assert response_headers(200, [], added) == added


def test_a_header_that_was_dropped_does_not_hide_an_added_one() -> None:
    received: Headers = [(b"connection", b"x-request-id"), (b"x-request-id", b"worker")]
    assert response_headers(200, received, [(b"x-request-id", b"router")]) == [(b"x-request-id", b"router")]
