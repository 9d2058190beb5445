"""What the API says of a pod, and which worker that makes."""

from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Any, NamedTuple

from ...config import KubernetesConfig, WorkerSpec, bracketed

MAX_MODELS = 64
"""Of one pod."""
_ENDED = ("Succeeded", "Failed")


class Pod(NamedTuple):
    uid: str
    spec: WorkerSpec | None
    """None where it is no worker: without an address, about to end, or at its end."""
    created: str = ""
    """When, in a form that sorts."""


def read_pod(item: Any, config: KubernetesConfig) -> Pod:
    """Raises ValueError on what is no pod."""
    try:
        metadata, status = item["metadata"], item.get("status") or {}
        uid, created = metadata["uid"], metadata.get("creationTimestamp") or ""
        if not isinstance(uid, str) or not uid or not isinstance(created, str):
            raise TypeError("what is a text in a pod is none here")
        if metadata.get("deletionTimestamp") or status.get("phase") in _ENDED or not _is_address(status.get("podIP")):
            return Pod(uid, None)
        spec = WorkerSpec(
            f"http://{bracketed(status['podIP'])}{'' if config.port == 80 else f':{config.port}'}",
            identity=uid,
            ready=any(
                each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ()
            ),
            models=_models(metadata, config.model_label),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"what should be a pod is none ({type(error).__name__}: {error})") from None
    return Pod(uid, spec, created)


def workers_of(pods: Iterable[Pod], known: Collection[str | None] = ()) -> list[WorkerSpec]:
    """One for each URL: of two pods with one address the one that is ready, or else the one that had it.

    Such are a pod that is lost and a new one, or two that want one port of a host. `known`: uids of those that were
    workers before. Where neither was, the newer one is.
    """
    named = [
        (pod.spec.ready, pod.uid in known, pod.created, pod.uid, pod.spec) for pod in pods if pod.spec is not None
    ]
    return list({spec.url: spec for *_, spec in sorted(named, key=lambda pod: pod[:4])}.values())


def _models(metadata: dict[str, Any], label: str | None) -> tuple[str, ...] | None:
    """By a label, or by an annotation, since only these may have slashes and commas."""
    if label is None:
        return None
    given = (metadata.get("labels") or {}).get(label) or (metadata.get("annotations") or {}).get(label) or ""
    models = dict.fromkeys(name.strip() for name in given.split(",") if name.strip())
    return tuple(models)[:MAX_MODELS] or None


def _is_address(given: object) -> bool:
    try:
        return isinstance(given, str) and "%" not in given and bool(ip_address(given))
    except ValueError:
        return False
