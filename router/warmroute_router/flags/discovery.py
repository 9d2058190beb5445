"""The flags of Kubernetes discovery."""

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from ..config import KubernetesConfig
from . import types

PORT = 80
_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


def add_discovery(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("workers that are pods of a Kubernetes cluster")
    group.add_argument("--service-discovery", action="store_true", help="find them, and follow what becomes of them")
    group.add_argument(
        "--selector",
        nargs="+",
        action="extend",
        type=_selector,
        metavar="KEY=VALUE",
        help="labels that they all have",
    )
    group.add_argument(
        "--service-discovery-port", type=_pod_port, metavar="PORT", help=f"of each of them (default: {PORT})"
    )
    group.add_argument(
        "--service-discovery-namespace", type=_namespace, metavar="NAME", help="default: that of the router's own pod"
    )
    group.add_argument(
        "--service-discovery-model-label",
        type=_label,
        metavar="KEY",
        help="label or annotation that names a pod's models, with commas (default: the workers are asked)",
    )
    group.add_argument(
        "--service-discovery-api",
        type=types.worker_url,
        metavar="URL",
        help="for a router outside of the cluster: that of `kubectl proxy`",
    )


def discovery_config(args: Namespace) -> KubernetesConfig | None:
    """Raises ValueError on flags that do not go together."""
    further = {
        "--selector": args.selector,
        "--service-discovery-port": args.service_discovery_port,
        "--service-discovery-namespace": args.service_discovery_namespace,
        "--service-discovery-model-label": args.service_discovery_model_label,
        "--service-discovery-api": args.service_discovery_api,
    }
    if not args.service_discovery:
        given = next((flag for flag, value in further.items() if value is not None), None)
        if given:
            raise ValueError(f"argument {given}: goes with --service-discovery, which is missing")
        return None
    if not args.selector:
        raise ValueError("argument --service-discovery: which pods are workers? Give --selector KEY=VALUE")
    if args.service_discovery_api and not args.service_discovery_namespace:
        raise ValueError(
            "argument --service-discovery-api: the router's own pod is no help there: "
            "give --service-discovery-namespace"
        )
    return KubernetesConfig(
        selector=_joined([label for labels in args.selector for label in labels]),
        port=args.service_discovery_port or PORT,
        namespace=args.service_discovery_namespace,
        model_label=args.service_discovery_model_label,
        api=args.service_discovery_api,
    )


def _joined(given: list[tuple[str, str]]) -> str:
    labels: dict[str, str] = {}
    for key, value in given:
        if labels.setdefault(key, value) != value:
            raise ValueError(f"argument --selector: no pod has two values of {key}")
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _selector(text: str) -> list[tuple[str, str]]:
    """One label, or several with commas in between."""
    labels = []
    for each in text.split(","):
        key, equals, value = each.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise ArgumentTypeError(f"{each!r} is not KEY=VALUE of a label, as app=vllm")
        labels.append((key, value))
    return labels


def _label(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is not the key of a label, as example.com/models")
    return text


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is not the name of a namespace")
    return text


def _pod_port(text: str) -> int:
    if not types.port(text):
        raise ArgumentTypeError("pods have no port 0")
    return types.port(text)
