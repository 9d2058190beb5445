"""Listening sockets: which addresses they have, who shares them, what is said where they cannot be."""

import errno
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from warmroute_loadtest.ports import free_port
from warmroute_router.config import AdmissionConfig
from warmroute_router.serving import listen as listen_module
from warmroute_router.serving.descriptors import needed_for
from warmroute_router.serving.listen import BACKLOG, check_backlog, listen, listen_here, url_of
from warmroute_router.serving.unix_socket import listening_at

with_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


@contextmanager
def listening(*hosts: str, port: int = 0, processes: int = 1) -> Iterator[list[list[socket.socket]]]:
    with ExitStack() as stack:
        shares = listen(hosts, port, processes)
        for share in shares:
            for listener in share:
                stack.enter_context(listener)
        yield shares


def names(listeners: list[socket.socket]) -> list[str]:
    return [listener.getsockname()[0] for listener in listeners]


def ports(listeners: list[socket.socket]) -> set[int]:
    return {listener.getsockname()[1] for listener in listeners}


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except ConnectionRefusedError:
        return False
    return True


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_all_addresses_get_the_same_free_port() -> None:
    with listening("127.0.0.1", "127.0.0.2") as (listeners,):
        assert names(listeners) == ["127.0.0.1", "127.0.0.2"]
        (port,) = ports(listeners)
        assert port > 0
        assert connects("127.0.0.1", port)
        assert connects("127.0.0.2", port)
        assert not connects("127.0.0.3", port)


def test_a_host_that_comes_twice_is_listened_on_once() -> None:
    with listening("127.0.0.1", "127.0.0.1") as (listeners,):
        assert names(listeners) == ["127.0.0.1"]


@with_ipv6
def test_ipv4_and_ipv6_have_the_same_port() -> None:
    with listening("127.0.0.1", "::1") as (listeners,):
        assert names(listeners) == ["127.0.0.1", "::1"]
        assert len(ports(listeners)) == 1


@with_ipv6
@pytest.mark.parametrize("hosts", [("0.0.0.0", "::"), ("::", "0.0.0.0")])
def test_both_wildcards_go_together(hosts: tuple[str, str]) -> None:
    with listening(*hosts) as (listeners,):
        (port,) = ports(listeners)
        assert connects("127.0.0.1", port)
        assert connects("::1", port)


@with_ipv6
def test_the_wildcard_of_ipv6_alone_takes_ipv4_too() -> None:
    with listening("::") as (listeners,):
        (port,) = ports(listeners)
        assert connects("127.0.0.1", port)


def test_a_name_stands_for_all_its_addresses() -> None:
    found = {str(name[0]) for *_, name in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    with listening("localhost") as (listeners,):
        assert set(names(listeners)) == found
        assert len(ports(listeners)) == 1


def test_an_address_of_a_name_that_this_machine_does_not_have_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with listening("both") as (listeners,):
        assert names(listeners) == ["127.0.0.1"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer[:1] * 2)
    with pytest.raises(OSError, match=r"^cannot listen on neither:0: Cannot assign requested address$"):
        listen(["neither"], 0)


def test_an_address_that_this_machine_does_not_have_is_named() -> None:
    port = free_port()
    with pytest.raises(OSError, match=rf"^cannot listen on 192\.0\.2\.1:{port}: Cannot assign requested address$"):
        listen(["127.0.0.1", "192.0.2.1"], port)


def test_a_name_that_nobody_knows_is_named() -> None:
    with pytest.raises(OSError, match=r"^cannot listen on nobody\.invalid:80: "):
        listen(["nobody.invalid"], 80)


def test_a_name_that_is_none_is_named() -> None:
    with pytest.raises(OSError, match=r"^cannot listen on a\.\.b:80: "):
        listen(["a..b"], 80)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_port_that_is_taken_is_named_though_its_owner_would_share_it(processes: int) -> None:
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(OSError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: Address already in use$"):
            listen(["127.0.0.1"], port, processes)


@pytest.mark.parametrize("processes", [1, 3])
def test_nothing_stays_open_where_one_address_fails(processes: int) -> None:
    before = open_files()
    with pytest.raises(OSError, match="Cannot assign"):
        listen(["127.0.0.1", "192.0.2.1"], 0, processes)
    assert open_files() == before


def test_a_port_that_is_free_on_one_address_only_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0
    original = listen_module._bound

    def occupied(address: listen_module._Address, *rest: object, **options: object) -> socket.socket:
        nonlocal attempts
        if address.address == "127.0.0.2" and attempts < 3:
            attempts += 1
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return original(address, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(listen_module, "_bound", occupied)
    with listening("127.0.0.1", "127.0.0.2") as (listeners,):
        assert len(ports(listeners)) == 1
    assert attempts == 3


def test_processes_share_a_port_and_the_kernel_spreads_connections() -> None:
    with listening("127.0.0.1", "127.0.0.2", processes=3) as shares, ExitStack() as clients:
        assert [names(share) for share in shares] == [["127.0.0.1", "127.0.0.2"]] * 3
        (port,) = set.union(*(ports(share) for share in shares))
        for _ in range(60):
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        counts = [accepted(share[0]) for share in shares]
        assert sum(counts) == 60
        assert all(counts)


def accepted(listener: socket.socket) -> int:
    listener.setblocking(False)
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_urls() -> None:
    with listening("127.0.0.1") as ((listener,),):
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        assert url_of(listener, tls=True) == f"https://127.0.0.1:{port}"


@with_ipv6
def test_an_ipv6_address_is_in_brackets_where_it_is_named() -> None:
    with listen_here("::1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://[::1]:{port}"
        with pytest.raises(OSError, match=rf"^cannot listen on \[::1\]:{port}: Address already in use$"):
            listen_here("::1", port)


# Unix sockets


def test_a_unix_socket_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "router"
    before = os.umask(0o027)
    try:
        with listening_at(path) as listener:
            assert path.stat().st_mode & 0o777 == 0o750
            assert url_of(listener) == f"unix:{path}"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_unix_socket_of_a_router_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "router"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    assert path.exists()
    with listening_at(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_unix_socket_that_is_in_use_is_named(tmp_path: Path, waiting: int) -> None:
    """Also where it has no room for more connections."""
    path = tmp_path / "router"
    with ExitStack() as stack:
        other = stack.enter_context(socket.socket(socket.AF_UNIX))
        other.bind(str(path))
        other.listen(1)
        for _ in range(waiting):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        with (
            pytest.raises(OSError, match=rf"^cannot listen on {re.escape(str(path))}: Address already in use$"),
            listening_at(path),
        ):
            pass
        assert path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(OSError, match="there is a file that is not a socket"), listening_at(path):
        pass
    assert path.read_text() == "mine"


def test_the_socket_of_a_router_that_came_later_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "router"
    with ExitStack() as later:
        with listening_at(path):
            path.unlink()
            later.enter_context(listening_at(path))
        assert path.exists()
    assert not path.exists()


# Limits of the system


def test_a_backlog_that_the_kernel_cuts_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "somaxconn"
    monkeypatch.setattr(listen_module, "SOMAXCONN", file)
    with caplog.at_level(logging.WARNING):
        check_backlog()  # a system that does not say
        file.write_text(f"{BACKLOG}\n")
        check_backlog()
        assert caplog.messages == []
        file.write_text("128\n")
        check_backlog()
    assert len(caplog.messages) == 1
    assert "128" in caplog.messages[0]


RAISE = """
import logging, resource, sys
from warmroute_router.config import AdmissionConfig
from warmroute_router.serving.descriptors import raise_limit
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
raise_limit(AdmissionConfig(max_concurrent_requests=100, queue_size=22))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def raised(soft: int, hard: int) -> tuple[int, str]:
    """The limit afterwards, and what was said."""
    command = [sys.executable, "-c", RAISE, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return int(done.stdout), done.stderr


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    assert raised(64, 500) == (500, "")
    limit, complaint = raised(64, 499)
    assert limit == 499
    assert complaint.startswith("a limit of 499 open files is low: a request takes two, and 500 are asked for; ")


def test_as_many_files_are_asked_for_as_requests_may_be_there() -> None:
    assert needed_for(AdmissionConfig()) == 8192
    assert needed_for(AdmissionConfig(max_concurrent_requests=1000, queue_size=50)) == 2356
