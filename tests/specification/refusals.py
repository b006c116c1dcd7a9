"""Altered copies of a transcript's messages, by whoever carries them or by a party that lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.specification import pages
from tests.specification.entries import ENTRIES
from tests.specification.replays import edits_of
from tests.specification.scenes import Json, Scene

HEADER = 64
Change = Callable[[bytes], bytes]


def flip(place: int, bits: int = 1) -> Change:
    """A change of one byte."""

    def change(data: bytes) -> bytes:
        place_ = place % len(data)
        return data[:place_] + bytes([data[place_] ^ bits]) + data[place_ + 1 :]

    return change


def put(place: int, what: bytes) -> Change:
    """Other bytes at a place."""
    return lambda data: data[:place] + what + data[place + len(what) :]


def resized(change: Change) -> Change:
    """A change of the body, with the length in the header that fits."""

    def whole(data: bytes) -> bytes:
        body = change(data[HEADER:])
        return data[:24] + len(body).to_bytes(8, "little") + data[32:HEADER] + body

    return whole


class Source:
    """A transcript, its scene, and where its messages are."""

    def __init__(self, name: str) -> None:
        self.spec = pages.run()
        self.scene = Scene(self.spec, name, ENTRIES[name])
        self.content, self.plan = self.scene.play(), self.scene.plan

    def find(self, kind: str, client: int = 0, nth: int = 0) -> int:
        """The number of a message, by kind and the client in its header."""
        code, who = self.spec.KINDS[kind], client.to_bytes(8, "little")
        found = [n for n, m in enumerate(self.scene.sent) if m[6] == code and m[16:24] == who]
        return found[nth]

    def draws(self, by: str, name: str) -> list[bytes]:
        """Draws of a party of one name."""
        return [bytes.fromhex(data) for step in self.content["steps"] if step["by"] == by
                for called, data in step.get("draws", ()) if called == name]  # fmt: skip

    def alter(self, n: int, change: Change) -> Json:
        """One altered message of a case."""
        old = self.scene.sent[n]
        return {"message": n, "edits": edits_of(old, change(old))}

    def parts(self, data: bytes) -> tuple[Any, Json, list[bytes]]:
        """The context of an upload, its parts, and what its tag covers."""
        spec, plan, kind = self.spec, self.plan, self.scene.kind(data)
        number, client = spec.integer(data[8:16]), spec.integer(data[16:24])
        parts: Json = spec.cut_upload(plan, kind, data[HEADER:])
        context = spec.context_of_trees(plan, number, client, parts["nonce"])
        name = b"fetch" if kind.startswith("FETCH") else b"trees"
        if "hint nonce" in parts:
            context, name = spec.context_of_report(context, number, parts["hint nonce"]), b"report"
        public = parts.get("public")
        own = parts.get("commitment") or spec.digest_long(b"commitment", name, context, public)
        masked = [spec.digest_long(b"upload", parts["masked"])] if "masked" in parts else []
        return context, parts, [own, *masked]

    def lie(self, change: Change, heard: bytes = b"") -> Change:
        """A change by the client itself, which knows the key of its tag."""

        def lied(data: bytes) -> bytes:
            data = change(data)
            context, parts, digests = self.parts(data)
            said = [*digests, heard] if heard else digests
            tag = self.spec.upload_tag(context, parts["seed"], data[7], said)
            return put(112 if "hint nonce" in parts else 96, tag)(data)

        return lied

    def committed(self, n: int, change: Change, commit: int, heard: bytes = b"") -> list[Json]:
        """A public share with a change, and the commitment that fits it, by the client itself."""
        data = self.lie(change, heard)(self.scene.sent[n])
        own = put(len(self.scene.sent[commit]) - 32, self.parts(data)[2][0])
        return [self.alter(n, lambda _: data), self.alter(commit, self.lie(own, heard))]

    def reseal(self, client: int, party: int, change: Change) -> Change:
        """A change inside an answer by the server itself, which has the key of the seal."""
        spec, by = self.spec, f"client {client}"
        nonce, seed = self.draws(by, "nonce")[0], self.draws(by, "master seed")[party]

        def lied(data: bytes) -> bytes:
            number = data[8:16]
            C = spec.context_of_trees(self.plan, spec.integer(number), client, nonce)
            key = spec.derive(seed, b"answer", spec.frame(C, bytes([party]), number))
            return data[:HEADER] + bytes(spec.seal(key, change(spec.unseal(key, data[HEADER:]))))

        return lied
