"""Objects with one-time secrets stay in their process: two copies would use them twice."""

from __future__ import annotations

from typing import ClassVar, NoReturn


class SecretHolder:
    """The base of objects that can be neither pickled nor copied."""

    _instead: ClassVar[str]
    """What to save, and how to make such an object of it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} holds one-time secrets, so it cannot be pickled or copied: "
            f"{self._instead}"
        )
