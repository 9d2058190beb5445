from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from warmroute_router.config import bracketed, normalize_worker_url
from warmroute_router.discovery.allow_list import AllowList

LABELS = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(".".join).filter(lambda name: not name.startswith("0x"))
PORTS = st.integers(1, 65535)
V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(IPv6Address)


def admits(pattern: str, url: str) -> bool:
    return AllowList((pattern,)).admits(normalize_worker_url(url))


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("gpu-1", "http://gpu-1:8000"),
        ("gpu-1", "https://gpu-1/engine"),
        ("GPU-1.Example.com", "http://gpu-1.example.COM."),
        ("gpu-1.example.com.", "gpu-1.example.com"),
        ("*.svc.cluster.local", "http://vllm-0.vllm.default.svc.cluster.local:8000"),
        ("gpu-*.example.com", "gpu-17.example.com"),
        ("vllm-*-eu.*.com", "vllm-a-b-eu.x.y.com"),
        ("https://gpu-1", "https://gpu-1:8443"),
        ("http://gpu-1:80", "http://gpu-1"),
        ("https://gpu-1:443", "https://gpu-1:443"),
        ("gpu-1:8000", "https://gpu-1:8000"),
        ("*", "http://anything"),
        ("*", "http://10.0.0.1"),
        ("https://*:8000", "https://10.0.0.1:8000"),
        ("10.0.0.1", "http://10.0.0.1:8000"),
        ("10.0.0.0/8:8000", "http://10.1.2.3:8000"),
        ("http://10.0.0.0/8", "http://10.255.255.255"),
        ("http://10.0.0.0/8", "http://[::ffff:10.1.2.3]"),
        ("::ffff:10.0.0.0/104", "http://10.1.2.3"),
        ("::1", "http://[::1]:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("fd00::/8", "http://[fd12::1]"),
        ("https://[fd00::/8]:8000", "https://[fdff::1]:8000"),
        ("https://fd00::/8", "https://[fd12::1]"),
        ("127.0.0.1", "http://2130706433"),
        ("127.0.0.1", "http://0x7f000001:8000"),
        ("127.0.0.1", "http://0177.1"),
        ("127.0.0.1", "http://127.0.0.1."),
    ],
)
def test_what_a_pattern_admits(pattern: str, url: str) -> None:
    assert admits(pattern, url)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("gpu-1", "http://gpu-11"),
        ("gpu-1", "http://gpu-1.evil.com"),
        ("*.svc.cluster.local", "http://svc.cluster.local"),
        ("*.svc.cluster.local", "http://evil.com/x.svc.cluster.local"),
        ("*.svc.cluster.local", "http://x.svc.cluster.local.evil.com"),
        ("*.svc.cluster.local", "http://xsvc.cluster.local"),
        ("*.svc.cluster.local", "http://evil.com%2f.svc.cluster.local"),
        ("*.svc.cluster.local", "http://evil.com;.svc.cluster.local"),
        ("gpu.example", "http://gpuxexample"),
        ("https://gpu-1", "http://gpu-1"),
        ("gpu-1:8000", "http://gpu-1:8001"),
        ("https://gpu-1:443", "http://gpu-1:443"),
        ("*a", "http://2130706433"),
        ("*a*", "http://0xa9fea9fe"),
        ("0x*.com", "http://0x7f.1"),
        ("a*", "http://[a::1]"),
        ("10.0.0.0/8", "http://11.0.0.0"),
        ("10.0.0.0/8", "http://10.0.0.1.evil.com"),
        ("10.0.0.0/8", "http://10.evil.com"),
        ("10.0.0.0/8", "http://012.0.0.1.2"),
        ("10.0.0.0/8", "http://010.0.0.1"),
        ("10.0.0.0/8", "http://[::10.0.0.1]"),
        ("::/0", "http://[::ffff:10.0.0.1]"),
        ("::/0", "http://10.0.0.1"),
        ("0.0.0.0/0", "http://[::1]"),
        ("0.0.0.0/0", "http://localhost"),
    ],
)
def test_what_a_pattern_does_not_admit(pattern: str, url: str) -> None:
    assert not admits(pattern, url)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "http://",
        "ftp://gpu-1",
        "gpu 1",
        "gpu-1/engine",
        "http://gpu-1/",
        "user@gpu-1",
        "gpu-1:",
        "gpu-1:0",
        "gpu-1:65536",
        "gpu-1:x",
        "gpu-[12]",
        "gpu-?",
        "[gpu-1]x",
        "[::1",
        "::1]",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "10.0.0.0/",
        "fd00::1/8",
        "10.*",
        "*.*",
        "10.0.0",
        "2130706433",
        "0x7f.1",
        "gpü",
    ],
)
def test_a_bad_pattern_is_named(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^allowed worker ") as caught:
        AllowList(("gpu-1", pattern))
    assert repr(pattern) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(NAMES, PORTS)
def test_an_empty_list_admits_all(name: str, port: int) -> None:
    assert AllowList(()).admits(normalize_worker_url(f"https://{name}:{port}"))


@given(st.lists(st.sampled_from(["gpu-1", "10.0.0.0/8", "*.com", "https://*"]), min_size=1), NAMES)
def test_a_list_admits_what_one_of_its_patterns_does(patterns: list[str], name: str) -> None:
    assert AllowList(tuple(patterns)).admits(f"http://{name}") is any(admits(one, name) for one in patterns)


@given(NAMES, PORTS, st.data())
def test_a_star_stands_for_any_part_of_a_name(name: str, port: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(name)))
    end = data.draw(st.integers(start, len(name)))
    pattern = name[:start] + "*" + name[end:]
    assume(any(letter.isalpha() or letter == "-" for letter in pattern) or pattern == "*")
    assert admits(pattern, f"http://{name}:{port}")
    assert admits(f"{pattern}:{port}".upper(), f"https://{name}.:{port}".upper())
    assert not admits(f"{pattern}:{port}", f"http://{name}:{port % 65535 + 1}")


@given(NAMES, NAMES)
def test_a_name_admits_itself_alone(pattern: str, name: str) -> None:
    assert admits(pattern, name) is (pattern == name)


@given(NAMES, NAMES, NAMES)
def test_a_suffix_cannot_be_outdone_by_what_follows(suffix: str, prefix: str, evil: str) -> None:
    assume(not f"{prefix}.{suffix}.{evil}".endswith(f".{suffix}"))
    assert admits(f"*.{suffix}", f"{prefix}.{suffix}")
    assert not admits(f"*.{suffix}", f"{prefix}.{suffix}.{evil}")


def spellings(address: IPv4Address) -> list[str]:
    number = int(address)
    a, b, c, d = address.packed
    return [
        str(address),
        f"{address}.",
        str(number),
        hex(number),
        f"0{number:o}",
        f"{a}.{b}.{c * 256 + d}",
        f"{a:#x}.{number & 0xFFFFFF}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"[::ffff:{address}]",
        f"[::ffff:{a:02x}{b:02x}:{c:02x}{d:02x}]",
    ]


@given(V4, st.integers(0, 32), V4)
def test_every_spelling_of_an_address_is_that_address(address: IPv4Address, length: int, other: IPv4Address) -> None:
    network = IPv4Network((other, length), strict=False)
    for spelling in spellings(address):
        assert admits(str(network), f"http://{spelling}:8000") is (address in network), spelling
        assert admits(str(address), f"http://{spelling}:8000"), spelling


@given(V6, st.integers(0, 128))
def test_a_network_admits_its_addresses(address: IPv6Address, length: int) -> None:
    assume(address.ipv4_mapped is None)
    network = IPv6Network((address, length), strict=False)
    for pattern in (str(network), f"[{network}]:80", f"http://[{network}]"):
        assert admits(pattern, f"http://{bracketed(str(address))}")


@given(V4, st.from_regex(r"\*?[a-z0-9.-]{0,3}\*?[a-z]\*?[a-f0-9x.]{0,3}\*?", fullmatch=True))
def test_no_pattern_of_names_admits_an_address(address: IPv4Address, pattern: str) -> None:
    try:
        allowed = AllowList((pattern,))
    except ValueError:
        return
    assert not any(allowed.admits(normalize_worker_url(f"http://{spelling}")) for spelling in spellings(address))


@given(st.text(st.sampled_from("ahtp0:/.*[]-19f x")), NAMES)
def test_any_pattern_is_either_understood_or_refused(pattern: str, name: str) -> None:
    try:
        allowed = AllowList((pattern,))
    except ValueError as error:
        assert repr(pattern) in str(error)  # noqa: PT017
        return
    assert allowed.admits(f"http://{name}") in (True, False)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20))
def test_any_url_of_a_worker_is_judged(host: str) -> None:
    try:
        url = normalize_worker_url(f"http://{host}")
    except ValueError:
        return
    assert AllowList(("10.0.0.0/8", "*.example.com", "[::1]:1")).admits(url) in (True, False)
