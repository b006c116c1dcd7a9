"""Contents of Messages: the number of a round and two URLs down, numbers in the clear up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from torchfsl.errors import DecodeError, ParameterError

RECORD: Final = "torchfsl"
"""Key of the ConfigRecord below; and of what stays at a node, in its Context."""

_EVALUATES: Final = -1


@dataclass(frozen=True, slots=True)
class Call:
    """The request of a Message to a client.

    Attributes:
        number: of the open round; -1 where no round is asked for.
        servers: URLs of both; empty where they are of this machine (`servers="local"`).
    """

    number: int
    servers: tuple[str, ...]

    @classmethod
    def to_evaluate(cls, servers: tuple[str, ...]) -> Call:
        """Ask for an evaluation, which is in no round."""
        return cls(_EVALUATES, servers)

    def content(self, key: str, config: ConfigRecord) -> RecordDict:
        """Of a Message: this call, and the app's own configuration under `key`.

        Raises:
            ParameterError: the configuration holds bytes or lists, in which an array could hide.
        """
        odd = [name for name, value in config.items() if isinstance(value, bytes | list)]
        if odd:
            raise ParameterError(
                f"the configuration entry {odd[0]!r} is of type {type(config[odd[0]]).__name__}, "
                "but torchfsl sends only single values in Messages: pass str, int, float or bool"
            )
        own = ConfigRecord({"round": self.number, "servers": ",".join(self.servers)})
        return RecordDict({RECORD: own, key: config})

    @classmethod
    def of(cls, content: RecordDict) -> Call:
        """Inverse of `content`.

        Raises:
            DecodeError: a Message of another strategy, or one that carries arrays.
        """
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord) or content.array_records:
            raise DecodeError(
                "this Message is not from SubmodelAveraging: use SubmodelAveraging as the "
                "strategy of the ServerApp"
            )
        number, servers = record.get("round"), record.get("servers")
        if type(number) is not int or number < _EVALUATES or not isinstance(servers, str):
            raise DecodeError(
                "the Message lacks the round or the servers of torchfsl: run the same version of "
                "torchfsl in the ServerApp and in all ClientApps"
            )
        urls = tuple(servers.split(",")) if servers else ()
        if len(urls) not in (0, 2):
            raise DecodeError(
                f"the Message has {len(urls)} server addresses, expected 2: run the same version "
                "of torchfsl in the ServerApp and in all ClientApps"
            )
        return cls(number, urls)

    @property
    def round_number(self) -> int | None:
        """The number of the open round; None if the Message asks for an evaluation."""
        return None if self.number == _EVALUATES else self.number


def reply_content(metrics: Mapping[str, Any] | None) -> RecordDict:
    """The numbers of a reply, in the clear for the SuperLink; an empty record for None.

    Raises:
        ParameterError: a value is not a single int or float.
    """
    for name, value in (metrics or {}).items():
        if type(value) not in (int, float):
            raise ParameterError(
                f"{name!r} in the reply is of type {type(value).__name__}, expected int or float, "
                "because the SuperLink reads replies in the clear: pass tensor.item()"
            )
    return RecordDict({"metrics": MetricRecord(dict(metrics or {}))})


def mean_metrics(contents: Iterable[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Means over the clients that sent a metric, weighted where all of these sent the weight."""
    sent = [dict(record) for content in contents for record in content.metric_records.values()]
    means = MetricRecord()
    for name in sorted({name for record in sent for name in record}):
        having = [record for record in sent if name in record]
        if any(isinstance(record[name], list) for record in having):
            continue  # no client of ours sends one
        weighted = all(weighted_by_key in record for record in having)
        weights = [float(r[weighted_by_key]) if weighted else 1.0 for r in having]
        if name == weighted_by_key:
            means[name] = math.fsum(float(record[name]) for record in having)
        elif math.fsum(weights) > 0:
            total = math.fsum(w * float(r[name]) for w, r in zip(weights, having, strict=True))
            means[name] = total / math.fsum(weights)
    return means
