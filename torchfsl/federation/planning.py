"""From a model's settings to a public plan, and a plan in words."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, get_args

from torchfsl.engine.choosing import block_bound
from torchfsl.engine.exchange import REST
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.inventory import lookup_names
from torchfsl.engine.policies import BlockSample
from torchfsl.engine.settings import Settings, rest_policy_of
from torchfsl.engine.specs import check_fixed, segment_specs
from torchfsl.errors import ParameterError, whole_numbers
from torchfsl.faces import outside, unknown_argument
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.privacy import lacks_its_noise
from torchfsl.submodel.plan import Lane, SubmodelPlan
from torchfsl.submodel.segments import BUFFERS, SegmentSpec, default_encoding

Average = Literal["clients", "rows", "weight"]
LANES: Final[Mapping[Average, Lane]] = {"clients": "none", "rows": "count", "weight": "weight"}


def specs_of(
    hooks: Hooks,
    *,
    rows_per_client: int | Mapping[str, int] | None = None,
    retrieve: bool | None = None,
) -> list[SegmentSpec]:
    """The segments of a model as every protocol's planner takes them.

    Args:
        hooks: on the model.
        rows_per_client: most rows that a client fetches and sends.
        retrieve: whether clients fetch their rows privately; by default where touched rows are
            sent.

    Raises:
        ParameterError: a budget is missing, or a setting names a segment that is not there.
    """
    return segment_specs(
        hooks.exchange,
        hooks.rows,
        hooks.rest,
        rows_per_client=rows_per_client,
        retrieve=retrieve,
        encodings=hooks.settings.encodings,
    )


def make_plan(
    hooks: Hooks,
    *,
    max_clients: int,
    rows_per_client: int | Mapping[str, int] | None = None,
    retrieve: bool | None = None,
    average: Average = "clients",
    min_clients: int = 2,
    options: Mapping[str, Any],
) -> Plan:
    """A public plan for a model; see `Federated`.

    Raises:
        ParameterError: a budget is missing, or a limit exceeded.
    """
    check_average(average, options)
    if whole_numbers(max_epochs=options.get("max_epochs", 1)) > [1]:
        check_fixed(hooks.inventory, hooks.rows, hooks.rest)
    specs = specs_of(hooks, rows_per_client=rows_per_client, retrieve=retrieve)
    encoding = hooks.settings.encoding
    if encoding is None:
        counts = whole_numbers(max_clients=max_clients, max_weight=options.get("max_weight", 1))
        encoding = default_encoding(*counts)
    # A table that is sent dense is averaged by all clients, which "rows" and "weight" do not mean.
    default = "dense" if average == "clients" else "keep"
    plan = build_plan(
        specs,
        encoding=encoding,
        max_clients=max_clients,
        min_clients=min_clients,
        lane=LANES[average],
        **{"above_break_even": default, **options},
    )
    if isinstance(hooks.rest, BlockSample) and REST in hooks.exchange.parts:
        block_bound(plan, plan.segment(REST))  # or rounds would find out
    return plan


def check_plan(plan: object) -> None:
    """Check the type of a plan.

    Raises:
        ParameterError: if it is not a plan; the message names a function that makes a plan.
    """
    if not isinstance(plan, SubmodelPlan):
        raise ParameterError(
            f"expected a plan, such as torchfsl.sesa.plan(fed, ...), got {type(plan).__name__}"
        )


class Planner:
    """The options of a model's plan, and the plan once there is one.

    Attributes:
        options: as given, later as made.
        plan: the public plan; None before it is made.
    """

    def __init__(self, hooks: Hooks, options: dict[str, Any]) -> None:
        self._hooks, self.options = hooks, options
        self.plan: SubmodelPlan | None = None
        self._replaced: list[SubmodelPlan] = []

    def take(self, plan: SubmodelPlan) -> None:
        """Use another plan, and warn if it has no noise and the one before had."""
        if getattr(self.plan, "noise_sigma", 0) and not getattr(plan, "noise_sigma", 0):
            warnings.warn(
                "the new plan adds no noise, and the earlier plan added noise: assign the result "
                "of privacy.calibrate() again, as fed.plan = privacy.calibrate(fed.plan, ...)",
                stacklevel=outside(),
            )
        if self.plan is not None:
            self._replaced.append(self.plan)
        self.plan = plan

    def check_servers(self, plan: SubmodelPlan) -> None:
        """Refuse servers of a `plan` that another one has replaced since.

        Raises:
            ParameterError: if they have it.
        """
        if plan is not self.plan and any(plan is old for old in self._replaced):
            raise ParameterError(
                "fed.plan was set after these servers were made, and these servers still have the "
                "earlier plan: call servers = fed.local_servers() again",
                code="another-task",
            )

    def warn_of_unused_noise(self) -> None:
        """Say that `calibrate` made a plan with noise and this one, without, is in use."""
        if lacks_its_noise(self.plan):
            warnings.warn(
                "these rounds add no noise: privacy.calibrate() returned a new plan, which "
                "Federated does not use. Write fed.plan = privacy.calibrate(fed.plan, ...)",
                stacklevel=outside(),
            )

    @property
    def needs_rows(self) -> bool:
        """Whether a plan needs a number of rows that was not given and no policy has."""
        rows = self._hooks.rows
        has_budget = rows is not None and (rows.budget is not None or rows.choice is not None)
        tables = self._hooks.inventory.tables
        return bool(tables) and not has_budget and self.options["rows_per_client"] is None

    @property
    def lane(self) -> Lane:
        """The lane of the plan, or of the one that would be made."""
        return LANES[self.options["average"]] if self.plan is None else self.plan.lane

    def make(self, changes: Mapping[str, Any]) -> Plan:
        """A plan from the options and changes of them.

        Raises:
            ParameterError: `max_clients` or a budget is missing, or a limit exceeded.
        """
        options = {**self.options, **changes}
        if options["max_clients"] is None:
            raise ParameterError(
                "max_clients is missing: pass max_clients=, the largest number of clients in a "
                "round"
            )
        names = ("max_clients", "rows_per_client", "retrieve", "average", "min_clients")
        named = {name: options.pop(name) for name in names}
        made = make_plan(self._hooks, **named, options=options)
        self.options = {**named, **options}
        return made

    def saved(self, state: Mapping[str, Any]) -> SubmodelPlan | None:
        """The plan of a `Federated.state_dict`, in place of one that this object has.

        Raises:
            ParameterError: it is for another model.
        """
        text = state.get("plan")
        if not isinstance(text, str) or not isinstance(self.plan, Plan):
            return self.plan
        found = Plan.from_json(text)
        self._hooks.exchange.check_plan(found)
        return found

    def missing(self) -> str:
        """A message about a plan that is not there yet."""
        if self.options["max_clients"] is None:
            return (
                "there is no plan yet: pass max_clients= (and rows_per_client= for tables) to "
                "Federated, or set fed.plan"
            )
        return (
            "there is no plan yet: how many rows may a client send? Call "
            "fed.make_plan(rows_per_client=fed.suggest_rows(batches_of_clients))"
        )


def check_average(average: object, options: Mapping[str, Any]) -> None:
    """Refuse an unknown average, with what each one does.

    Raises:
        ParameterError: it is unknown, or weights have no limit.
    """
    if average not in get_args(Average):
        raise ParameterError(
            f"average is {average!r}: choose 'clients' (servers learn nothing more), 'rows' "
            "(servers learn how many sent each row) or 'weight' (servers learn sums of weights)"
        )
    if average == "weight" and "max_weight" not in options:
        raise ParameterError(
            "average='weight' needs max_weight=, the largest weight that a client may give"
        )


def check_options(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse arguments that no plan has.

    Raises:
        TypeError: naming the first one and the nearest that there is.
    """
    known = {*known} - {"options", "return"}
    for name in given:
        if name in ("epsilon", "delta"):
            raise TypeError(
                f"{function}() has no argument {name!r}: make the plan with l2_bound=, then write "
                "fed.plan = torchfsl.privacy.calibrate(fed.plan, epsilon=8.0, delta=1e-6, "
                "rounds=100)"
            )
        if name not in known:
            raise TypeError(unknown_argument(function, name, known))


def settings_from(
    settings: Settings, plan: SubmodelPlan, model: object, *, rest_given: bool
) -> Settings:
    """The settings of a client whose plan another party made.

    Args:
        settings: of the caller.
        plan: of the task.
        model: that the plan is for.
        rest_given: whether the caller chose a policy for the rest; else the plan's is taken.

    Raises:
        ParameterError: if it is not a plan.
    """
    check_plan(plan)
    is_table = re.compile(r"rows\d+(_float\d+|_bfloat16)?").fullmatch
    tables = [s for s in plan.segments if s.policy == "rows" or is_table(s.name)]
    names = [s.name for s in plan.segments if s not in tables and s.name not in (REST, BUFFERS)]
    fields: dict[str, Any] = vars(settings).copy()
    if not rest_given:
        fields["rest"] = rest_policy_of(plan, REST)
    if not settings.encodings:
        fields["encodings"] = {name: plan.encoding_of(plan.segment(name)) for name in names}
    if any(s.name == BUFFERS for s in plan.segments):
        fields["buffers"] = "average"
    if not tables:
        fields["rows"] = None
    elif settings.rows is not None and settings.rows.tables is None:
        named = {tensor.name for segment in tables for tensor in segment.tensors}
        if named < lookup_names(model):  # the owner named some of the tables
            fields["rows"] = dataclasses.replace(settings.rows, tables=tuple(sorted(named)))
    return Settings(**fields)
