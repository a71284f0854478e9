"""The present moment as every file and message of gpulatch writes it."""

import time  # datetime takes two milliseconds to import, on every create


def now() -> str:
    """RFC 3339 in UTC, to the millisecond."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 10**6:03}Z"
