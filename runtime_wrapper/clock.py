"""The present moment as every file and message of gpulatch writes it."""

from datetime import UTC, datetime


def now() -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
