import pytest
from warmroute_router.config import normalize_worker_url


def refusal(url: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        normalize_worker_url(url)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("given", "normalized"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000"),
        ("https://gpu-1:8000", "https://gpu-1:8000"),
        ("gpu-1:8000", "http://gpu-1:8000"),
        ("gpu-1", "http://gpu-1"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://gpu-1:8000/", "http://gpu-1:8000"),
        ("gpu-1:8000/", "http://gpu-1:8000"),
        ("http://gpu-1/engine/v2", "http://gpu-1/engine/v2"),
        ("gpu-1/engine/", "http://gpu-1/engine"),
        ("http://gpu-1/Engine%20A//", "http://gpu-1/Engine%20A"),
        ("http://gpu-1:80", "http://gpu-1"),
        ("https://gpu-1:443/", "https://gpu-1"),
        ("http://gpu-1:443", "http://gpu-1:443"),
        ("https://gpu-1:80", "https://gpu-1:80"),
        ("gpu-1:", "http://gpu-1"),
        ("HTTP://GPU-1.Example.COM:8000", "http://gpu-1.example.com:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://[FE80::A]/p", "http://[fe80::a]/p"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://gpu-1:65535", "http://gpu-1:65535"),
    ],
)
def test_a_url_has_one_spelling(given: str, normalized: str) -> None:
    assert normalize_worker_url(given) == normalized
    assert normalize_worker_url(normalized) == normalized


def test_other_ports_schemes_and_paths_are_other_workers() -> None:
    urls = ("http://a", "https://a", "http://a:443", "http://a/p", "http://a/P")
    assert tuple(normalize_worker_url(url) for url in urls) == urls


@pytest.mark.parametrize("url", ["ftp://a", "ws://a:1", "unix:///run/a.sock", "grpc://a"])
def test_other_schemes_are_refused(url: str) -> None:
    assert refusal(url) == f"worker {url!r}: the scheme must be http or https"


@pytest.mark.parametrize("url", ["a:65536", "a:-1", "http://a:port", "http://a:1.5/x", "::1"])
def test_a_port_that_is_none_is_refused(url: str) -> None:
    message = refusal(url)
    assert message.startswith(f"worker {url!r}: ")
    assert "ort" in message


@pytest.mark.parametrize(
    "url",
    ["", "http://", "http:///path", "/path", "//a", "http://a?x=1", "a/p?x", "http://a#f", "http://é.example"],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    assert refusal(url) == f"worker {url!r}: expected a URL like http://host:port"


@pytest.mark.parametrize("url", ["http://user:SECRET@a", "user:SECRET@a:1", "https://SECRET@a/p", "http://:SECRET@a"])
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    message = refusal(url)
    clean = url.replace("user", "").replace(":SECRET", "").replace("SECRET", "").replace("@", "")
    assert message == f"worker {clean!r}: a URL with a user or a password is not supported"


@pytest.mark.parametrize(
    "url", ["http://user:SECRET@a:port", "ftp://user:SECRET@a", "http://user:SECRET@a?x=1", "http://user:SECRET@"]
)
def test_credentials_are_not_repeated_where_something_else_is_wrong_too(url: str) -> None:
    assert "SECRET" not in refusal(url)


@pytest.mark.parametrize("url", ["http://a b:1", "http://a ", "a:1/p q", "http://a\\b", "http://a:0", "http://a/é"])
def test_spaces_and_other_letters_that_no_url_has_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^worker '"):
        normalize_worker_url(url)


@pytest.mark.parametrize("url", ["http://[::1", "http://[zz]:1"])
def test_a_broken_ipv6_address_is_refused_by_name(url: str) -> None:
    assert refusal(url).startswith(f"worker {url!r}: ")
