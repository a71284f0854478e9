"""Tables and their cells as people see them."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

# Wide enough for every table where the output is no terminal: nothing is cut off in a pipe.
_PIPE_WIDTH = 200
_WIDE = 120


def console() -> Console:
    """Standard output; in a pipe as wide as the tables need."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table."""
    console().print(table(title, columns, rows))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table; every cell is shown as plain text, None as a dash."""
    found = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        found.add_column(column, overflow="fold")
    for row in rows:
        found.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
    return found


def watch(look: Callable[[], RenderableType], interval_s: float) -> None:
    """Show what `look` gives, again and again until interrupted: in place on a terminal, else one below the other."""
    shown = console()
    try:
        if not shown.is_terminal:
            while True:
                shown.print(look())
                time.sleep(interval_s)
        with Live(look(), console=shown, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(interval_s)
                live.update(look(), refresh=True)
    except (KeyboardInterrupt, BrokenPipeError):
        return


def uuid(text: str | None) -> str | None:
    """A UUID, in a narrow terminal cut to what still names a GPU in a request."""
    return text[:12] if text and console().width < _WIDE else text


def moment(text: str) -> str:
    """A moment of RFC 3339 to the second."""
    return f"{text[:10]} {text[11:19]}"


def printable(text: str) -> str:
    """Text of a container without characters that could move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def gpus(indices: Sequence[int]) -> str:
    """`GPU 0`, `GPUs 0,1`, `no GPU`."""
    if not indices:
        return "no GPU"
    return f"GPU{'s' if len(indices) > 1 else ''} {','.join(map(str, indices))}"


def counted(number: int, thing: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
