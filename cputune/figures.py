"""How a measured number is written: enough digits, and no exponent where people read."""


def figure(value: float, digits: int = 3) -> str:
    """So many significant digits, whole ones all: ``22.5``, ``0.0013``, ``15300``."""
    return f"{value:.0f}" if value >= 10**digits - 0.5 else f"{value:.{digits}g}"
