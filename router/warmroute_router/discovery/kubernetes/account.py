"""Whom to ask for pods, and with which token and authority: what a cluster lays into each of its pods.

The kubelet renews both files while the router runs, so they are looked at again with each request.
"""

import os
from pathlib import Path

from ...config import KubernetesConfig, TlsConfig, bracketed
from ...tls import ReloadingContext, worker_context

FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_BYTES = 64 * 1024
"""Of one of its files."""


class Account:
    def __init__(self, api: str, namespace: str, folder: Path | None) -> None:
        """`folder`: None for an API that asks for no token. Raises OSError where what it should hold is missing."""
        self.api = api
        self.namespace = namespace
        self._folder = folder
        self._tls = ReloadingContext(worker_context, TlsConfig(ca=(folder / "ca.crt",) if folder is not None else ()))
        self.tls = self._tls.context
        self.headers()

    def headers(self) -> dict[str, str]:
        """Raises OSError."""
        self._tls.reload_if_changed()
        return {"authorization": f"Bearer {_read(self._folder / 'token')}"} if self._folder is not None else {}


def find_account(config: KubernetesConfig) -> Account:
    """Raises OSError and ValueError, with one line, where there is none."""
    if config.api is not None:
        assert config.namespace is not None, "flags see to that"
        return Account(config.api, config.namespace, None)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError(
            "--service-discovery: this is no pod of a cluster, since KUBERNETES_SERVICE_HOST is not set: "
            "elsewhere run `kubectl proxy`, and give its URL with --service-discovery-api"
        )
    if not FOLDER.is_dir():
        raise OSError(
            f"--service-discovery: {FOLDER} is not there: the router's pod needs a service account, and "
            "`automountServiceAccountToken: true`"
        )
    return Account(f"https://{bracketed(host)}:{port}", config.namespace or _read(FOLDER / "namespace"), FOLDER)


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES).decode("ascii").strip()
    except OSError as error:
        raise OSError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeError:
        text = ""
    if not text or not text.isprintable():
        raise OSError(f"{file} does not hold what it should")
    return text
