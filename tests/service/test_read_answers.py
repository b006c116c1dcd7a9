"""Whoever holds the clients' authority can ask for a client's answers, and reads nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.federation import wanted_rows
from tests.support.network import QUICK, Pair
from torchfsl.errors import ProtocolError, RejectedSubmission
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.server.book import MOST_ANSWERS
from torchfsl.service.client.links import Link, Links
from torchfsl.service.net import calls
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles

VICTIM = 5


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as started:
        started.start()
        started.set_up()
        yield started


def posing_as(pair: Pair, client: int, folder: Path) -> TlsFiles:
    """A second certificate of a client, from who holds the clients' authority."""
    for path in pair.tls.glob("ca-*"):
        shutil.copy(path, folder / path.name)
    make_development_certificates(folder, [client])
    return TlsFiles.in_folder(folder, f"client-{client}")


def test_a_second_certificate_of_a_client_gets_its_answers_sealed_and_a_few_times_only(
    pair: Pair, tmp_path: Path
) -> None:
    pair.open()
    with pair.client(VICTIM) as connection:
        update = pair.update(VICTIM)
        taking = connection.client.start_round(pair.number, indices=wanted_rows(pair.plan, update))
        rows = taking.retrieve()["table"][1]
        links = Links(pair.urls, posing_as(pair, VICTIM, tmp_path), QUICK)
        answers = ask(links, pair.number)
        assert ask(links, pair.number) == answers
        bodies = [AnswerBody.read(pair.plan, answer) for answer in answers]
        clear = [np.frombuffer(body.sealed, np.uint8) for body in bodies]
        assert rows[0].tobytes() not in (clear[0] ^ clear[1]).tobytes()
        secrets, context = taking._trees.master_seeds, taking._trees.context
        keys = [context.answer_key(secrets[p], p, pair.number) for p in (0, 1)]
        opened = [b"".join(b.unseal(pair.plan, k)) for b, k in zip(bodies, keys, strict=True)]
        parts = [np.frombuffer(part, np.uint8) for part in opened]
        assert rows[0].tobytes() in (parts[0] ^ parts[1]).tobytes(), "the seal is what hides them"
        with pytest.raises(ProtocolError, match="so its authentication fails"):
            bodies[1].unseal(pair.plan, keys[0])  # server 0 has the one key only
        for _ in range(MOST_ANSWERS - 3):
            ask(links, pair.number)
        with pytest.raises(RejectedSubmission, match=f"was answered {MOST_ANSWERS} times"):
            ask(links, pair.number)
        taking.submit(update)
    pair.take_part([1])
    assert pair.close().clients == (1, VICTIM)


def ask(links: Links, number: int) -> tuple[bytes, bytes]:
    request = calls.encode_request(round=number)

    def answer(link: Link) -> bytes:
        return link.call("Answer", request, limit=1 << 20)

    return links.both(answer)
