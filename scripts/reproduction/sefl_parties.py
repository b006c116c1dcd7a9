"""One language model under five ways to sum: bytes, seconds of each party, nobody trains.

The model is the LSTM with an untied decoder, of whose input table `fsl` sends rows. Paillier is
what SEFL's kind of system used before lattices: its rates are measured on few numbers, its seconds
follow from them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from scripts.bench import homomorphic
from scripts.bench import measure as bench_measure
from scripts.reproduction import sefl_costs
from scripts.reproduction.sefl import MODELS, UNTIED, config_of

CLIENTS = 4


def parties(data: Path | None, paillier_python: str | None) -> dict[str, Any]:
    """Bytes and processor seconds by way to sum.

    Args:
        data: where language data lie; costs do not depend on it.
        paillier_python: a Python that has `phe` and `gmpy2`; None leaves the row out.
    """
    config = config_of(data, MODELS[0], "1", CLIENTS, 0, 1)
    config = dataclasses.replace(config, language=UNTIED)
    rows = sefl_costs.by_aggregation(config)
    values = rows["plain"]["values"]
    figures = {"environment": bench_measure.environment(), "rows": rows, "paillier": None}
    if paillier_python:
        rates = homomorphic.paillier(paillier_python, 33, 40)
        if "skipped" in rates:
            raise RuntimeError(f"Paillier: {rates['skipped']}")
        figures["paillier"] = {
            "clients": CLIENTS,
            "values": values,
            "upload_bytes": rates["bytes_per_value"] * values,
            "client_seconds": values / rates["encrypt"],
            "aggregator_seconds": CLIENTS * values / rates["add"],
            "key_holder_seconds": values / rates["decrypt"],
        }
    return figures
