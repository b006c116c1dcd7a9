"""The owner: it makes the plan, opens rounds at both servers and closes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from submodels.task import federate, make_task
from torchfsl.integrations.flower import SubmodelAveraging

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    config = context.run_config
    fed, _ = federate(make_task(config), config)
    nodes = int(config["nodes"])
    where: dict[str, Any] = {"servers": "local"}
    if config["servers"] != "local":
        where = {"servers": str(config["servers"]).split(","), "tls": Path(str(config["tls"]))}
    strategy = SubmodelAveraging(
        fed, **where,
        fraction_train=0.001, min_train_nodes=nodes,
        fraction_evaluate=0.001, min_evaluate_nodes=nodes, min_available_nodes=nodes,
    )  # fmt: skip
    result = strategy.start(
        grid, num_rounds=int(config["rounds"]), timeout=float(config["timeout"])
    )
    print(f"model_sha256 {strategy.model_sha256}")
    for number, metrics in result.train_metrics_clientapp.items():
        print(f"round {number}: loss {metrics['loss']:.4f}")
