"""TLS on both sides: contexts for clients and for workers, and certificates that are renewed while it runs."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from .config import TlsConfig
from .file_stamp import Stamp, file_stamp

logger = logging.getLogger(__name__)


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """For clients. Raises OSError with one line that names the file at fault."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(context, config)
    return context


def worker_context(config: TlsConfig) -> ssl.SSLContext:
    """For workers: believes those that `config.ca` or else the system vouches for. Raises OSError as above."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    if config.cert is not None:
        _load_pair(context, config)
    for file in config.ca:
        _believe(context, file)
    if not config.ca:
        context.load_default_certs()  # last, since it takes long: a wrong file is looked at again and again
    return context


class ReloadingContext:
    """A context that stays the same object while the files behind it change, as cert-manager renews them.

    Connections that are open stay as they are; those made later have what is newest. Two things take a restart, both
    on the side of workers: to stop believing an authority, and to change the kind of key (RSA, EC) of an own one.
    """

    def __init__(self, build: Callable[[TlsConfig], ssl.SSLContext], config: TlsConfig) -> None:
        """`build` is `server_context` or `worker_context`. Raises what it raises."""
        self._build = build
        self._config = config
        self._files = [file for file in (config.cert, config.key, *config.ca) if file is not None]
        self._complaint = ""
        self._stamps = self._stamps_now()
        self.context = build(config)

    def reload_if_changed(self) -> None:
        """Costs a `stat` of each file. Files that do not fit together change nothing but the log."""
        try:
            stamps = self._stamps_now()
            if stamps == self._stamps:
                return
            # Built anew first: a pair that does not fit would leave the living context without any.
            self._install(self._build(self._config))
        except OSError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.warning("TLS: %s; what was loaded before stays", error)
            return
        self._stamps, self._complaint = stamps, ""
        logger.info("TLS: read %s again", ", ".join(map(str, self._files)))

    def _install(self, newest: ssl.SSLContext) -> None:
        if newest.protocol is ssl.PROTOCOL_TLS_SERVER:
            # Not loaded into the old one, which would go on to show its old certificate beside one of another kind.
            self.context.sni_callback = lambda connection, name, context: _switch(connection, newest)
            return
        for file in self._config.ca:
            _believe(self.context, file)
        if self._config.cert is not None:
            _load_pair(self.context, self._config)

    def _stamps_now(self) -> list[Stamp]:
        return [file_stamp(file) for file in self._files]


def _switch(connection: ssl.SSLObject, newest: ssl.SSLContext) -> None:
    """Runs once in each handshake, whether or not the client names a server."""
    connection.context = newest


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)  # ciphers and options are Python's own, verification too
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _believe(context: ssl.SSLContext, file: Path) -> None:
    _check_readable(file)
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError:
        raise OSError(f"{file} holds no certificate in PEM form") from None


def _load_pair(context: ssl.SSLContext, config: TlsConfig) -> None:
    cert, key = config.cert, config.key
    assert cert, "a certificate and its key go together"
    assert key, "a certificate and its key go together"
    _believe(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), cert)  # what is wrong with the pair then is the key
    _check_readable(key)
    try:
        context.load_cert_chain(cert, key, _no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OSError(f"{key} is not the key of the certificate in {cert}") from None
        raise OSError(f"{key} holds no private key in PEM form, or not one for {cert}") from None
    except _PasswordAskedError:
        raise OSError(f"{key} is protected by a password: give a key without one") from None


class _PasswordAskedError(Exception):
    pass


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal, and wait."""
    raise _PasswordAskedError


def _check_readable(file: Path) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise OSError(f"{file} cannot be read: {error.strerror}") from None
