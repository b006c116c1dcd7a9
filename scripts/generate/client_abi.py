"""Writes docs/client-abi.md, the types and functions of the client core's C header.

    python -m scripts.generate.client_abi

Offsets are those of WebAssembly, where pointers and sizes have four bytes. A test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program

PAGE: Final = ROOT / "docs" / "client-abi.md"
HEADER: Final = ROOT / "torchfsl" / "kernels" / "csrc" / "client" / "torchfsl_client.h"
_SIZES: Final = {"uint8_t": 1, "uint32_t": 4, "uint64_t": 8, "double": 8, "size_t": 4}
_BEGINNING: Final = """\
---
kind: reference
reader: user
---
# The interface of the client core

These tables have all constants, structures and functions of `torchfsl_client.h`, version {version}.
[The client core](client-core.md) says when to call which function. Offsets and sizes are in bytes
and hold for WebAssembly. A C compiler knows those of its machine.
"""


def header() -> str:
    """The header of releases, without comments."""
    text = HEADER.read_text().split("#ifdef TORCHFSL_CLIENT_TAPE")[0]
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def fields(body: str) -> Iterator[tuple[str, str, int, int]]:
    """Name, type, offset and size of each field. The last one has the size of the structure."""
    at, widest = 0, 1
    for line in filter(None, (" ".join(one.split()) for one in body.split(";"))):
        kind, names = re.fullmatch(r"((?:const )?\w+\*?) (.+)", line).groups()  # type: ignore[union-attr]
        plain = kind.removeprefix("const ")
        one = 4 if plain.endswith("*") else 8 if plain == "tfsl_view" else _SIZES[plain]
        align = min(one, 4) if plain == "tfsl_view" else one
        widest = max(widest, align)
        for name in names.split(", "):
            size = one
            for count in re.findall(r"\[(\d+)\]", name):
                size *= int(count)
            at = -(-at // align) * align
            yield name, kind, at, size
            at += size
    yield "", "", 0, -(-at // widest) * widest


def structures(text: str) -> dict[str, list[tuple[str, str, int, int]]]:
    """All structures with their fields."""
    found = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S)
    return {name: list(fields(body)) for name, body in found}


def page() -> str:
    """The page."""
    text = header()
    version = re.search(r"TFSL_ABI_VERSION (\d+)u", text)
    assert version is not None
    lines = [_BEGINNING.format(version=version[1]), "## Constants\n", "| constant | value |"]
    lines += ["| --- | --- |"]
    lines += [f"| `{name}` | {value} |" for name, value in re.findall(r"(TFSL_\w+) = (\d+)", text)]
    for name, found in structures(text).items():
        lines += [f"\n## Structure `{name}`\n", "| field | type | offset | size |"]
        lines += ["| --- | --- | --- | --- |"]
        lines += [f"| `{one}` | `{kind}` | {at} | {size} |" for one, kind, at, size in found[:-1]]
        lines += [f"\nThe structure has {found[-1][-1]} bytes."]
    lines += ["\n## Functions\n", "```c"]
    for one in re.findall(r"^TFSL_API (.*?) TFSL_NOEXCEPT;", text, re.S | re.M):
        lines += [" ".join(one.split()) + ";"]
    return "\n".join([*lines, "```", ""])


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check the page."""
    return write(options, PAGE, page())
