"""Settings of an experiment, checked when they are made, read from TOML, and what they name."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from torchfsl.errors import ParameterError
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from training.privacy_section import Privacy
from training.section_checks import ConfigError
from training.sections import (
    Ctr,
    Encoding,
    Fsl,
    Images,
    Language,
    Local,
    Partition,
    Recommendation,
    Rest,
    Sefl,
    Sentences,
    Server,
    Sesa,
)

Aggregation = Literal["plain", "dense", "fsl", "sesa", "sefl", "central"]
AboveBreakEven = Literal["error", "dense", "keep"]
WIDTHS = "-widths"
"""How the names of presets end whose clients have different widths."""
WIKITEXT = "-wikitext2"
"""How the names of presets of language models end."""
CTR = "ctr-"
"""How the names of presets of click-through rates begin."""
READS = {
    "din": ("dim", "attention", "head", "activation", "dropout", "user_table"),
    "mf": ("dim", "user_table"),
    "ncf": ("dim", "head", "dropout", "user_table"),
    "deepfm": ("dim", "head", "dropout", "user_table"),
    "sasrec": ("dim", "history", "blocks", "dropout"),
}
"""By recommender, as the names of their presets begin, what it takes of [recommendation]."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Config:
    """A whole experiment. Sections of a TOML file have the names of the fields below.

    Attributes:
        preset: name of the preset that the other settings start from.
        data: `synthetic`, a folder, a CSV, TSV or Parquet file (recommenders, clicks), or the name
            of a data set on the Hugging Face Hub.
        task: of the preset `own`: `MODULE:NAME` (see the page 'Your own model or data').
        rounds: number of rounds.
        clients_per_round: number of clients per round, which torchfsl draws anew for every round
            unless `privacy` limits how often a client participates.
        min_clients: fewest reports with which the servers open a sum; operators can ask for more.
        eval_every: rounds between evaluations, in addition to the first and the last round.
        checkpoint_every: rounds between checkpoints.
        patience: number of evaluations in a row without a new best value after which the run ends;
            0 for no limit.
        seed: seed of everything except keys, masks and hash seeds.
        dropouts: share of a round's clients, in [0, 1), that start the round and do not submit.
            They are the same clients under every aggregation. `sesa` plans for this share.
        aggregation: method that adds the updates. `central` trains the same samples in one place,
            without clients (see the page 'Experiments').
        above_break_even: what `fsl` and `plain` do with a segment whose DPF keys cost more than
            dense shares: reject the plan, send dense shares, or keep the DPF keys.
        malicious_security: for `fsl`: check words, with which servers reject malformed reports, and
            tags on answers, with which clients notice altered rows.
        device: torch device on which clients train.
        threads: threads of torch and of the native backend; 0 for the defaults of both.
        torch_threads: most threads of torch; 0 for no limit. Small models train fastest on one.
        workers: processes in which clients train in parallel; 1 for the main process only. Each
            process has a separate model and data, and `torch_threads` threads (or `threads`, or 1).
        evaluate: data of the evaluations: `test`, or `validation` to choose settings without the
            test data. For recommenders, the test is the last item of each user, and the validation
            the item before it. For clicks, they are the last tenth of the lines and the tenth
            before it. For images and sentences, the validation is a tenth of the training split,
            which the seed draws and no client has.
        servers: `in-process`, or the URLs of both servers with a comma between them.
        tls: folder of the certificates for remote servers.
        replace: whether remote servers may replace a task that already has a model.
    """

    preset: str
    data: str
    rounds: int
    clients_per_round: int
    eval_every: int
    checkpoint_every: int = 10
    patience: int = 0
    task: str = ""
    min_clients: int = 2
    seed: int = 0
    dropouts: float = 0.0
    aggregation: Aggregation = "fsl"
    above_break_even: AboveBreakEven = "error"
    malicious_security: bool = True
    device: str = "cpu"
    threads: int = 0
    torch_threads: int = 0
    workers: int = 1
    evaluate: Literal["validation", "test"] = "test"
    servers: str = "in-process"
    tls: str = ""
    replace: bool = False
    recommendation: Recommendation = Recommendation()
    ctr: Ctr = Ctr()
    sentences: Sentences = Sentences()
    images: Images = Images()
    language: Language = Language()
    partition: Partition = Partition()
    local: Local = Local()
    server: Server = Server()
    encoding: Encoding = Encoding()
    rest: Rest = Rest()
    fsl: Fsl = Fsl()
    privacy: Privacy = Privacy()
    sesa: Sesa = Sesa()
    sefl: Sefl = Sefl()

    def __post_init__(self) -> None:
        counts = "rounds clients_per_round eval_every checkpoint_every min_clients workers"
        for name in counts.split():
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: choose 1 or more")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}: choose a whole number from 0 to 2**63 - 1")
        if not 0 <= self.server.average < 1:
            raise ConfigError(
                f"server.average is {self.server.average}: choose 0 (off) or a number below 1"
            )
        optimizer_settings(self.server)
        if not 0 <= self.dropouts < 1:
            raise ConfigError(f"dropouts is {self.dropouts}: choose 0 or a share below 1")
        left = self.clients_per_round - self.num_dropouts
        if left < min(self.min_clients, self.clients_per_round):
            raise ConfigError(
                f"dropouts = {self.dropouts} leaves {left} clients per round, fewer than "
                f"min_clients = {self.min_clients}: lower dropouts or min_clients"
            )
        if self.workers > self.clients_per_round:
            raise ConfigError(
                f"workers is {self.workers}, more than clients_per_round = "
                f"{self.clients_per_round}: lower workers, since each worker trains whole clients"
            )
        if self.task and self.preset != "own":
            raise ConfigError(
                f"task is {self.task!r}, but only the preset own has a task: leave out task"
            )
        if self.privacy.epsilon and not self.fsl.l2_norm:
            raise ConfigError("privacy.epsilon needs a norm bound on updates: set fsl.l2_norm")
        if 0 < self.privacy.rounds < self.rounds:
            raise ConfigError(
                f"privacy.rounds is {self.privacy.rounds}, fewer than rounds = {self.rounds}: set "
                f"privacy.rounds to {self.rounds} or more, or to 0 for all rounds"
            )
        self._check_units()
        self._check_widths()
        for name in ("threads", "torch_threads", "patience"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: choose 0 (default) or more")

    @property
    def has_widths(self) -> bool:
        """Whether clients train parts of the model, of different sizes."""
        return self.preset.endswith(WIDTHS)

    @property
    def is_language(self) -> bool:
        """Whether the model is one of language."""
        return self.preset.endswith(WIKITEXT)

    @property
    def is_clicks(self) -> bool:
        """Whether the model predicts clicks from fields."""
        return self.preset.startswith(CTR)

    @property
    def is_recommender(self) -> bool:
        """Whether every client is a user with items."""
        return self.preset.partition("-")[0] in READS

    @property
    def num_dropouts(self) -> int:
        """Clients of a cohort that drop out."""
        return round(self.dropouts * self.clients_per_round)

    def _check_units(self) -> None:
        """Refuse a norm over segments of different units."""
        own_rings = [n for n in ("rest_ring_bits", "rows_ring_bits") if getattr(self.encoding, n)]
        if self.fsl.l2_norm and own_rings:
            raise ConfigError(
                f"fsl.l2_norm needs the same frac_bits in all segments, but encoding."
                f"{own_rings[0]} gives some segments other frac_bits: set encoding.{own_rings[0]} "
                "to 0, or leave out fsl.l2_norm"
            )

    def _check_widths(self) -> None:
        """Refuse settings that do not fit the widths of clients or the aggregation."""
        if not self.has_widths and self.sesa != Sesa():
            raise ConfigError(
                f"[sesa] is for presets whose names end in {WIDTHS}, and the preset is "
                f"{self.preset}: leave out [sesa]"
            )
        if self.sesa.mean == "owners" and self.aggregation in ("dense", "sesa", "sefl"):
            raise ConfigError(
                "sesa.mean is 'owners', but only the aggregations plain and fsl count the owners "
                f"of a submodel, not {self.aggregation}: choose sesa.mean = 'cohort'"
            )
        if self.server.mean == "trained" and (
            self.has_widths or self.aggregation not in ("plain", "fsl")
        ):
            raise ConfigError(
                "server.mean is 'trained', but only the aggregations plain and fsl count the "
                f"clients that trained a row, and presets ...{WIDTHS} use sesa.mean: choose "
                "server.mean = 'cohort'"
            )
        pools = self.is_recommender or self.preset == "own"
        if self.aggregation == "central" and not pools:
            raise ConfigError(
                f"aggregation central needs a recommender or the preset own, got {self.preset}: "
                "choose another aggregation"
            )
        if self.aggregation == "central" and self.dropouts:
            raise ConfigError(
                f"dropouts is {self.dropouts}, and no client drops out of aggregation central: set "
                "dropouts = 0"
            )
        if self.aggregation == "sesa":
            self._check_sesa()

    def _check_sesa(self) -> None:
        """Refuse what one server cannot do."""
        if not self.has_widths:
            raise ConfigError(
                f"aggregation sesa needs clients of different widths, and {self.preset} has equal "
                f"clients: choose a preset whose name ends in {WIDTHS}"
            )
        if self.servers != "in-process":
            raise ConfigError(
                f"aggregation sesa has one server, which runs in this process, and servers is "
                f"{self.servers}: leave out servers"
            )
        if self.sesa.choice != "random":
            raise ConfigError(
                f"sesa.choice is {self.sesa.choice!r}, but sesa.max_isolation of aggregation sesa "
                "holds only for random shards: choose sesa.choice = 'random', or aggregation "
                "plain, dense or fsl"
            )


def optimizer_settings(server: Server, tables: Sequence[str] = ()) -> OptimizerSettings:
    """The optimizer as both servers build it, wherever they run.

    Args:
        server: its section.
        tables: names of the model's embedding tables.

    Raises:
        ConfigError: a setting is out of range, or not of this optimizer.
    """
    own = dataclasses.asdict(server)
    for name in ("average", "mean", "table_rate"):
        del own[name]
    if server.optimizer == "lazy-adam":
        own["rates"] = dict.fromkeys(tables, server.lr * server.table_rate)
    if not 0 < server.table_rate < math.inf:
        raise ConfigError(f"server.table_rate is {server.table_rate}: choose a number above 0")
    try:
        settings = OptimizerSettings(own.pop("optimizer"), **own)
        settings.build()
    except ParameterError as error:
        raise ConfigError(f"server: {error}") from error
    return settings


_WORDS: Final = {
    int: "a whole number, without quotes",
    float: "a number, without quotes",
    bool: "true or false, without quotes",
    str: "a text in quotes",
}
_EXAMPLES: Final = {int: "1, 2", float: "1.0, 0.5", str: '"one", "two"'}


def merge(config: T, overrides: dict[str, Any], where: str = "") -> T:
    """A copy of a settings dataclass with some fields replaced, sections recursively.

    Args:
        config: dataclass instance.
        overrides: by field; a table for a section.
        where: path of the section, for messages.

    Raises:
        ConfigError: unknown field or a value of another type.
    """
    hints = typing.get_type_hints(type(config))
    known = {field.name: hints[field.name] for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for name, value in overrides.items():
        if name not in known:
            raise ConfigError(f"unknown setting {where}{name}: choose from {', '.join(known)}")
        kind = known[name]
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}{name} is a section: write [{where}{name}]")
            changes[name] = merge(getattr(config, name), value, f"{where}{name}.")
        else:
            changes[name] = _checked(value, kind, f"{where}{name}")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def described(kind: type) -> dict[str, str]:
    """The meaning of each setting, in one line, from the docstring."""
    _, _, listed = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", listed, re.MULTILINE | re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


def add_options(parser: argparse.ArgumentParser, kind: type, names: Mapping[str, str]) -> None:
    """An option for each of these settings, with its help from the docstring; absent ones are None.

    Args:
        parser: of the command.
        kind: dataclass of the settings.
        names: what stands for the value in the help, by setting; empty for a choice or a switch.
    """
    hints, meanings = typing.get_type_hints(kind), described(kind)
    for name, metavar in names.items():
        hint, option = hints[name], f"--{name.replace('_', '-')}"
        text = meanings[name].rstrip(".").replace("%", "%%").replace("`", "")
        if hint is bool:
            parser.add_argument(option, action="store_true", help=text)
        elif choices := typing.get_args(hint):
            parser.add_argument(option, choices=choices, type=type(choices[0]), help=text)
        else:
            parser.add_argument(option, metavar=metavar, type=hint, help=text)


def read_toml(path: Path) -> dict[str, Any]:
    """The overrides in a TOML file.

    Raises:
        ConfigError: the file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the settings in {path}: {error}") from error


def _checked(value: Any, kind: Any, where: str) -> Any:
    """The value, an int widened to float where a float is wanted."""
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ConfigError(f"{where} is {value!r}: choose one of {', '.join(choices)}")
        return value
    if isinstance(kind, types.GenericAlias):  # a tuple of some type
        if not isinstance(value, list | tuple):
            example = _EXAMPLES[kind.__args__[0]]
            raise ConfigError(
                f"{where} is {value!r}, expected a list: write it in brackets, such as [{example}]"
            )
        return tuple(_checked(entry, kind.__args__[0], where) for entry in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where} is {value!r}, expected {_WORDS[kind]}")
    return value


def imported(name: str, setting: str) -> Callable[..., Any]:
    """The function or class that a setting names, from a module found as `python -m` finds it.

    Args:
        name: `MODULE:NAME`.
        setting: its name, for messages.

    Raises:
        ConfigError: the name leads to nothing that can be called.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(
            f"{setting} is {name!r}, expected MODULE:NAME for the class or function NAME in "
            "MODULE.py (see the page 'Your own model or data')"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise
        raise ConfigError(
            f"{setting} is {name}, but Python does not find the module {module_name!r}: start the "
            f"command in the folder of {module_name}.py, or add the folder to PYTHONPATH"
        ) from error
    maker = getattr(module, attribute, None)
    if not callable(maker):
        raise ConfigError(
            f"{setting} is {name}, but the module {module_name} does not define a class or "
            f"function {attribute!r}: correct the name after the colon"
        )
    return maker  # type: ignore[no-any-return]
