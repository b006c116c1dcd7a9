"""An operator's admission file: which issuers of tokens it knows, and how far each one counts.

    [[issuer]]
    name = "login.example"
    key = "9f86d081..."                 # Ed25519 public key, 64 hex digits
    numbers = [[1000000, 1999999]]      # its clients; no certificate has such a number
    share = 0.5                         # of the plan's max_clients, at most, in a round; 0 stops it
    counts = 10                         # at most so many of its reports count to min_clients

It is read again when it changes. What cannot be read leaves in force what was read before. An
entry that was changed or removed stays known as that of a stopped issuer until the next start:
its tokens are refused, its reports do not count, and no certificate may have its numbers.

A round of a plan with `min_contributors` has at most `counts` reports of an issuer, since each may
fill the number of clients behind a row.

Both operators must have the same issuers, or rounds end unopened at the stricter one. `digest`
names those that the file lists, so it is the same before and after a start. Servers tell it each
other and their clients, and `torchfsl doctor` compares.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import re
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchfsl.errors import Error, ParameterError
from torchfsl.service.net.tokens import check_name
from torchfsl.service.net.trust import stamp_of

log = logging.getLogger("torchfsl.service.trust")

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_FIELDS: Final = {"name", "key", "numbers", "share", "counts"}
_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Listed:
    """An issuer, as the file at the top describes it."""

    name: str
    key: bytes
    numbers: tuple[range, ...]
    share: float
    counts: int

    @property
    def most(self) -> int:
        """Reports of it that count, at most."""
        return self.counts if self.share else 0


class Issuers:
    """Those of one server. Usable from any thread.

    Attributes:
        is_stale: the file has changed and cannot be used.

    Raises:
        ParameterError: the file cannot be read, or is not valid.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._looked, self.is_stale = path, time.monotonic(), False
        self._stamp, self._listed = _stamp(path), _read(path)
        self._digest = _digest(self._listed)

    def listed(self) -> tuple[Listed, ...]:
        """All of them, as the file is now."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.look()
        return self._listed

    def of(self, name: str) -> Listed | None:
        """The issuer of this name."""
        return next((one for one in self.listed() if one.name == name), None)

    def whose(self, number: int) -> Listed | None:
        """The issuer in whose ranges a client's number lies; None if certificates have it."""
        return next((o for o in self.listed() if any(number in r for r in o.numbers)), None)

    def counted(self, clients: Iterable[int]) -> int:
        """How many of these clients count towards `min_clients`."""
        owners = Counter(self.whose(client) for client in clients)
        return sum(n if who is None else min(n, who.most) for who, n in owners.items())

    def digest(self) -> str:
        """SHA-256 of what the file lists, in hex: equal where all settings of all issuers are."""
        self.listed()  # which reads a changed file
        return self._digest

    def look(self) -> None:
        """Read the file if it has changed."""
        self._looked = time.monotonic()
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            listed = _read(self._path)
            stopped = (dataclasses.replace(o, share=0.0) for o in self._listed if o not in listed)
            self._listed = tuple(dict.fromkeys((*listed, *stopped)))
            self._digest, self.is_stale = _digest(listed), False
        except Error as error:
            self.is_stale = True
            log.error("the issuers stay as they were: %s", error)


def _digest(listed: Iterable[Listed]) -> str:
    told = [
        [o.name, o.key.hex(), sorted((r.start, r.stop) for r in o.numbers), o.share, o.counts]
        for o in sorted(listed, key=lambda one: one.name)
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        return stamp_of(path)
    except OSError as error:
        raise ParameterError(f"cannot read {path}: {error.strerror}. Correct the path") from None


def _read(path: Path) -> tuple[Listed, ...]:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ParameterError(f"cannot read the issuers in {path}: {error}") from None
    entries = given.get("issuer", [])
    if set(given) - {"issuer"} or not isinstance(entries, list):
        raise ParameterError(
            f"expected only sections [[issuer]] in {path}, got other entries: write [[issuer]] "
            "above the settings of each issuer"
        )
    found = tuple(_listed(entry, path) for entry in entries)
    ranges = sorted((r.start, r.stop) for one in found for r in one.numbers)
    apart = all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    if not apart or any(len({getattr(o, n) for o in found}) < len(found) for n in ("name", "key")):
        raise ParameterError(
            f"two issuers in {path} have the same name or key, or a client number in common: give "
            "each issuer another name, another key and other numbers"
        )
    return found


def _listed(entry: Any, path: Path) -> Listed:
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise ParameterError(
            f"each [[issuer]] in {path} needs exactly {', '.join(sorted(_FIELDS))}: add the "
            "settings that are missing, and remove others"
        )
    name, key, share, counts = (entry[n] for n in ("name", "key", "share", "counts"))
    check_name(name)
    if type(key) is not str or not _KEY.fullmatch(key):
        raise ParameterError(
            f"issuer {name} in {path} has an invalid key: give 64 hex digits in lower case"
        )
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise ParameterError(
            f"issuer {name} in {path} has share = {share!r}: give a number from 0 to 1"
        )
    if type(counts) is not int or counts < 0:
        raise ParameterError(
            f"issuer {name} in {path} has counts = {counts!r}: give a whole number"
        )
    numbers = entry["numbers"] if isinstance(entry["numbers"], list) else []
    pairs = [p for p in numbers if isinstance(p, list) and [type(n) for n in p] == [int, int]]
    if not pairs or len(pairs) != len(numbers) or any(not 0 <= a <= b for a, b in pairs):
        raise ParameterError(
            f"issuer {name} in {path} has numbers = {str(entry['numbers'])[:40]}: give a list of "
            "ranges of client numbers, as [[1000, 1999]]"
        )
    ranges = tuple(range(first, last + 1) for first, last in pairs)
    return Listed(name, bytes.fromhex(key), ranges, float(share), counts)
