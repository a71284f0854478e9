"""The grammar of GPU requests: a text in, a `Request` out.

Hot, pure. `sources` finds the text in a container's spec. `docs/requests.md` is the grammar for users.
"""

import re
from dataclasses import dataclass

from runtime_wrapper.errors import RequestError, quoted

EXCLUSIVE, SHARED, MONITOR = "exclusive", "shared", "monitor"
POLICIES = {"exclusive": EXCLUSIVE, "strict": EXCLUSIVE, "shared": SHARED, "monitor": MONITOR}
LINK_CLASSES = ("any", "nvlink", "pix", "pxb", "phb", "node")

MAX_TEXT = 4096  # the request is kept in the ledger, which every start on the host reads

SELECTORS = (
    "all, none, void, any, any:N, a GPU index, GPU-<uuid> or 8 or more digits of it, a PCI address, /dev/nvidiaN"
)
KEYS = f"policy=exclusive|shared|monitor, link={'|'.join(LINK_CLASSES)}, numa=N"

_INDEX = re.compile(r"[0-9]{1,6}")
_UUID = re.compile(r"gpu-([0-9a-f-]{8,36})", re.IGNORECASE)
_PCI = re.compile(r"(?:(?:[0-9a-f]{4})?[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_NODE = re.compile(r"(?:/dev/)?nvidia([0-9]{1,3})")
_ANY = re.compile(r"any(?::([0-9]{1,12}))?", re.IGNORECASE)
_MIG = re.compile(r"[0-9]+:[0-9]+|mig[-:].*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Request:
    """GPUs asked for: those `named` (canonical text, in order), `count` free ones, or `every` one there is.

    All three empty is `none`: a GPU container without GPUs. `source` and `text` say where it was asked and how.
    `link` is the least link class of every pair of the set, `numa` the NUMA node that each GPU must be near.
    `policy_said`: the text itself names the policy.
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

    @property
    def where(self) -> str:
        """The place of the request as error messages name it."""
        return f"{self.source}={quoted(self.text)}"

    @property
    def none(self) -> bool:
        """Whether this is the request for a GPU container without GPUs."""
        return not (self.named or self.count or self.every)


def parse(text: str, source: str) -> Request | None:
    """The request that a text of the grammar makes; None for `void` and for a text without items. Raises RequestError.

    Of `all` and `none` in one list the first decides, as in NVIDIA's runtime; both stand for the whole list.
    """
    where = f"{source}={quoted(text)}"
    if len(text) > MAX_TEXT:
        raise RequestError("request", where, f"is longer than {MAX_TEXT} characters", "ask in fewer words")
    named: dict[str, None] = {}
    count = 0
    whole: str | None = None
    options: dict[str, str] = {}
    tokens = tokens_of(text)
    for token in tokens:
        selector, *parts = (part.strip() for part in token.split("+"))
        for part in parts:
            _add_option(options, part, where)
        word = selector.lower()
        if word == "void":
            return None
        if word in ("all", "none"):
            whole = whole or word
        elif match := _ANY.fullmatch(selector):
            count += _positive(match.group(1) or "1", selector, where)
        else:
            named[_canonical(selector, where)] = None
    if not tokens:
        return None
    policy = options.get("policy") or (EXCLUSIVE if count and not whole else SHARED)
    numa = int(options["numa"]) if "numa" in options else None
    if whole:
        named, count = {}, 0
    every, said = whole == "all", "policy" in options
    return Request(source, text, tuple(named), count, every, policy, options.get("link"), numa, said)


def tokens_of(text: str) -> list[str]:
    """The items of a request, without empty ones."""
    return [token for part in text.split(",") if (token := part.strip())]


def _canonical(selector: str, where: str) -> str:
    """A named GPU in one spelling: `7`, `GPU-<lower-case hex without dashes>`, `0000:3b:00.0`, `/dev/nvidia7`."""
    if _INDEX.fullmatch(selector):
        return str(int(selector))
    if match := _UUID.fullmatch(selector):
        digits = match.group(1).lower().replace("-", "")
        if 8 <= len(digits) <= 32:
            return f"GPU-{digits}"
        raise RequestError(f"GPU id {quoted(selector)}", where, "needs 8 to 32 hex digits", f"use one of: {SELECTORS}")
    if _PCI.fullmatch(selector):
        return f"0000:{selector.lower()}"[-12:]
    if match := _NODE.fullmatch(selector):
        return f"/dev/nvidia{int(match.group(1))}"
    if _MIG.fullmatch(selector):
        raise RequestError(
            f"MIG id {quoted(selector)}", where, "MIG instances cannot be asked for yet", f"use one of: {SELECTORS}"
        )
    raise RequestError(f"token {quoted(selector)}", where, "is not a GPU selector", f"use one of: {SELECTORS}")


def _add_option(options: dict[str, str], part: str, where: str) -> None:
    key, _, value = part.partition("=")
    key, value = key.strip().lower(), value.strip().lower()
    if key == "policy" and value in POLICIES:
        value = POLICIES[value]
    elif not (key == "link" and value in LINK_CLASSES) and not (key == "numa" and _INDEX.fullmatch(value)):
        raise RequestError(f"option {quoted(part)}", where, "is not one that gpulatch knows", f"use one of: {KEYS}")
    if options.setdefault(key, value) != value:
        raise RequestError(
            f"option {quoted(part)}", where, f"another item says {key}={options[key]}", f"say {key} once"
        )


def _positive(digits: str, selector: str, where: str) -> int:
    if int(digits) == 0:
        raise RequestError(f"count {quoted(selector)}", where, "asks for no GPU", "say none, or a count of at least 1")
    return int(digits)
