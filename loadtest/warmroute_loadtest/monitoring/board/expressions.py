"""The few shapes that the dashboard's expressions have."""

from .panels import Query

ROUTER = '{job=~"$job"}'
WORKER = '{job=~"$job", worker=~"$worker"}'
MODEL = '{job=~"$job", model=~"$model", worker=~"$worker"}'


def rate(name: str, by: str = "", chosen: str = WORKER) -> str:
    """Per second, over all routers. `name` is without its prefix and its `_total`; `by` are labels."""
    return _summed(by, f"rate(warmroute_{name}_total{chosen}[$__rate_interval])")


def total(name: str, by: str = "", chosen: str = WORKER) -> str:
    """What each router has of its own."""
    return _summed(by, f"warmroute_{name}{chosen}")


def mean(name: str, by: str) -> str:
    """The same of what jumps from one scrape to the next."""
    return _summed(by, f"avg_over_time(warmroute_{name}{WORKER}[$__rate_interval])")


def seen(which: str, name: str, by: str = "worker", chosen: str = WORKER) -> str:
    """What every router sees of the same thing: `max`, `min` or `avg` of them."""
    return f"{which} by ({by}) (warmroute_{name}{chosen})"


def fleets(which: str, name: str, by: str) -> str:
    """What every router sees of its whole fleet, over all fleets: the routers of one job have the same."""
    return f"sum by ({by}) ({which} by (job, {by}) (warmroute_{name}{ROUTER}))"


def share(part: str, whole: str) -> str:
    """Nothing where there is nothing to have a share of: unknown is not 0."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, name: str, by: str = "", chosen: str = MODEL) -> str:
    labels = f"le, {by}" if by else "le"
    buckets = f"rate(warmroute_{name}_seconds_bucket{chosen}[$__rate_interval])"
    return f"histogram_quantile({q}, {_summed(labels, buckets)})"


def quantiles(name: str, chosen: str = MODEL) -> list[Query]:
    return [Query(quantile(q, name, chosen=chosen), f"p{100 * q:.0f}") for q in (0.5, 0.9, 0.99)]


def _summed(by: str, what: str) -> str:
    return f"sum by ({by}) ({what})" if by else f"sum({what})"
