"""docs/client-abi.md has what the header declares, with the offsets of the compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.generate import client_abi


def test_the_page_is_that_of_the_header() -> None:
    assert client_abi.main(["--check"]) == 0


def test_every_function_and_structure_of_the_header_is_on_the_page() -> None:
    text, page = client_abi.header(), client_abi.PAGE.read_text()
    assert page.count("\nTFSL") == 0
    assert page.count("NOEXCEPT") == 0
    assert page.count(");\n") == text.count("\nTFSL_API ") == 15
    assert page.count("## Structure ") == text.count("typedef struct") - 2 == 7  # two are opaque


def test_offsets_are_those_of_the_compiler(tmp_path: Path) -> None:
    if not shutil.which("emcc"):
        pytest.skip("emcc is not installed: apt-get install emscripten")
    lines = ["#include <stddef.h>", '#include "torchfsl_client.h"']
    for name, found in client_abi.structures(client_abi.header()).items():
        lines += [f'_Static_assert(sizeof({name}) == {found[-1][-1]}, "{name}");']
        for field, _, at, size in found[:-1]:
            of = f"{name}, {field.partition('[')[0]}"
            lines += [f'_Static_assert(offsetof({of}) == {at}, "{of}");']
            lines += [f'_Static_assert(sizeof((({name}*)0)->{of.split()[1]}) == {size}, "{of}");']
    (tmp_path / "offsets.c").write_text("\n".join(lines) + "\n")
    command = [
        "emcc",
        "-fsyntax-only",
        f"-I{client_abi.HEADER.parent}",
        str(tmp_path / "offsets.c"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
