"""The library's version, for those who must not import its face."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
