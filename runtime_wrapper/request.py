"""The grammar of GPU requests: a text in, a `Request` out.

Hot, pure. `sources` finds the text in a container's spec. `docs/requests.md` is the grammar for users.
"""

import re
from dataclasses import dataclass

from runtime_wrapper import cdi, options, selectors
from runtime_wrapper.errors import RequestError, quoted

EXCLUSIVE, SHARED, MONITOR = options.EXCLUSIVE, options.SHARED, options.MONITOR

MAX_TEXT = 4096  # the request is kept in the ledger, which every start on the host reads

_ANY = r"any(?::([0-9]{1,12}))?"


@dataclass(frozen=True, slots=True)
class Request:
    """GPUs asked for: those `named` (canonical text, in order), `count` free ones, or `every` one there is.

    All three empty is `none`: a GPU container without GPUs. `source` and `text` say where it was asked and how.
    `link` is the least link class of every pair of the set, `numa` the NUMA node that each GPU must be near, `model`
    the glob that its model's name matches. `policy_said`: the text itself names the policy. `unenforced` are the
    options that are only kept, `memory_mib` among them. `dialect` is the source's name in the settings.
    """

    source: str
    text: str
    named: tuple[str, ...] = ()
    count: int = 0
    every: bool = False
    policy: str = SHARED
    link: str | None = None
    numa: int | None = None
    policy_said: bool = False
    model: str | None = None
    memory_mib: int | None = None
    unenforced: tuple[str, ...] = ()
    dialect: str = ""

    @property
    def where(self) -> str:
        """The place of the request as error messages name it."""
        return f"{self.source}={quoted(self.text)}"

    @property
    def none(self) -> bool:
        """Whether this is the request for a GPU container without GPUs."""
        return not (self.named or self.count or self.every)

    @property
    def notes(self) -> list[str]:
        """What an event says about options that change nothing yet."""
        return [f"option {option}: kept with the claim, not enforced yet" for option in self.unenforced]


def parse(text: str, source: str) -> Request | None:
    """The request that a text of the grammar makes; None for `void` and for a text without items. Raises RequestError.

    Of `all` and `none` in one list the first decides, as in NVIDIA's runtime; both stand for the whole list.
    """
    where = f"{source}={quoted(text)}"
    if len(text) > MAX_TEXT:
        raise RequestError("request", where, f"is longer than {MAX_TEXT} characters", "ask in fewer words")
    items = [_split(token) for token in tokens_of(text)]
    words = [selector.lower() for selector, _ in items]
    if not items or "void" in words:
        return None
    said: options.Options = {}
    named: dict[str, None] = {}
    count = 0
    for selector, parts in items:
        for part in parts:
            options.add(said, part, where)
        if match := re.fullmatch(_ANY, selector, re.IGNORECASE):
            count += _positive(match.group(1) or "1", selector, where)
        elif selector.lower() not in ("all", "none"):
            named[selectors.canonical(selector, where)] = None
    whole = next((word for word in words if word in ("all", "none")), None)
    if whole:
        named, count = {}, 0
    return _request(source, text, tuple(named), count, whole == "all", said)


def tokens_of(text: str) -> list[str]:
    """The items of a request, without empty ones."""
    return [token for part in text.split(",") if (token := part.strip())]


def is_lone_all(text: str) -> bool:
    """Whether the text asks for `all` and nothing else, by whatever name."""
    return {cdi.selector(token).lower() for token in tokens_of(text)} == {"all"}


def _split(token: str) -> tuple[str, list[str]]:
    """An item's selector and its options. The `+` in the name of a MIG profile (`1g.10gb+me`) begins none."""
    selector, *parts = (part.strip() for part in token.split("+"))
    if parts and selector.lower().startswith("mig:") and "=" not in parts[0]:
        selector = f"{selector}+{parts.pop(0)}"
    return cdi.selector(selector), parts


def _request(source: str, text: str, named: tuple[str, ...], count: int, every: bool, said: options.Options) -> Request:
    def text_of(key: str) -> str | None:
        return str(said[key]) if key in said else None

    def number_of(key: str) -> int | None:
        return int(said[key]) if key in said else None

    return Request(
        source,
        text,
        named,
        count,
        every,
        policy=text_of("policy") or (EXCLUSIVE if count else SHARED),
        link=text_of("link"),
        numa=number_of("numa"),
        policy_said="policy" in said,
        model=text_of("model"),
        memory_mib=number_of("memory"),
        unenforced=tuple(f"{key}={options.shown(key, said[key])}" for key in options.UNENFORCED if key in said),
    )


def _positive(digits: str, selector: str, where: str) -> int:
    if int(digits) == 0:
        raise RequestError(f"count {quoted(selector)}", where, "asks for no GPU", "say none, or a count of at least 1")
    return int(digits)
