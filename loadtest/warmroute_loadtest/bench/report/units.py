"""How the report writes numbers: three digits that count, and a unit that fits."""

from math import floor, log10


def three_digits(value: float) -> str:
    if value <= 0:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{max(2 - floor(log10(rounded)), 0)}f}"


def seconds(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= factor * 0.9995:  # from where on three digits would say 1000 of the next smaller unit
            return f"{three_digits(value / factor)} {unit}"
    return "0 s" if value <= 0 else f"{three_digits(value / 1e-6)} µs"


def tick(value: float) -> str:
    """Of an axis of seconds, whose marks are round."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= factor * 0.9999:
            return f"{value / factor:.5g} {unit}"
    return f"{value / 1e-6:.5g} µs" if value > 0 else "0"


def percent(share: float) -> str:
    return f"{share:.1%}"


def count(value: float) -> str:
    return f"{value:,.0f}"


def per_second(value: float) -> str:
    return f"{three_digits(value)}/s"


def times(value: float) -> str:
    return f"{format(value, '.2f') if 0.1 <= value < 100 else three_digits(value)} ×"


def short(value: float) -> float:
    """Enough of a number to draw it."""
    return float(f"{value:.5g}")


def round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(value))
    return next((digit * power for digit in (1, 2, 5) if digit * power >= value), 10 * power)
