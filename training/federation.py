"""From settings and a task to everything a round needs: model, plan, servers, audit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from torch import nn

from torchfsl import Federated, Plan, privacy, sefl, sesa
from torchfsl.crypto import discrete_gaussian
from torchfsl.engine.hooks import Hooks
from torchfsl.errors import ParameterError
from torchfsl.federation.privacy_state import PrivacyState
from torchfsl.fsl.in_process import TwoServers
from torchfsl.fsl.noise import BothServers
from torchfsl.sefl import AggregatorAndKeyHolder, SeflPlan
from torchfsl.sefl.privacy import Guarantee, guarantee
from torchfsl.sesa import OneServer, SesaPlan
from torchfsl.submodel.aggregation import Aggregation
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.server_model import ServerModel, state_digest
from torchfsl.submodel.server_optimizers import ServerOptimizer
from torchfsl.types import Array
from training.aggregations.audit import Audit
from training.attached import Attached, attach
from training.central import LocalSteps
from training.config import Config, optimizer_settings
from training.row_list import histogram_plan
from training.section_checks import ConfigError
from training.sections import Sefl
from training.seeded_noise import SeededNoise, with_noise
from training.tasks.recommendation import RecommendationTask
from training.tasks.task import Task

AnyPlan = Plan | SesaPlan | SeflPlan


@dataclass(frozen=True, eq=False)
class Federation:
    """All parts of a running experiment: the torch side, and the aggregation under audit."""

    attached: Attached
    audit: Audit
    noise: SeededNoise | None = None

    @property
    def model(self) -> nn.Module:
        """See `Attached`."""
        return self.attached.model

    @property
    def hooks(self) -> Hooks:
        """See `Attached`."""
        return self.attached.hooks

    @property
    def plan(self) -> SubmodelPlan:
        """The public plan."""
        return self.audit.plan

    @property
    def server_model(self) -> ServerModel:
        """The servers' model."""
        return self.audit.aggregation.model

    @property
    def retrieves(self) -> bool:
        """Whether clients fetch rows privately."""
        return bool(self.plan.retrieving)

    def load_global_model(self) -> None:
        """Bring the servers' model into the torch model."""
        self.load(self.server_model.state)

    def load(self, state: Mapping[str, Array]) -> None:
        """Bring a state of the servers' names and shapes into the torch model, finite or not."""
        self.hooks.exchange.load(state)

    def model_sha256(self) -> str:
        """Hex digest over the whole state_dict, buffers included, with the servers' values."""
        self.load_global_model()
        state = {
            name: value.detach().cpu().numpy() for name, value in self.model.state_dict().items()
        }
        return state_digest(state).hex()


def build(
    config: Config,
    task: Task,
    *,
    plan: str | None = None,
    state: Mapping[str, Array] | None = None,
    optimizer_state: Mapping[str, Array] | None = None,
    finished: int = 0,
    privacy_state: Mapping[str, Array] | None = None,
) -> Federation:
    """Set everything up.

    Args:
        config: the experiment.
        task: its task.
        plan: of an earlier run that is continued, as canonical JSON; a fresh one when None.
        state: the servers' model of an earlier run.
        optimizer_state: the servers' optimizer of an earlier run.
        finished: rounds of an earlier run.
        privacy_state: what the servers of an earlier run kept for differential privacy.

    Raises:
        ParameterError: the settings make no valid plan.
        ConfigError: this machine or this build of torch lacks the device.
    """
    attached = attach(config, task)
    model, fed = attached.model, attached.fed
    fed.plan = terms = _plan(config, task, fed) if plan is None else _plan_of(config, plan)
    fed.hooks.check_row_by_row(terms.retrieving)  # rounds do, too late for a run without a folder
    initial = fed.server_state() if state is None else state
    settings = optimizer_settings(config.server, embedding_tables(model))

    def server_model() -> ServerModel:
        server: ServerOptimizer = settings.build()
        if config.aggregation == "central" and config.local.optimizer != "gradient":
            server = LocalSteps(task.build_model(), config.local)
        if optimizer_state is not None:
            server.load_state(optimizer_state)
        return ServerModel(initial, server, source=fed.hooks.settings.source)

    draws = SeededNoise(config.seed) if isinstance(terms, Plan) and terms.noise_sigma else None
    aggregation = _aggregation(config, terms, settings, server_model, task, finished, draws)
    if finished:
        PrivacyState(aggregation).load(privacy_state or {})
    return Federation(attached, Audit(aggregation), draws)


def _plan(config: Config, task: Task, fed: Federated) -> AnyPlan:
    if config.aggregation == "sesa":
        return _sesa_plan(config, task, fed)
    if config.aggregation == "sefl":
        return _sefl_plan(config, fed)
    settings = fed.hooks.settings
    assert settings.encoding is not None
    rows: int | Mapping[str, int] | None = None
    if settings.rows is not None and task.widths is not None:
        # One plan for all: the narrow send as much as the widest, who need not be known then.
        of_each = [rows_by_segment(fed.hooks, rows) for rows in task.widths.rows]
        rows = {name: max(one[name] for one in of_each) for name in of_each[0]}
    elif settings.rows is not None and task.retrieves:
        rows = task.rows_per_client
    counts = config.sesa.mean == "owners" or config.server.mean == "trained"
    try:
        plan = fed.make_plan(
            max_clients=config.clients_per_round,
            min_clients=config.min_clients,
            rows_per_client=rows,
            above_break_even=config.above_break_even,
            malicious_security=config.malicious_security,
            average="rows" if counts else "clients",
            download=config.encoding.download,
            l2_bound=privacy.l2_bound(settings.encoding, config.fsl.l2_norm),
            proofs=None if config.fsl.proofs == "default" else config.fsl.proofs,
            clip=config.privacy.clip,
            sum_bound=config.fsl.sum_bound and config.fsl.l2_norm > 0,
            hash_seed=_bin_seed(config),
        )
    except ParameterError as error:
        cost, remedy, _ = str(error).partition(": pass above_break_even=")
        if not remedy:
            raise _in_settings(error) from error
        raise ConfigError(
            f"{cost}: add --above-break-even dense to send such segments whole (clients then also "
            "download them whole), --above-break-even keep to keep the DPF trees, or "
            "smaller rows_per_client or rest.amount"
        ) from error
    return with_noise(config, plan, task.num_clients, listing_of(config, task))


def listing_of(config: Config, task: Task) -> Plan | None:
    """The plan of the histogram that chose the rows, if there was one."""
    if not isinstance(task, RecommendationTask):
        return None
    return histogram_plan(config, task.data.num_items, task.num_clients)


def _bin_seed(config: Config) -> bytes | None:
    """The hash seed where public bins, and so the model, follow from it; else a fresh one."""
    if config.rest.policy != "bins":
        return None
    return hashlib.sha256(b"torchfsl bins of experiment %d" % config.seed).digest()


_SETTING_OF: Final = {
    "l2_bound": "fsl.l2_norm times 2**frac_bits",
    "lane": "a count, of server.mean = 'trained'",
    "max_weight": "1 in experiments",
}
"""Settings of an experiment that the fields of a plan stand for."""


def _in_settings(error: ParameterError) -> ParameterError:
    """The same, with the settings that its words stand for."""
    text = str(error)
    meant = [f"{word.rstrip('=')}: {what}" for word, what in _SETTING_OF.items() if word in text]
    return ParameterError(f"{error} ({'; '.join(meant)})") if meant else error


def sefl_units(settings: Sefl, frac_bits: int) -> tuple[int, int]:
    """`l2_bound` and `noise_sigma` of a plan, in units of 2**-frac_bits.

    Raises:
        ConfigError: one is given and too small to be any unit, or beyond 2**62 of them.
    """
    norm = settings.l2_norm * 2**frac_bits
    noise = settings.noise * norm if settings.noise else 0.0
    for name, units in (("l2_norm", norm), ("noise", noise)):
        if (given := getattr(settings, name)) and not 1 <= units <= 1 << 62:
            raise ConfigError(
                f"sefl.{name} = {given} is {units:g} units of 2**-{frac_bits}, expected 1 unit to "
                f"2**62 units: change sefl.{name}, or encoding.frac_bits"
            )
    bound = round(norm)
    return bound, round(settings.noise * bound)


def _sefl_plan(config: Config, fed: Federated) -> SeflPlan:
    l2_bound, noise_sigma = sefl_units(config.sefl, config.encoding.frac_bits)
    return sefl.plan(
        fed,
        max_clients=config.clients_per_round,
        min_clients=config.min_clients,
        slots=config.sefl.slots,
        l2_bound=l2_bound,
        noise_sigma=noise_sigma,
    )


def _sesa_plan(config: Config, task: Task, fed: Federated) -> SesaPlan:
    assert task.widths is not None
    collusion = int(config.sesa.collusion * config.clients_per_round + 1e-9)
    if not collusion:
        share, size = config.sesa.collusion, config.clients_per_round
        raise ConfigError(
            f"sesa.collusion is the share {share} of {size} clients, less than one client: raise "
            f"sesa.collusion to {1 / size:.3g}, or clients_per_round to "
            f"{math.ceil(1 / share - 1e-09)}"
        )
    rows = [rows_by_segment(fed.hooks, of_class) for of_class in task.widths.rows]
    return sesa.plan(
        fed,
        widths=list(zip(rows, task.widths.counts, strict=True)),
        collusion=collusion,
        dropouts=config.num_dropouts,
        max_isolation=config.sesa.max_isolation,
        min_clients=config.min_clients,
    )


def rows_by_segment(hooks: Hooks, rows: Mapping[str, int]) -> dict[str, int]:
    """Rows by table as rows by segment; a segment holds tables with rows of equal length.

    Raises:
        ConfigError: of two tables of one segment a client trains different shares, so that the
            plan could not tell how likely each row is.
    """
    segments = hooks.exchange.segment_tensors
    for tensors in segments.values():
        shares = {rows[t.name] / t.shape[0] for t in tensors if t.name in rows}
        if len(shares) > 1:
            raise ConfigError(
                f"{', '.join(t.name for t in tensors)} share a segment, because their rows have "
                "equal length, but a client trains different parts of them: choose another "
                "sesa.shards, or layers of different widths"
            )
    return {
        name: sum(rows[tensor.name] for tensor in tensors)
        for name, tensors in segments.items()
        if all(tensor.name in rows for tensor in tensors)
    }


def _plan_of(config: Config, text: str) -> AnyPlan:
    if config.aggregation == "sefl":
        return SeflPlan.from_json(text).draft  # servers that start again have new keys
    return SesaPlan.from_json(text) if config.aggregation == "sesa" else Plan.from_json(text)


def _aggregation(
    config: Config,
    plan: AnyPlan,
    settings: OptimizerSettings,
    model: Callable[[], ServerModel],
    task: Task,
    finished: int,
    draws: SeededNoise | None,
) -> Aggregation:
    """The way in which this run sums its updates: a line each."""
    if isinstance(plan, SesaPlan):
        assert task.widths is not None
        widths = {client: task.widths.of(client) for client in range(task.num_clients)}
        return OneServer(plan, model(), widths)
    if isinstance(plan, SeflPlan):
        return AggregatorAndKeyHolder(plan, model())
    if config.aggregation in ("plain", "central"):  # the latter holds the model there
        return Plain(plan, model(), BothServers(plan, draws.both) if draws else None)
    if config.servers == "in-process":
        both = draws.both if draws else (discrete_gaussian.sample, discrete_gaussian.sample)
        return TwoServers(plan, (model(), model()), both)
    from training.aggregations.remote import RemoteServers  # needs the service extra

    return RemoteServers(
        config, plan, settings, model(), clients=task.num_clients, finished=finished
    )


def embedding_tables(model: nn.Module) -> list[str]:
    """Names of the weights of embedding tables."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return [f"{name}.weight" for name, m in model.named_modules() if isinstance(m, kinds)]


def guaranteed(config: Config, plan: SeflPlan) -> Guarantee:
    """Guarantee of the noise for a client that is in every round of the run.

    Raises:
        ParameterError: the plan has no noise, or the extra `privacy` is missing.
    """
    return guarantee(plan, delta=config.sefl.delta, rounds=config.rounds)


def explained(config: Config, federation: Federation) -> str:
    """The plan in words, and what its noise guarantees where it has any.

    Raises:
        ParameterError: it has noise, and the extra `privacy` is missing.
    """
    text, plan = federation.attached.fed.explain(), federation.plan
    if not isinstance(plan, SeflPlan) or not plan.noise_sigma:
        return text
    found = guaranteed(config, plan)
    return (
        f"{text}\nnoise of {config.sefl.noise:g} times l2_norm at each server: over "
        f"{found.rounds} rounds a client's updates have epsilon {found.epsilon_aggregator:.3g} "
        f"against the aggregator and against the key holder, {found.epsilon_public:.3g} against "
        f"everybody else, at delta {found.delta:g}"
    )
