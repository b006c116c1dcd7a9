"""Minimum requirements of a party for every plan, whatever its coordinator chooses.

A server reads them from its settings, a client from the call or from a policy file:

    verified = true             # a check word on every tree, a tag on every answer
    sealed = true               # seeds and answers readable by one server only
    joint_coin = true           # the hash seed comes from both servers
    min_clients = 100           # fewest reports that a round may open
    min_contributors = 5        # fewest clients behind a position that is opened
    max_k = 4096                # most positions that one segment may ask of a client
    lanes = ["none", "count"]   # what may be opened in addition to the sums
    noise_multiplier = 0.5      # least noise over sensitivity in a round, against one server
    max_epsilon = 8.0           # of all rounds against one server, at delta max_delta (1e-6)
    max_rounds = 1000           # most rounds that the plan may open
    max_epochs = 10             # most rounds that one set of trees may serve
    plans = ["9f86d081..."]     # no plan but these, by digest
    authorities = ["...", ...]  # SHA-256 of the public keys of both servers' authorities
    audited = true              # auditors replay the servers' shares before anything is opened
    auditors = ["...", "..."]   # public keys of both auditors: other ones are refused

Names that are missing have their defaults below. Every layout lies within the cuckoo bound, always.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchfsl.errors import ParameterError
from torchfsl.faces import nearest, public
from torchfsl.fsl import privacy
from torchfsl.fsl.cuckoo.bounds import is_within_bound
from torchfsl.fsl.plan.coin import Coins, check_coins
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.plan import LANES, Lane
from torchfsl.submodel.plan_fields import check_hex

_FLAGS: Final = ("verified", "sealed", "joint_coin", "audited")
_MOST_EPSILON: Final = 500.0
_LEAST: Final = {"min_clients": 1, "min_contributors": 1, "max_k": 0, "max_rounds": 0,
                 "max_epochs": 0}  # fmt: skip


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPolicy:
    """Demands on a plan. The defaults protect reports against one malicious server.

    Attributes:
        verified: every tree carries a check word and every answer a tag.
        sealed: the plan names both servers' keys, so that who carries messages reads nothing.
        joint_coin: the hash seed was made by both servers' coins.
        min_clients: least `Plan.min_clients`.
        min_contributors: least `Plan.min_contributors`.
        max_k: largest `k_max` of a segment with trees; 0 for any.
        lanes: lanes that may be opened.
        noise_multiplier: least `privacy.multiplier`; 0 for none.
        max_epsilon: largest epsilon of the whole task against one server, if the other adds its
            noise, at `max_delta`; 0 for any.
        max_delta: see above.
        max_rounds: largest `Plan.max_rounds`, which must be set then; 0 for any.
        max_epochs: largest `Plan.max_epochs`; 0 for any.
        plans: digests in hex of the only plans allowed; any if empty.
        authorities: the servers' authorities, as `Authorities.keys` gives them; any if empty.
        audited: the plan has an audit.
        auditors: Ed25519 public keys in hex of the auditors of server 0 and of server 1. A plan
            with an audit must name these, and an empty tuple accepts no plan with an audit. An
            auditor sees all that its server sees, so the plan's coordinator must not choose it.
    """

    verified: bool = True
    sealed: bool = True
    joint_coin: bool = True
    min_clients: int = 2
    min_contributors: int = 1
    max_k: int = 0
    lanes: tuple[Lane, ...] = LANES
    noise_multiplier: float = 0.0
    max_epsilon: float = 0.0
    max_delta: float = 1e-6
    max_rounds: int = 0
    max_epochs: int = 0
    plans: tuple[str, ...] = ()
    authorities: tuple[str, ...] = ()
    audited: bool = False
    auditors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _FLAGS:
            if type(value := getattr(self, name)) is not bool:
                raise ParameterError(
                    f"floor {name} is {value!r}: choose true or false", code="invalid-policy"
                )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ParameterError(
                    f"floor {name} is {value!r}: give a whole number from {least}",
                    code="invalid-policy",
                )
        if type(self.noise_multiplier) is not float or not 0 <= self.noise_multiplier < 1 << 40:
            raise ParameterError(
                f"floor noise_multiplier is {self.noise_multiplier!r}: choose a float of 0 or more",
                code="invalid-policy",
            )
        if type(self.max_epsilon) is not float or not 0 <= self.max_epsilon <= _MOST_EPSILON:
            raise ParameterError(
                f"floor max_epsilon is {self.max_epsilon!r}: choose from 0.0 to {_MOST_EPSILON:g}",
                code="invalid-policy",
            )
        if type(self.max_delta) is not float or not 0 < self.max_delta < 1:
            raise ParameterError(
                f"floor max_delta is {self.max_delta!r}: choose a float between 0 and 1",
                code="invalid-policy",
            )
        if not self.lanes or not set(self.lanes) <= set(LANES):
            raise ParameterError(
                f"floor lanes is {self.lanes}: choose some of {LANES}", code="invalid-policy"
            )
        for digest in (*self.plans, *self.authorities, *self.auditors):
            check_hex("a digest or key in the floors", digest, 32)
        for name, keys in (("auditors", "keys"), ("authorities", "digests")):
            if len(getattr(self, name)) not in (0, 2):
                raise ParameterError(
                    f"floor {name} has {len(getattr(self, name))} {keys}, expected two: that of "
                    "server 0 first, then that of server 1. Or leave it out",
                    code="invalid-policy",
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ClientPolicy:
        """Read a policy from `values`, a table of TOML.

        Returns:
            The policy.

        Raises:
            ParameterError: if a name is unknown, or a value has another type.
        """
        kinds = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        if not set(values) <= set(kinds):
            unknown = sorted(set(values) - set(kinds))
            near = nearest(unknown[0], kinds)
            hint = f"did you mean {near[0]!r}?" if near else f"choose among {', '.join(kinds)}"
            raise ParameterError(f"unknown floor {unknown[0]!r}: {hint}", code="invalid-policy")
        given: dict[str, Any] = {}
        for name, value in values.items():
            listed = kinds[name] is tuple
            if listed and not (isinstance(value, list) and all(type(v) is str for v in value)):
                raise ParameterError(
                    f"floor {name} is {value!r}: give a list of strings", code="invalid-policy"
                )
            given[name] = tuple(value) if listed else value
            if kinds[name] is float and type(value) is int:
                given[name] = float(value)
        return cls(**given)

    @classmethod
    def from_toml(cls, path: Path) -> ClientPolicy:
        """Read a policy from the file `path`, whose names are those of the attributes.

        Returns:
            The policy.

        Raises:
            ParameterError: if it cannot be read, or holds anything else.
        """
        try:
            return cls.from_mapping(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ParameterError(
                f"cannot read the policy in {path}: {error}", code="invalid-policy"
            ) from error

    def check(
        self, plan: Plan, *, coins: Coins | tuple[()] = (), authorities: tuple[str, ...] = ()
    ) -> None:
        """Refuse a plan below a floor.

        Args:
            plan: the plan.
            coins: by which both servers made its hash seed, as far as the caller knows.
            authorities: of the servers whom the plan's session names, as the caller found them.

        Raises:
            ParameterError: naming the field and the floor.
        """
        self._check_numbers(plan)
        self._check_trees(plan)
        if self.lanes and plan.lane not in self.lanes:
            _refuse("lane", repr(plan.lane), "lanes", f"allows {list(self.lanes)}")
        if self.noise_multiplier and privacy.multiplier(plan) < self.noise_multiplier:
            have = f"{plan.noise_sigma}, noise over sensitivity {privacy.multiplier(plan):.3g}"
            want = f"wants {self.noise_multiplier:.3g}"
            _refuse("noise_sigma", have, "noise_multiplier", want)
        if self.max_epsilon and not guarantees(plan, self.max_epsilon, self.max_delta):
            have = f"{plan.noise_sigma} in {plan.max_rounds or 'any number of'} rounds"
            want = f"wants epsilon {self.max_epsilon:g} at delta {self.max_delta:g}, or less"
            _refuse("noise_sigma", have, "max_epsilon", want)
        if self.sealed and not plan.server_keys:
            _refuse("server_keys", "empty", "sealed", "wants both servers' keys")
        if self.plans and plan.digest.hex() not in self.plans:
            _refuse("digest", plan.digest.hex(), "plans", "does not list this plan")
        if self.authorities and tuple(authorities) != self.authorities:
            _refuse("session", "of other servers", "authorities", f"pins {self.authorities}")
        if self.audited and not plan.audited:
            _refuse("audit", repr(plan.audit), "audited", "wants 'open'")
        if plan.audited and tuple(plan.auditors) != self.auditors:
            pinned = f"pins {list(self.auditors)}" if self.auditors else "pins none"
            _refuse("auditors", list(plan.auditors), "auditors", pinned)
        if coins:
            check_coins(plan, coins)
        elif self.joint_coin:
            _refuse(
                "hash_seed", "one party's choice", "joint_coin", "wants both servers' randomness"
            )

    def _check_numbers(self, plan: Plan) -> None:
        for name in ("min_clients", "min_contributors"):
            if getattr(plan, name) < getattr(self, name):
                _refuse(name, getattr(plan, name), name, f"wants {getattr(self, name)} or more")
        if self.max_rounds and not 0 < plan.max_rounds <= self.max_rounds:
            have = plan.max_rounds or "unbounded"
            _refuse("max_rounds", have, "max_rounds", f"allows {self.max_rounds}")
        if self.max_epochs and plan.max_epochs > self.max_epochs:
            _refuse("max_epochs", plan.max_epochs, "max_epochs", f"allows {self.max_epochs}")

    def _check_trees(self, plan: Plan) -> None:
        for segment in plan.with_trees:
            where = f"segment {segment.name!r}: "
            if self.verified and not segment.check_bytes:
                _refuse(f"{where}check_bytes", 0, "verified", "wants check words and tags")
            if self.verified and segment.retrieve and not segment.tag_bytes:
                _refuse(f"{where}tag_bytes", 0, "verified", "wants check words and tags")
            if self.max_k and segment.k_max > self.max_k:
                _refuse(f"{where}k_max", segment.k_max, "max_k", f"allows {self.max_k}")
            in_table = segment.num_bins > 0 and not segment.binned
            if in_table and not is_within_bound(
                segment.m, segment.k_max, segment.theta, segment.stash
            ):
                raise ParameterError(
                    f"{where}{segment.num_bins} bins of theta {segment.theta} and a stash of "
                    f"{segment.stash} are too few for k_max {segment.k_max} under the cuckoo "
                    "bound: make the plan with torchfsl.Federated or fsl.build_plan",
                    code="below-policy",
                )


def guarantees(plan: Plan, epsilon: float, delta: float) -> bool:
    """Whether all rounds of a plan keep (epsilon, delta) against either server; needs no extra.

    The delta of a Gaussian release is Balle and Wang's (2018, Theorem 8).
    """
    if not plan.noise_sigma or not plan.max_rounds:
        return False
    whole = privacy.whole_task(plan)
    epsilon -= 2 * whole.slack
    if not whole.gaussian or epsilon <= 0:
        return False
    half, far = 1 / (2 * whole.gaussian), epsilon * whole.gaussian
    above, below = (math.erfc((far + side) / math.sqrt(2)) / 2 for side in (-half, half))
    return above - math.exp(epsilon) * below <= delta * math.exp(-whole.slack)


def _refuse(field: str, value: object, floor: str, demand: str) -> None:
    raise ParameterError(
        f"the plan's {field} is {value}; the floor '{floor}' {demand}: make a plan that meets it",
        code="below-policy",
    )
