"""Rounds under Flower: sums exact, nothing but numbers by Message, failures left out."""

from __future__ import annotations

import dataclasses
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tests.support.flower_grid import HereGrid, quiet
from tests.support.flower_task import (
    WORDS,
    Recorder,
    build,
    build_planned,
    participate,
    replayed,
)
from torchfsl import Federated, Rows, optim, sesa
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.integrations.flower import NodeServers, SubmodelAveraging, client_servers
from torchfsl.integrations.flower.node import local_folder
from torchfsl.policies import Fixed
from torchfsl.service import LoopbackServers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_id() -> int:
    return random.getrandbits(60)


class Run:
    """One run of a strategy on a grid of this process; the opened rounds."""

    def __init__(self, recorder: Recorder, grid: HereGrid, **options: Any) -> None:
        fed = build_planned(recorder.rows, **options.pop("plan", {}))
        self.state = fed.server_state()
        where = {"servers": "local"} | {
            k: options.pop(k) for k in ("servers", "tls") if k in options
        }
        self.recorder, self.grid = recorder, grid
        self.strategy = SubmodelAveraging(fed, **where, **options)
        self.opened: dict[int, tuple[int, ...]] = {}

    def start(self, rounds: int, **options: Any) -> Any:
        with quiet():
            return self.strategy.start(
                self.grid, num_rounds=rounds, timeout=60, evaluate_fn=self._note, **options
            )

    def _note(self, number: int, arrays: ArrayRecord) -> None:
        if self.strategy.opened is not None:
            self.opened[number] = self.strategy.opened.clients

    def assert_exact(self, optimizer: Any = optim.SGD(2.5, momentum=0.8)) -> None:  # noqa: B008
        """Both servers' model is that of `run_round` on what the clients sent."""
        bound: dict[str, Any] = {"server_keys": (), "audit_keys": (), "auditors": ()}
        plan = dataclasses.replace(self.strategy.plan, audit="none", **bound)
        rounds = {n: (who, self.recorder.sent.get(n, {})) for n, who in self.opened.items()}
        assert self.strategy.model_sha256 == replayed(plan, self.state, rounds, optimizer)


def test_a_run_ends_with_the_model_of_run_round_and_sends_no_arrays(run_id: int) -> None:
    recorder = Recorder()
    run = Run(recorder, HereGrid(recorder.app, [{}] * 4, run_id=run_id))
    result = run.start(2)
    assert run.opened == {1: (0, 1, 2, 3), 2: (0, 1, 2, 3)}
    run.assert_exact()
    assert run.grid.array_bytes == 0
    assert run.grid.bytes < 4 * 2 * 4 * 400  # rounds, both ways, train and evaluate, nodes
    assert set(result.arrays) == set(run.state)
    assert 0 <= result.evaluate_metrics_clientapp[2]["accuracy"] <= 1
    assert result.train_metrics_clientapp[1]["num-examples"] == 12  # two clients sent theirs
    assert not local_folder(run_id).exists()


def test_a_client_that_raises_before_its_round_is_left_out_and_later_adds_nothing(
    run_id: int,
) -> None:
    def fail(client: int) -> None:
        if client == 1:
            raise RuntimeError("no data today")

    recorder = Recorder(inside=fail)
    grid = HereGrid(recorder.app, [{}] * 3, run_id=run_id)
    run = Run(recorder, grid, fraction_evaluate=0.0)

    def absent(node: int) -> None:
        if node == 0:
            raise RuntimeError("not at home")

    grid.before = absent
    run.start(1)
    assert run.opened == {1: (1, 2)}  # 1 sent a report like any other, that adds nothing
    assert set(recorder.sent[1]) == {2}
    assert [reply.has_error() for reply in grid.replies] == []  # of the evaluation, which is off
    run.assert_exact()


def test_words_of_errors_in_a_round_stay_at_the_node(
    run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower sends what a ClientApp raises: here rows, a weight and what the app has to say."""

    def fail(client: int) -> None:
        if client == 0:
            raise RuntimeError("my patient is 4711")
        if client == 1:
            raise ParameterError("words: 2 rows were looked up (4711, 12)")

    weights = {2: 4711, 3: 2}
    recorder = Recorder(inside=fail, weighted=True, weights=weights)
    grid = HereGrid(recorder.app, [{}] * 4, run_id=run_id)
    plan = {"average": "weight", "max_weight": 3, "min_clients": 1}
    run = Run(recorder, grid, plan=plan, fraction_evaluate=0.0)
    run.start(1)
    assert len(grid.told) == 3
    assert all("this client's round failed at this node: see the log of this node" in words
               for words in grid.told)  # fmt: skip
    assert not any("4711" in words or "rows" in words for words in grid.told)
    assert caplog.text.count("4711") >= 3  # at the node all of it
    assert run.opened == {1: (0, 1, 2, 3)}


def test_words_of_errors_in_an_evaluation_stay_at_the_node(
    run_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(client: int) -> None:
        raise RuntimeError("my patient is 4711")

    recorder = Recorder(judging=fail)
    grid = HereGrid(recorder.app, [{}] * 2, run_id=run_id)
    Run(recorder, grid).start(1)
    assert len(grid.told) == 2
    assert all("evaluation failed at this node: see the log of this node" in words
               for words in grid.told)  # fmt: skip
    assert not any("4711" in words for words in grid.told)
    assert caplog.text.count("4711") >= 2


def test_a_round_that_does_not_open_leaves_the_model_and_the_next_goes_on(run_id: int) -> None:
    recorder = Recorder()
    grid = HereGrid(recorder.app, [{}] * 2, run_id=run_id)
    run = Run(recorder, grid, plan={"min_clients": 2}, fraction_evaluate=0.0)
    trained = []

    def absent(node: int) -> None:
        trained.append(node)
        if len(trained) == 1:
            raise RuntimeError("not at home")

    grid.before = absent
    run.start(2)
    assert run.opened == {2: (0, 1)}
    run.assert_exact()


def test_weights_of_clients_are_those_of_the_plans_lane(run_id: int) -> None:
    recorder = Recorder(weighted=True)
    grid = HereGrid(recorder.app, [{}] * 3, run_id=run_id)
    run = Run(recorder, grid, plan={"average": "weight", "max_weight": 3}, fraction_evaluate=0.0)
    run.start(1)
    assert run.strategy.opened is not None
    assert run.strategy.opened.num_clients == 3
    assert run.strategy.opened.total_weight == 1 + 2 + 3


def test_a_plan_with_sessions_is_refused_by_clients(run_id: int) -> None:
    everything = torch.arange(WORDS)
    recorder = Recorder(rows=Rows(choose=Fixed({"words": everything})))
    grid = HereGrid(recorder.app, [{}] * 2, run_id=run_id)
    plan = {"max_epochs": 3, "rows_per_client": None}
    Run(recorder, grid, plan=plan, fraction_evaluate=0.0).start(1)
    assert len(grid.told) == 2
    assert all("the plan has max_epochs = 3" in words for words in grid.told)


def test_what_a_client_owes_and_what_is_its_own_outlive_its_process(run_id: int) -> None:
    """The model is a fresh one for every Message, as in a deployment."""
    recorder = Recorder()
    grid = HereGrid(recorder.app, [{}] * 2, run_id=run_id)
    run = Run(recorder, grid, plan={"rows_per_client": 12}, fraction_evaluate=0.0)
    run.start(2)
    run.assert_exact()
    for context in grid.contexts:
        owed = context.state["torchfsl-residual"]
        assert {key.split("\x1f")[1] for key in owed} >= {"ids", "values"}
        own = context.state["torchfsl-personal"]["own"].numpy()
        assert abs(own).max() > 0


def test_a_failure_after_the_round_does_not_send_a_residual_twice(run_id: int) -> None:
    """Both servers have the update by then, so the residual must be that after it."""

    def fail(client: int) -> None:
        raise RuntimeError("the disk for metrics is full")

    kept = []
    for after in (fail, lambda client: None):
        recorder = Recorder(after=after)
        grid = HereGrid(recorder.app, [{}] * 2, run_id=run_id)
        run = Run(recorder, grid, plan={"rows_per_client": 12}, fraction_evaluate=0.0)
        run.start(2)
        assert run.opened == {1: (0, 1), 2: (0, 1)}
        run.assert_exact()
        kept.append([
            {key: {n: a.numpy().tolist() for n, a in record.items()}
             for key, record in context.state.items()} for context in grid.contexts
        ])  # fmt: skip
    assert len(grid.told) == 0
    assert kept[0] == kept[1]
    assert all(set(one) == {"torchfsl-residual", "torchfsl-personal"} for one in kept[0])


def app_of(answer: Callable[[Federated, NodeServers, int], object], kind: str) -> ClientApp:
    """A ClientApp that calls `answer` with a fresh model, its servers and its number."""
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        fed = build()
        with client_servers(message, context, fed) as servers:
            answer(fed, servers, int(context.node_config["partition-id"]))
        return servers.reply()

    (app.train() if kind == "train" else app.evaluate())(reply)
    return app


def test_the_block_of_servers_in_one_process_gives_the_same_model(run_id: int) -> None:
    """Clients have new processes under Flower, and share one model in this process."""
    grid = HereGrid(app_of(participate, "train"), [{}] * 3, run_id=run_id)
    fed = build_planned()
    strategy = SubmodelAveraging(fed, servers="local", fraction_evaluate=0.0)
    with quiet():
        strategy.start(grid, num_rounds=3, timeout=60)
    assert grid.told == []
    servers = fed.local_servers()
    for _ in range(3):
        with servers.round():
            for client in range(3):
                participate(fed, servers, client)
    assert servers.model.digest().hex() == strategy.model_sha256
    fed.load(strategy)
    assert all((fed.server_state()[n] == v).all() for n, v in servers.model.state.items())


def test_a_client_that_withdraws_keeps_its_state(run_id: int) -> None:
    def withdraw(fed: Federated, servers: NodeServers, client: int) -> None:
        with fed.round(servers, rows={"words": [1]}) as rnd:
            with torch.no_grad():
                fed.model.own.add_(1.0)
            rnd.withdraw()

    grid = HereGrid(app_of(withdraw, "train"), [{}] * 2, run_id=run_id)
    strategy = SubmodelAveraging(build_planned(), servers="local", fraction_evaluate=0.0)
    with quiet():
        strategy.start(grid, num_rounds=1, timeout=60)
    assert strategy.opened is not None
    assert strategy.opened.clients == (0, 1)
    assert not any(value.any() for value in strategy.opened.sums.values())
    assert not any(context.state for context in grid.contexts)


def test_an_evaluation_starts_no_round(run_id: int, caplog: pytest.LogCaptureFixture) -> None:
    grid = HereGrid(app_of(participate, "evaluate"), [{}] * 2, run_id=run_id)
    strategy = SubmodelAveraging(build_planned(), servers="local", fraction_train=0.0)
    with quiet():
        strategy.start(grid, num_rounds=1, timeout=60)
    assert len(grid.told) == 2
    assert all("this client's evaluation failed" in words for words in grid.told)
    assert "use fed.evaluating(servers, batches=batches)" in caplog.text


def test_the_servers_step_by_the_optimizer_that_the_strategy_is_given(run_id: int) -> None:
    recorder, chosen = Recorder(), optim.Adam(0.1)
    grid = HereGrid(recorder.app, [{}] * 2, run_id=run_id)
    run = Run(recorder, grid, server_optimizer=chosen, fraction_evaluate=0.0)
    run.start(2)
    run.assert_exact(chosen)


def test_what_running_servers_do_not_take_is_refused_before_anything_is_sent() -> None:
    local: Any = {"servers": "local"}
    with pytest.raises(ParameterError, match=r"there is no plan yet: pass max_clients="):
        SubmodelAveraging(build(), **local)
    torch_optimizer: Any = optim.from_torch(lambda p: torch.optim.Adagrad(p))
    with pytest.raises(ParameterError, match=r"cannot be FromTorch: choose torchfsl\.optim\.SGD"):
        SubmodelAveraging(build_planned(), server_optimizer=torch_optimizer, **local)
    fed = build()
    fed.plan = sesa.plan(fed, widths=[(12, 80)], collusion=1)
    with pytest.raises(ParameterError, match="got a SesaPlan"):
        SubmodelAveraging(fed, **local)


def test_clients_of_a_deployment_take_certificates_from_their_node_and_urls_from_the_message(
    tmp_path: Path, run_id: int
) -> None:
    with LoopbackServers(tmp_path, clients=12) as servers:
        servers.start()
        tls = str(servers.tls)
        nodes = [
            {"torchfsl-tls": tls, "torchfsl-name": "client-5"},
            {"torchfsl-tls": tls, "torchfsl-name": "client-11",
             "torchfsl-servers": ",".join(servers.urls)},
            {"torchfsl-tls": tls},  # which of the twelve?
            {},  # none
        ]  # fmt: skip
        recorder = Recorder()
        grid = HereGrid(recorder.app, nodes, run_id=run_id)
        run = Run(recorder, grid, servers=servers.urls, tls=servers.tls, plan={"min_clients": 2})
        run.start(1)
        assert run.opened == {1: (5, 11)}
        recorder.sent[1] = {5: recorder.sent[1][0], 11: recorder.sent[1][1]}
        run.assert_exact()
        assert len(grid.told) == 4  # two in training, and the same two in the evaluation
        for reasons in (grid.told[:2], grid.told[2:]):
            assert "torchfsl-name" in reasons[0]
            assert "this node has no certificate" in reasons[1]


def test_a_policy_of_the_node_refuses_the_plan_before_anything_is_sent(
    tmp_path: Path, run_id: int
) -> None:
    (tmp_path / "policy.toml").write_text("min_clients = 50\n")
    with LoopbackServers(tmp_path / "servers", clients=2) as servers:
        servers.start()
        node = {"torchfsl-tls": str(servers.tls), "torchfsl-name": "client-0"}
        nodes = [node, node | {"torchfsl-name": "client-1"}]
        nodes[1]["torchfsl-require"] = str(tmp_path / "policy.toml")
        recorder = Recorder()
        grid = HereGrid(recorder.app, nodes, run_id=run_id)
        run = Run(recorder, grid, servers=servers.urls, tls=servers.tls, plan={"min_clients": 1})
        run.start(1)
        assert run.opened == {}  # the other one's default floors want two clients, too
        assert grid.told
        assert all("min_clients" in words for words in grid.told)


def test_more_nodes_than_the_plan_allows_are_refused_before_the_round_opens(run_id: int) -> None:
    recorder = Recorder()
    run = Run(recorder, HereGrid(recorder.app, [{}] * 3, run_id=run_id), plan={"max_clients": 2})
    with pytest.raises(
        ParameterError, match="the strategy samples 3 nodes, but the plan has max_clients = 2"
    ):
        run.start(1)
    assert not local_folder(run_id).exists()


@pytest.mark.parametrize(
    "where", [{"servers": "local", "tls": Path("x")}, {"servers": ["https://a:1", "https://b:2"]},
              {"servers": ["https://a:1"], "tls": Path("x")}, {"servers": "https://a:1"}],
)  # fmt: skip
def test_servers_and_certificates_that_do_not_go_together_are_refused(where: Any) -> None:
    with pytest.raises(ParameterError, match="servers"):
        SubmodelAveraging(build_planned(), **where)


def message_of(content: RecordDict, run_id: int) -> Message:
    recorder = Recorder()
    HereGrid(recorder.app, [], run_id=run_id)
    return Message(content=content, dst_node_id=100, message_type="train")


def test_a_message_of_another_strategy_or_with_arrays_is_refused(run_id: int) -> None:
    recorder = Recorder()
    context = HereGrid(recorder.app, [{}], run_id=run_id).contexts[0]
    call = ConfigRecord({"round": 1, "servers": ""})
    for content in (
        RecordDict({"config": ConfigRecord()}),
        RecordDict({"torchfsl": call, "arrays": ArrayRecord()}),
        RecordDict({"torchfsl": ConfigRecord({"round": "1", "servers": ""})}),
        RecordDict({"torchfsl": ConfigRecord({"round": 1, "servers": "https://a:1"})}),
    ):
        with pytest.raises(DecodeError):
            client_servers(message_of(content, run_id), context, build()).__enter__()


def test_a_node_does_not_follow_a_message_to_servers_that_it_has_no_certificate_for(
    run_id: int,
) -> None:
    """Also where a folder of local servers of this run lies on its machine."""
    recorder = Recorder()
    context = HereGrid(recorder.app, [{}], run_id=run_id).contexts[0]
    local_folder(run_id).mkdir(mode=0o700)
    try:
        call = ConfigRecord({"round": 1, "servers": "https://127.0.0.1:1,https://127.0.0.1:2"})
        message = message_of(RecordDict({"torchfsl": call}), run_id)
        with pytest.raises(ParameterError, match="no certificate"):
            client_servers(message, context, build()).__enter__()
    finally:
        local_folder(run_id).rmdir()


def deployed(servers: LoopbackServers, clients: int) -> list[dict[str, Any]]:
    tls = str(servers.tls)
    return [{"torchfsl-tls": tls, "torchfsl-name": f"client-{n}"} for n in range(clients)]


def test_a_round_in_which_server_1_is_killed_and_started_again_finishes(
    tmp_path: Path, run_id: int
) -> None:
    with LoopbackServers(tmp_path, clients=2) as servers:
        servers.start()

        def restart(client: int) -> None:
            if client == 0 and 1 not in recorder.sent:
                servers.kill(1)
                servers.start(1)

        recorder = Recorder(inside=restart)
        grid = HereGrid(recorder.app, deployed(servers, 2), run_id=run_id)
        run = Run(recorder, grid, servers=servers.urls, tls=servers.tls,
                  plan={"min_clients": 2}, fraction_evaluate=0.0)  # fmt: skip
        run.start(2)
        assert run.opened == {1: (0, 1), 2: (0, 1)}
        run.assert_exact()


def test_a_client_that_is_killed_between_trees_and_report_is_left_out(
    tmp_path: Path, run_id: int
) -> None:
    with LoopbackServers(tmp_path, clients=3) as servers:
        servers.start()
        recorder = Recorder()
        grid = HereGrid(recorder.app, deployed(servers, 3), run_id=run_id)
        ended = []

        def die(node: int) -> None:
            if node == 0:
                command = [sys.executable, "-m", "tests.support.flower_killed"]
                command += [",".join(servers.urls), str(servers.tls), "client-0", "1"]
                ended.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
                raise RuntimeError("no reply came")

        grid.before = die
        run = Run(recorder, grid, servers=servers.urls, tls=servers.tls,
                  plan={"min_clients": 2}, fraction_evaluate=0.0)  # fmt: skip
        run.start(1)
        assert ended == [-signal.SIGKILL]
        assert "round applied" in servers.log(0)
        assert run.opened == {1: (1, 2)}
        run.assert_exact()
