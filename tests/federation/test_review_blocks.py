"""A block that is interrupted anywhere: the caller's error, no lost update, no spent round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchfsl
from tests.federation.test_one_block import block, data_of, federated, train
from torchfsl.engine import round as engine_round
from torchfsl.errors import ParameterError, ProtocolError

ERRORS = [KeyboardInterrupt, KeyError, RuntimeError, SystemExit, torch.cuda.OutOfMemoryError]


class Silent:
    """Servers that are gone."""

    def send(self, *_: Any) -> None:
        raise ProtocolError("no network")

    fetch = send


@pytest.mark.parametrize("kind", ERRORS)
def test_the_callers_error_is_raised_where_the_servers_are_gone_too(
    kind: type[BaseException],
) -> None:
    fed = federated()
    servers = fed.local_servers()
    with servers.round() as result:
        before = {name: p.detach().clone() for name, p in fed.model.named_parameters()}
        with pytest.raises(kind) as caught, fed.round(servers, 2, batches=data_of(2)) as rnd:  # noqa: PT012
            train(fed.model, fed.hooks.optimizers[0], data_of(2))
            rnd._session._servers = Silent()  # type: ignore[union-attr]
            raise kind
        assert "could not send" in "".join(caught.value.__notes__)
        for name, p in fed.model.named_parameters():
            assert torch.equal(p, before[name])
        for client in range(2):
            block(fed, servers, client, data_of(client))
    assert (result.num_clients, result.matches_plain) == (2, True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit, RuntimeError])
def test_an_update_is_kept_where_its_encoding_is_interrupted(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = federated()
    servers = fed.local_servers()

    def interrupted(*_: Any, **__: Any) -> Any:
        raise error

    with servers.round() as result:
        with monkeypatch.context() as patch:
            patch.setattr(engine_round, "quantise", interrupted)
            rnd = fed.round(servers, 0, batches=data_of(0))
            with pytest.raises(error), rnd:
                train(fed.model, fed.hooks.optimizers[0], data_of(0))
        for client in (1, 2):
            block(fed, servers, client, data_of(client))
        rnd.retry()
    assert (result.num_clients, result.matches_plain) == (3, True)
    assert any(part.values.any() for part in rnd.update.values())  # type: ignore[union-attr]


def test_a_retry_that_is_refused_for_good_ends_the_round() -> None:
    """Nothing is left that a later block of this client would settle in its place."""
    fed = federated(average="weight", max_weight=9)
    servers = fed.local_servers()
    with servers.round():
        for client in range(2):
            block(fed, servers, client, data_of(client))
        rnd = fed.round(servers, 2, batches=data_of(2))
        with pytest.raises(ParameterError), rnd:  # noqa: PT012
            train(fed.model, fed.hooks.optimizers[0], data_of(2))
            rnd.weight = 2.5  # type: ignore[assignment]
    rnd.weight = 2
    with pytest.raises(torchfsl.errors.Error):
        rnd.retry()
    with pytest.raises(ProtocolError, match="no update to send"):
        rnd.retry()
    assert not fed.hooks.residuals.of(2)._staged


ITERATORS: dict[str, Callable[[], Any]] = {
    "generator": lambda: (batch for batch in data_of(0)),
    "iter": lambda: iter(data_of(0)),
    "zip": lambda: zip(*zip(*data_of(0), strict=True), strict=True),
    "map": lambda: map(tuple, data_of(0)),
    "loader": lambda: iter(torch.utils.data.DataLoader(data_of(0), batch_size=None)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_batches_that_can_be_read_once_are_refused_before_anything_is_sent(kind: str) -> None:
    fed = federated()
    servers = fed.local_servers()
    with servers.round() as result:
        with pytest.raises(ParameterError, match=r"batches=list\(batches\)"):
            fed.round(servers, 0, batches=ITERATORS[kind]())
        for client in range(3):  # client 0, too: it has not taken part
            block(fed, servers, client, data_of(client))
    assert (result.num_clients, result.matches_plain) == (3, True)


@pytest.mark.parametrize("first", ["a block", "a block that fails"])
def test_prefetching_within_another_block_spends_no_round(first: str) -> None:
    fed = federated()
    servers = fed.local_servers()
    with servers.round() as result:
        waiting = fed.round(servers, 1, batches=data_of(1))
        try:
            with fed.round(servers, 0, batches=data_of(0)):
                with pytest.raises(ProtocolError, match="a round is open"):
                    waiting.prefetch()
                train(fed.model, fed.hooks.optimizers[0], data_of(0))
                if first != "a block":
                    raise KeyError
        except KeyError:
            pass
        waiting.prefetch()
        block(fed, servers, 2, data_of(2))
        with waiting:
            train(fed.model, fed.hooks.optimizers[0], data_of(1))
    assert (result.num_clients, result.matches_plain) == (3, True)
    assert any(part.values.any() for part in waiting.update.values())  # type: ignore[union-attr]
