"""Which workers may be added while the router runs: an allow-list of hosts and networks.

Who may add workers could otherwise send the router to any server that it reaches. A name is judged as it is written,
not by what it resolves to: allow names in zones that you control.
"""

import re
import socket
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_PORTS = {"http": 80, "https": 443}
_PATTERN = re.compile(
    r"(?:(?P<scheme>https?)://)?(?:\[(?P<bracketed>[^\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?"
)
_NAME = re.compile(r"[a-z0-9_.-]+")
_MAPPED = IPv6Network("::ffff:0:0/96")
"""IPv4 addresses in the form of IPv6."""


class _Pattern(NamedTuple):
    """None for any."""

    scheme: str | None
    host: str | Network | None
    port: int | None


class AllowList:
    """Patterns `[SCHEME://]HOST[:PORT]`; without a port, any. An empty list admits all.

    HOST is a name, in which `*` stands for any part of it, dots too; or an address; or a network, `10.0.0.0/8`.
    Names match names and networks match addresses, in whatever spelling; `*` alone matches both.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        """Raises ValueError that names the pattern at fault."""
        self._patterns = [_parse(pattern) for pattern in patterns]

    def admits(self, url: str) -> bool:
        """`url` is normalised by `config.normalize_worker_url`."""
        parts = urlsplit(url)
        host = _host((parts.hostname or "").lower())
        port = parts.port or _PORTS.get(parts.scheme)
        return not self._patterns or any(
            pattern.scheme in (None, parts.scheme) and pattern.port in (None, port) and _matches(pattern.host, host)
            for pattern in self._patterns
        )


def _parse(given: str) -> _Pattern:
    text = given.lower()
    scheme, _, rest = text.rpartition("://")
    if scheme in ("", *_PORTS) and rest.count(":") > 1 and (network := _network(given, rest)) is not None:
        return _Pattern(scheme or None, network, None)  # IPv6 without brackets: its colons begin no port
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"allowed worker {given!r}: expected [http://]HOST[:PORT], or a network like 10.0.0.0/8")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"allowed worker {given!r}: ports go from 1 to 65535")
    return _Pattern(match["scheme"], _host_pattern(given, match["bracketed"] or match["host"] or ""), port)


def _host_pattern(given: str, host: str) -> str | Network | None:
    network = _network(given, host)
    if network is not None:
        return network
    if host and not host.strip("*"):
        return None
    if not _NAME.fullmatch(host.replace("*", "")):
        raise ValueError(f"allowed worker {given!r}: {host!r} is neither the name of a host nor a network")
    if not re.search(r"[a-z_-]", host) or not isinstance(_host(host), str):
        # `10.*` would match 10.example.com, and nothing that its author had in mind.
        raise ValueError(f"allowed worker {given!r}: write addresses out, like 10.0.0.1, or as a network, 10.0.0.0/8")
    return host.removesuffix(".")


def _network(given: str, text: str) -> Network | None:
    """An address is a network of one. None for what is neither; raises ValueError on a network that cannot be."""
    try:
        ip_address(text.partition("/")[0])
    except ValueError:
        return None
    try:
        network = ip_network(text)
    except ValueError as error:
        raise ValueError(f"allowed worker {given!r}: {error}") from None
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def _host(text: str) -> str | Address:
    """An address in any spelling that a resolver takes for one (`2130706433`, `0x7f.1`), else the name."""
    text = text.removesuffix(".")
    try:
        address = ip_address(text)
    except ValueError:
        pass
    else:
        return getattr(address, "ipv4_mapped", None) or address
    try:
        return IPv4Address(socket.inet_aton(text))
    except OSError:
        return text


def _matches(pattern: str | Network | None, host: str | Address) -> bool:
    if pattern is None:
        return True
    if isinstance(host, str):
        return isinstance(pattern, str) and bool(_NAME.fullmatch(host)) and fnmatchcase(host, pattern)
    return not isinstance(pattern, str) and host in pattern
