"""From flags and environment to the configuration."""

from pathlib import Path
from typing import Any

import pytest
from warmroute_router.config import (
    AdmissionConfig,
    BreakerConfig,
    HealthConfig,
    KeyConfig,
    KubernetesConfig,
    RetryConfig,
    RouterConfig,
    TimeoutConfig,
    TlsConfig,
)
from warmroute_router.flags import parse_config

WORKER = ["--worker-urls", "http://a:1"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("API_KEY", "ADMIN_API_KEY", "WORKER_API_KEY", "GOSSIP_KEY"):
        monkeypatch.delenv(f"WARMROUTE_{kind}", raising=False)


def parsed(*flags: str) -> RouterConfig:
    return parse_config([*WORKER, *flags])


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The one line that it ends with."""
    with pytest.raises(SystemExit) as ended:
        parse_config(list(flags))
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    return err.removeprefix("warmroute serve: ").rstrip("\n")


def test_without_flags_every_part_has_its_defaults() -> None:
    config = parsed()
    assert config.worker_urls == ("http://a:1",)
    assert (config.hosts, config.port, config.processes, config.policy) == (("127.0.0.1",), 30000, 1, "cache_aware")
    assert config.health == HealthConfig()
    assert config.timeouts == TimeoutConfig()
    assert config.retries == RetryConfig()
    assert config.breaker == BreakerConfig()
    assert config.admission == AdmissionConfig()
    assert not config.api_keys
    assert not config.admin.keys
    assert (config.tls, config.worker_tls, config.gossip) == (None, TlsConfig(), None)
    assert (config.shutdown_delay, config.shutdown_grace) == (0, 180)


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        ("--worker-dns http://b:2/", "worker_dns", ("http://b:2",)),
        ("--worker-api-key k", "worker_api_key", "k"),
        ("--host :: 127.0.0.1", "hosts", ("::", "127.0.0.1")),
        ("--unix-socket /tmp/none.sock", "hosts", ()),
        ("--unix-socket /tmp/none.sock", "unix_socket", Path("/tmp/none.sock")),
        ("--unix-socket /tmp/none.sock --host a", "hosts", ("a",)),
        ("--processes 3", "processes", 3),
        ("--shutdown-delay-secs 2.5", "shutdown_delay", 2.5),
        ("--shutdown-grace-period-secs 0", "shutdown_grace", 0.0),
        ("--health-check-endpoint /ping", "health.endpoint", "/ping"),
        ("--health-check-interval-secs 9", "health.interval", 9.0),
        ("--health-check-timeout-secs 0.5", "health.timeout", 0.5),
        ("--engine-stats-interval 2.5", "engine_stats_interval", 2.5),
        ("--health-failure-threshold 7", "health.failure_threshold", 7),
        ("--health-success-threshold 2", "health.success_threshold", 2),
        ("--cb-failure-threshold 1", "breaker.failure_threshold", 1),
        ("--cb-success-threshold 4", "breaker.success_threshold", 4),
        ("--cb-timeout-duration-secs 60", "breaker.timeout", 60.0),
        ("--cb-window-duration-secs 20", "breaker.window", 20.0),
        ("--disable-circuit-breaker", "breaker", None),
        ("--connect-timeout-secs 1", "timeouts.connect", 1.0),
        ("--first-byte-timeout-secs 30", "timeouts.first_byte", 30.0),
        ("--first-byte-timeout-secs 0", "timeouts.first_byte", None),
        ("--idle-timeout-secs 3", "timeouts.idle", 3.0),
        ("--request-timeout-secs 1800", "timeouts.total", 1800.0),
        ("--retry-max-retries 0", "retries.max_retries", 0),
        ("--disable-retries", "retries.max_retries", 0),
        ("--retry-initial-backoff-ms 100", "retries.initial_backoff", 0.1),
        ("--retry-max-backoff-ms 30000", "retries.max_backoff", 30.0),
        ("--retry-backoff-multiplier 1.5", "retries.backoff_multiplier", 1.5),
        ("--retry-jitter-factor 0", "retries.jitter", 0.0),
        ("--retry-budget 0.5", "retries.budget", 0.5),
        ("--max-concurrent-requests 8", "admission.max_concurrent_requests", 8),
        ("--max-concurrent-requests -1", "admission.max_concurrent_requests", None),
        ("--max-concurrent-requests-per-worker 4", "admission.max_per_worker", 4),
        ("--queue-size 0", "admission.queue_size", 0),
        ("--queue-timeout-secs 5", "admission.queue_timeout", 5.0),
        ("--rate-limit-tokens-per-second 0.5", "admission.rate", 0.5),
        ("--fair-by api-key", "admission.fair_by", "api-key"),
        ("--fair-by header:X-Team", "admission.fair_by", "x-team"),
        ("--api-key a b --api-key c", "api_keys", KeyConfig(("a", "b", "c"))),
        ("--admin-api-key a", "admin.keys", KeyConfig(("a",))),
        ("--admin-port 0", "admin.port", 0),
        ("--allowed-workers *.svc 10.0.0.0/8", "admin.allowed_workers", ("*.svc", "10.0.0.0/8")),
    ],
)
def test_each_flag_sets_what_it_is_for(flags: str, path: str, value: object) -> None:
    found: Any = parsed(*flags.split())
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ("", "no workers: give --worker-urls, --worker-dns, --workers-file or --service-discovery; or --admin-port"),
        ("--worker-urls a http://A:80/", "argument --worker-urls: http://a is given twice"),
        ("--worker-urls a --tls-cert-path /dev/null", "--tls-cert-path and --tls-key-path go together"),
        ("--worker-urls a --client-key-path /dev/null", "--client-cert-path and --client-key-path go together"),
        ("--worker-urls a --workers-file /none", "argument --workers-file: cannot be read: /none: No such file"),
        ("--worker-urls a --unix-socket /dev/null", "argument --unix-socket: cannot be a socket: /dev/null"),
        ("--worker-urls a --queue-size -1", "argument --queue-size: '-1' is not a number from 0 on"),
        ("--worker-urls a --max-concurrent-requests 0", "argument --max-concurrent-requests: '0' is not a number"),
        ("--worker-urls a --idle-timeout-secs nan", "argument --idle-timeout-secs: 'nan' is not a number from 0 on"),
        ("--worker-urls a --connect-timeout-secs 0", "argument --connect-timeout-secs: '0' is not a time of more"),
        ("--worker-urls a --fair-by cookie", "argument --fair-by: 'cookie' is neither `api-key` nor `header:NAME`"),
        ("--worker-urls a --health-check-endpoint x", "argument --health-check-endpoint: 'x' is not a path"),
        ("--worker-urls a --api-key k\u00e9", "argument --api-key: the key has characters that no header can carry"),
        ("--service-discovery", "argument --service-discovery: which pods are workers? Give --selector KEY=VALUE"),
        ("--worker-urls a --selector b=c", "argument --selector: goes with --service-discovery, which is missing"),
        ("--worker-urls a --service-discovery-port 1", "argument --service-discovery-port: goes with"),
        ("--service-discovery --selector b", "argument --selector: 'b' is not KEY=VALUE of a label, as app=vllm"),
        ("--service-discovery --selector b=c,", "argument --selector: '' is not KEY=VALUE of a label"),
        ("--service-discovery --selector b!=c", "argument --selector: 'b!=c' is not KEY=VALUE of a label"),
        ("--service-discovery --selector b==c", "argument --selector: 'b==c' is not KEY=VALUE of a label"),
        ("--service-discovery --selector b/c/d=e", "argument --selector: 'b/c/d=e' is not KEY=VALUE of a label"),
        ("--service-discovery --selector b=c b=d", "argument --selector: no pod has two values of b"),
        ("--service-discovery-port 0", "argument --service-discovery-port: pods have no port 0"),
        ("--service-discovery-namespace A", "argument --service-discovery-namespace: 'A' is not the name of a name"),
        ("--service-discovery-model-label a,b", "argument --service-discovery-model-label: 'a,b' is not the key of"),
        (
            "--service-discovery --selector b=c --service-discovery-api http://127.0.0.1:8001",
            "argument --service-discovery-api: the router's own pod is no help there: give --service-discovery-name",
        ),
        ("--k8s-label-selector b=c", "argument --k8s-label-selector: give --service-discovery with --selector"),
        (
            "--worker-urls a --processes 2 --peers-dns b --gossip-key k",
            "--peers-dns finds one router per address: with --processes, give --peers with all ports",
        ),
        ("--prefill http://a 1 --decode http://b", "argument --prefill: prefill and decode on different workers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    flags: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, *flags.split()).startswith(complaint)


@pytest.mark.parametrize("flags", ["--admin-port 0", "--admin-api-key k", "--workers-file /dev/null"])
def test_workers_may_come_later_where_there_is_a_way(flags: str) -> None:
    assert parse_config(flags.split()).worker_urls == ()


def test_pods_may_be_the_workers() -> None:
    flags = "--service-discovery --selector app=vllm,example.com/Tier=a_b.c --selector empty="
    assert parse_config(flags.split()).kubernetes == KubernetesConfig("app=vllm,example.com/Tier=a_b.c,empty=", 80)
    more = (
        "--service-discovery-port 8000 --service-discovery-namespace gpus "
        "--service-discovery-model-label example.com/models --service-discovery-api http://127.0.0.1:8001/"
    )
    assert parse_config([*flags.split(), *more.split()]).kubernetes == KubernetesConfig(
        "app=vllm,example.com/Tier=a_b.c,empty=", 8000, "gpus", "example.com/models", "http://127.0.0.1:8001"
    )
    assert parsed().kubernetes is None


def test_keys_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMROUTE_API_KEY", "one two")
    monkeypatch.setenv("WARMROUTE_ADMIN_API_KEY", "three")
    monkeypatch.setenv("WARMROUTE_WORKER_API_KEY", "four")
    config = parsed("--api-key", "zero")
    assert (config.api_keys.keys, config.admin.keys.keys) == (("zero", "one", "two"), ("three",))
    assert config.worker_api_key == "four"


def test_no_key_is_in_the_configurations_repr() -> None:
    flags = ["--api-key", "SECRET1", "--admin-api-key", "SECRET2", "--worker-api-key", "SECRET3"]
    config = parsed(*flags, "--peers", "a:1", "--gossip-key", "SECRET4")
    assert "SECRET" not in repr(config)


def test_flags_of_other_routers_get_a_word_and_a_start(capsys: pytest.CaptureFixture[str]) -> None:
    config = parsed("--cache-threshold", "0.3", "--enable-igw", "--max-tree-size", "1000", "--port", "1")
    assert config.port == 1
    words = capsys.readouterr().err.splitlines()
    assert [word.split()[2] for word in words] == ["--cache-threshold", "--enable-igw", "--max-tree-size"]
    assert all("means nothing here: " in word for word in words)
