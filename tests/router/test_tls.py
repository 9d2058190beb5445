"""Handshakes between real sockets, with certificates that `openssl` makes."""

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from warmroute_router.config import TlsConfig, WorkerSpec
from warmroute_router.tls import ReloadingContext, server_context, worker_context
from warmroute_router.upstream.worker_client import Answer, Unanswered, WorkerClient

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
"""Seconds; only matters in failure."""
KINDS = {"ec": ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"], "rsa": ["rsa:2048"]}


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Issues certificates into a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        files = ("-keyout", self._key, "-out", self.cert)
        openssl("req", "-x509", "-nodes", "-newkey", *KINDS["ec"], *files, "-days", "2", "-subj", f"/CN={name}")

    def issue(self, name: str, names: str, *, days: int = 2, kind: str = "ec") -> TlsConfig:
        cert, key, asked = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        extensions = self.folder / "extensions"
        extensions.write_text(f"subjectAltName={names}")
        openssl("req", "-nodes", "-newkey", *KINDS[kind], "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
        signer = ("-CA", self.cert, "-CAkey", self._key, "-CAcreateserial")
        openssl("x509", "-req", "-in", asked, *signer, "-days", str(days), "-extfile", extensions, "-out", cert)
        return TlsConfig(cert=cert, key=key)


class Certificates:
    def __init__(self, folder: Path) -> None:
        authority, other = Authority(folder, "authority"), Authority(folder, "other")
        self.ca, self.other_ca = authority.cert, other.cert
        self.here = authority.issue("here", "IP:127.0.0.1,DNS:localhost")
        self.renewed = authority.issue("renewed", "IP:127.0.0.1")
        self.rsa = authority.issue("rsa", "IP:127.0.0.1", kind="rsa")
        self.named = authority.issue("named", "DNS:gpu.example")
        self.expired = authority.issue("expired", "IP:127.0.0.1", days=-1)
        self.strange = other.issue("strange", "IP:127.0.0.1")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Server:
    """Speaks just enough HTTP, and says in its body who the client is."""

    def __init__(self) -> None:
        self.port = 0
        self.heads: list[bytes] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            certificate = writer.get_extra_info("ssl_object").getpeercert()
            name = (
                dict(part for parts in certificate["subject"] for part in parts)["commonName"] if certificate else ""
            )
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(name), name.encode()))
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


async def ask(port: int, tls: ssl.SSLContext, server_name: str | None = None) -> Answer:
    client = WorkerClient(tls)
    spec = WorkerSpec(f"https://127.0.0.1:{port}", server_name=server_name)
    try:
        return await client.get(spec, "/health", timeout=PATIENCE)
    finally:
        await client.close()


async def shown(port: int, tls: ssl.SSLContext, server_name: str = "127.0.0.1") -> tuple[bytes, str | None]:
    """The certificate that the server shows, and the protocol it chooses."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=server_name)
    try:
        connection = writer.get_extra_info("ssl_object")
        return connection.getpeercert(True), connection.selected_alpn_protocol()
    finally:
        writer.transport.abort()


def der(config: TlsConfig) -> bytes:
    assert config.cert is not None
    text = config.cert.read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN") :])


def demanding(certificates: Certificates) -> ssl.SSLContext:
    """Of a server that asks clients for a certificate."""
    context = server_context(certificates.here)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    return context


def copy_pair(pair: TlsConfig, folder: Path) -> TlsConfig:
    """Over what is there, as other files under the same names."""
    assert pair.cert is not None
    assert pair.key is not None
    for source, name in ((pair.cert, "tls.crt"), (pair.key, "tls.key")):
        shutil.copy(source, folder / "next")
        (folder / "next").replace(folder / name)
    return TlsConfig(cert=folder / "tls.crt", key=folder / "tls.key")


# Who is believed


async def test_a_worker_whom_the_authority_vouches_for_is_believed(certificates: Certificates) -> None:
    async with serving(server_context(certificates.here)) as server:
        tls = worker_context(TlsConfig(ca=(certificates.other_ca, certificates.ca)))
        assert await ask(server.port, tls) == Answer(200, b"")


@pytest.mark.parametrize(
    ("pair", "ca", "reason"),
    [
        ("strange", "ca", "unable to get local issuer certificate"),
        ("here", "other_ca", "unable to get local issuer certificate"),
        ("here", None, "unable to get local issuer certificate"),
        ("expired", "ca", "certificate has expired"),
        ("named", "ca", "IP address mismatch"),
    ],
)
async def test_any_other_is_not_and_gets_no_request(
    certificates: Certificates, pair: str, ca: str | None, reason: str
) -> None:
    tls = worker_context(TlsConfig(ca=(getattr(certificates, ca),) if ca else ()))
    async with serving(server_context(getattr(certificates, pair))) as server:
        with pytest.raises(Unanswered, match=reason) as caught:
            await ask(server.port, tls)
        assert not caught.value.refused
        assert not server.heads


async def test_behind_an_address_the_name_is_checked_and_sent(certificates: Certificates) -> None:
    names: list[str | None] = []
    context = server_context(certificates.named)
    context.sni_callback = lambda connection, name, context: names.append(name)
    tls = worker_context(TlsConfig(ca=(certificates.ca,)))
    async with serving(context) as server:
        assert (await ask(server.port, tls, "gpu.example")).status == 200
        assert names == ["gpu.example"]
        assert b"\r\nhost: gpu.example:%d\r\n" % server.port in server.heads[0].lower()
        with pytest.raises(Unanswered, match="Hostname mismatch"):
            await ask(server.port, tls, "other.example")


async def test_the_router_shows_workers_its_own_certificate(certificates: Certificates) -> None:
    own = certificates.renewed
    async with serving(demanding(certificates)) as server:
        tls = worker_context(TlsConfig(cert=own.cert, key=own.key, ca=(certificates.ca,)))
        assert await ask(server.port, tls) == Answer(200, b"renewed")
        with pytest.raises(Unanswered):
            await ask(server.port, worker_context(TlsConfig(ca=(certificates.ca,))))


async def test_a_worker_that_speaks_no_tls_is_a_failure(certificates: Certificates) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    with pytest.raises(Unanswered) as caught:
        await ask(server.sockets[0].getsockname()[1], worker_context(TlsConfig(ca=(certificates.ca,))))
    assert not caught.value.refused
    server.close()


async def test_clients_are_offered_nothing_but_http_1_1(certificates: Certificates) -> None:
    tls = worker_context(TlsConfig(ca=(certificates.ca,)))
    tls.set_alpn_protocols(["h2", "http/1.1"])
    context = server_context(certificates.here)
    assert context.minimum_version is tls.minimum_version is ssl.TLSVersion.TLSv1_2
    async with serving(context) as server:
        assert await shown(server.port, tls) == (der(certificates.here), "http/1.1")


# Certificates that are renewed


@pytest.mark.parametrize(("old", "new"), [("here", "renewed"), ("here", "rsa"), ("rsa", "here")])
@pytest.mark.parametrize("server_name", ["127.0.0.1", "localhost"], ids=["unnamed", "named"])
async def test_clients_see_the_renewed_certificate(
    certificates: Certificates, tmp_path: Path, old: str, new: str, server_name: str
) -> None:
    before, after = getattr(certificates, old), getattr(certificates, new)
    reloading = ReloadingContext(server_context, copy_pair(before, tmp_path))
    tls = worker_context(TlsConfig(ca=(certificates.ca,)))
    tls.check_hostname = False
    async with serving(reloading.context) as server:
        assert (await shown(server.port, tls, server_name))[0] == der(before)
        copy_pair(after, tmp_path)
        assert (await shown(server.port, tls, server_name))[0] == der(before), "nobody has looked yet"
        reloading.reload_if_changed()
        assert await shown(server.port, tls, server_name) == (der(after), "http/1.1")
        copy_pair(before, tmp_path)
        reloading.reload_if_changed()
        assert (await shown(server.port, tls, server_name))[0] == der(before)


async def test_a_link_that_is_swapped_is_a_renewal(certificates: Certificates, tmp_path: Path) -> None:
    for version, pair in (("v1", certificates.here), ("v2", certificates.renewed)):
        (tmp_path / version).mkdir()
        copy_pair(pair, tmp_path / version)
    (tmp_path / "data").symlink_to("v1")
    config = TlsConfig(cert=tmp_path / "data" / "tls.crt", key=tmp_path / "data" / "tls.key")
    reloading = ReloadingContext(server_context, config)
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(tmp_path / "data")
    reloading.reload_if_changed()
    async with serving(reloading.context) as server:
        tls = worker_context(TlsConfig(ca=(certificates.ca,)))
        assert (await shown(server.port, tls))[0] == der(certificates.renewed)


def without_key(folder: Path) -> None:
    (folder / "tls.key").unlink()


def with_another_key(folder: Path) -> None:
    openssl("genpkey", "-algorithm", "ed25519", "-out", folder / "tls.key")


def half_written(folder: Path) -> None:
    text = (folder / "tls.crt").read_bytes()
    (folder / "tls.crt").write_bytes(text[: len(text) // 2])


@pytest.mark.parametrize("spoil", [without_key, with_another_key, half_written])
@pytest.mark.parametrize("side", [server_context, worker_context])
async def test_a_bad_pair_keeps_the_old_one_and_says_so_once(
    certificates: Certificates,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
    side: Callable[[TlsConfig], ssl.SSLContext],
) -> None:
    caplog.set_level(logging.WARNING, "warmroute_router")
    config = copy_pair(certificates.here, tmp_path)
    reloading = ReloadingContext(side, TlsConfig(config.cert, config.key, (certificates.ca,)))
    spoil(tmp_path)
    for _ in range(3):
        reloading.reload_if_changed()
    assert [record.name for record in caplog.records] == ["warmroute_router.tls"]
    assert str(tmp_path) in caplog.text
    trusting = worker_context(TlsConfig(ca=(certificates.ca,)))
    if side is server_context:
        async with serving(reloading.context) as server:
            assert (await shown(server.port, trusting))[0] == der(certificates.here)
    else:
        async with serving(demanding(certificates)) as server:
            assert (await ask(server.port, reloading.context)).body == b"here"
    copy_pair(certificates.renewed, tmp_path)
    reloading.reload_if_changed()
    if side is server_context:
        async with serving(reloading.context) as server:
            assert (await shown(server.port, trusting))[0] == der(certificates.renewed)
    else:
        async with serving(demanding(certificates)) as server:
            assert (await ask(server.port, reloading.context)).body == b"renewed"


async def test_workers_see_the_renewed_certificate_and_a_new_authority_is_believed(
    certificates: Certificates, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    shutil.copy(certificates.other_ca, ca)
    pair = copy_pair(certificates.here, tmp_path)
    reloading = ReloadingContext(worker_context, TlsConfig(pair.cert, pair.key, (ca,)))
    client = WorkerClient(reloading.context)
    async with serving(demanding(certificates)) as server:
        spec = WorkerSpec(f"https://127.0.0.1:{server.port}")
        with pytest.raises(Unanswered, match="certificate verify failed"):
            await client.get(spec, "/health", timeout=PATIENCE)
        shutil.copy(certificates.ca, ca)
        reloading.reload_if_changed()
        assert await client.get(spec, "/health", timeout=PATIENCE) == Answer(200, b"here")
        copy_pair(certificates.renewed, tmp_path)
        reloading.reload_if_changed()
        assert await client.get(spec, "/health", timeout=PATIENCE) == Answer(200, b"renewed")
    await client.close()


async def test_files_that_have_not_changed_are_not_read(certificates: Certificates) -> None:
    built: list[TlsConfig] = []

    def build(config: TlsConfig) -> ssl.SSLContext:
        built.append(config)
        return server_context(config)

    reloading = ReloadingContext(build, certificates.here)
    for _ in range(3):
        reloading.reload_if_changed()
    assert len(built) == 1


# Files that cannot be meant


def complaint(build: Callable[[TlsConfig], ssl.SSLContext], config: TlsConfig) -> str:
    with pytest.raises(OSError, match=r".") as caught:
        build(config)
    assert not isinstance(caught.value, ssl.SSLError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("build", [server_context, worker_context])
def test_the_file_at_fault_is_named(
    certificates: Certificates, tmp_path: Path, build: Callable[[TlsConfig], ssl.SSLContext]
) -> None:
    cert, key = certificates.here.cert, certificates.here.key
    assert key is not None
    text, missing, other = tmp_path / "text", tmp_path / "missing", certificates.renewed.key
    text.write_text("-----BEGIN nothing of use")
    gone = f"{missing} cannot be read: No such file or directory"
    assert complaint(build, TlsConfig(missing, key)) == gone
    assert complaint(build, TlsConfig(cert, missing)) == gone
    assert complaint(build, TlsConfig(text, key)) == f"{text} holds no certificate in PEM form"
    assert complaint(build, TlsConfig(key, key)) == f"{key} holds no certificate in PEM form"
    assert complaint(build, TlsConfig(cert, text)).startswith(f"{text} holds no private key in PEM form")
    assert complaint(build, TlsConfig(cert, cert)).startswith(f"{cert} holds no private key in PEM form")
    assert complaint(build, TlsConfig(cert, other)) == f"{other} is not the key of the certificate in {cert}"


@pytest.mark.parametrize("command", [("pkcs8", "-topk8"), ("ec", "-aes128")])
def test_a_key_with_a_password_is_refused_without_asking_for_it(
    certificates: Certificates, tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert certificates.here.key is not None
    locked = tmp_path / "locked.key"
    openssl(*command, "-in", certificates.here.key, "-out", locked, "-passout", "pass:s3cret")
    config = TlsConfig(certificates.here.cert, locked)
    assert complaint(server_context, config) == f"{locked} is protected by a password: give a key without one"


def test_an_authority_that_is_none_is_named(certificates: Certificates, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("")
    assert (
        complaint(worker_context, TlsConfig(ca=(certificates.ca, text))) == f"{text} holds no certificate in PEM form"
    )
    gone = complaint(worker_context, TlsConfig(ca=(tmp_path / "missing",)))
    assert gone == f"{tmp_path / 'missing'} cannot be read: No such file or directory"
