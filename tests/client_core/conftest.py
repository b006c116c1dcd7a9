"""The core as a shared library, built once."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.client_core import Core, build


@pytest.fixture(scope="session")
def core() -> Core:
    """With the tape that tests give it."""
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed: apt-get install cmake")
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        pytest.skip("there is no C++ compiler: apt-get install g++")
    return Core(build("torchfsl_client_tape") / "libtorchfsl_client_tape.so")
