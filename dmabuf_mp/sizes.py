"""The grammar of sizes and durations, the same in a scenario file and on the command line."""

from __future__ import annotations

import re

MAX_SIZE_BYTES = 2**63 - 1
MAX_DURATION_S = 7 * 24 * 3600.0

BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE_UNITS = BINARY | DECIMAL
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

WHOLE = r"(0|[1-9][0-9]*)"
NUMBER = WHOLE + r"(?:\.([0-9]+))?"
SIZE_PATTERN = rf"^(0x[0-9a-fA-F]+|{WHOLE}|{NUMBER} ?({'|'.join(SIZE_UNITS)}))$"
DURATION_PATTERN = rf"^{NUMBER} ?({'|'.join(DURATION_UNITS)})$"

SIZE_HELP = "write bytes (16384, 0x4000) or a number and a unit (16KiB, 1.5MiB, 16kB)"
DURATION_HELP = "write a number and a unit (500ms, 30s, 5m, 1h)"

# Longer than any size or duration that is in range; keeps int() and float() within their own limits.
_MAX_TEXT = 64
_LOOSE = re.compile(r"\s*([-+]?)([0-9][0-9_]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?\s*([^\W\d_]*)\s*")


def parse_size(text: str) -> int:
    """Return the bytes that a size's text names, from 1 to 2**63 - 1.

    Raises ValueError, which says what would be right.
    """
    _must_be_short(text, SIZE_HELP)
    if re.fullmatch(r"0x[0-9a-fA-F]+", text):
        return _in_range(int(text, 16), text)
    match = re.fullmatch(rf"{NUMBER}(?: ?([a-zA-Z]+))?", text)
    if match is None:
        raise ValueError(_not_a_number(text, "size", SIZE_HELP))
    whole, fraction, unit = match[1], match[2] or "", match[3]
    if unit and unit not in SIZE_UNITS:
        raise ValueError(_unknown_size_unit(text, f"{whole}.{fraction}" if fraction else whole, unit))
    scaled, rest = divmod(int(whole + fraction) * SIZE_UNITS[unit or "B"], 10 ** len(fraction))
    if rest:
        raise ValueError(f"{text!r} is not a whole number of bytes: {SIZE_HELP}")
    if fraction and not unit:
        raise ValueError(f"{text!r} has a fraction and no unit: {SIZE_HELP}")
    return _in_range(scaled, text)


def parse_duration(text: str) -> float:
    """Return the seconds that a duration's text names, more than 0 and at most a week.

    Raises ValueError, which says what would be right.
    """
    _must_be_short(text, DURATION_HELP)
    match = re.fullmatch(rf"{NUMBER}(?: ?([a-zA-Z]+))?", text)
    if match is None:
        raise ValueError(_not_a_number(text, "duration", DURATION_HELP))
    number, unit = f"{match[1]}.{match[2] or '0'}", match[3]
    if not unit:
        raise ValueError(f"{text!r} has no unit: for seconds write {text.strip()}s")
    if unit not in DURATION_UNITS:
        raise ValueError(f"unknown unit {unit!r} in {text!r}: expected {', '.join(DURATION_UNITS)}")
    seconds = float(number) * DURATION_UNITS[unit]
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"{text!r} is out of range: a duration is more than 0 and at most 168h (a week)")
    return seconds


def format_size(size_bytes: int) -> str:
    """Return a size for people, in the largest binary unit that it fills: `16 KiB`, `1.5 MiB`, `100 B`."""
    unit = max((unit for unit in BINARY if BINARY[unit] <= size_bytes), key=BINARY.__getitem__, default="B")
    number = f"{size_bytes / BINARY[unit]:.2f}".rstrip("0").rstrip(".")
    return f"{number} {unit}"


def _must_be_short(text: str, help_: str) -> None:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"{text[:16]!r}… is too long: {help_}")


def _in_range(size_bytes: int, text: str) -> int:
    if size_bytes < 1:
        raise ValueError(f"{text!r} is no size: the smallest is 1 byte")
    if size_bytes > MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is too large: the largest size is 2⁶³ − 1 bytes ({MAX_SIZE_BYTES})")
    return size_bytes


def _unknown_size_unit(text: str, number: str, unit: str) -> str:
    """Offer both readings of a unit that could mean either, the right spelling of any other."""
    letter = unit[0].upper()
    if unit.upper() in {letter, letter + "B"} and letter in "KMGT":
        units = (f"{letter}iB", f"{letter if letter != 'K' else 'k'}B")
        readings = " or ".join(f"{number}{unit} ({number} × {SIZE_UNITS[unit]:,} bytes)" for unit in units)
        return f"{text!r} can be read in two ways: write {readings}"
    right = next((known for known in SIZE_UNITS if known.lower() == unit.lower()), None)
    hint = f"write {number}{right}" if right else f"expected {', '.join(SIZE_UNITS)}"
    return f"unknown unit {unit!r} in {text!r}: {hint}"


def _not_a_number(text: str, what: str, help_: str) -> str:
    """Say which rule of the grammar a text breaks."""
    match = _LOOSE.fullmatch(text)
    if match is None or not text.isascii():
        return f"{text!r} is not a {what}: {help_}"
    sign, whole, fraction, exponent, unit = match.groups(default="")
    if sign == "-":
        return f"{text!r} is negative: {help_}"
    if exponent:
        return f"{text!r} has an exponent: write the number out"
    plain = (whole.replace("_", "").lstrip("0") or "0") + (fraction if len(fraction) > 1 else "") + unit
    why = "leading zeros" if whole[0] == "0" and len(whole) > 1 else "underscores" if "_" in whole else ""
    return f"{text!r} has {why}: write {plain}" if why else f"{text!r} is not a {what}: write {plain}"
