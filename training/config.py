"""Settings of an experiment: frozen dataclasses, checked when they are made, read from TOML."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torchfsl.errors import ParameterError
from torchfsl.submodel.server_optimizers import OptimizerSettings

Aggregation = Literal["plain", "dense", "fsl"]
AboveBreakEven = Literal["error", "dense", "keep"]
T = TypeVar("T")


class ConfigError(ValueError):
    """A setting is wrong. The message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Din:
    """Model and samples of `din`.

    Attributes:
        dim: width of the embeddings.
        history: most items of a history.
        negatives: sampled items for every positive one.
        rows_per_client: public budget k_max of embedding rows a client fetches and sends.
    """

    dim: int = 18
    history: int = 50
    negatives: int = 4
    rows_per_client: int = 256


@dataclass(frozen=True, slots=True)
class Sentences:
    """Model of `textcnn`: embedding width, feature maps a window width, dropout, label column.

    `table` says how the word table is sent: by `rows`, or as part of the `rest`, scalar by scalar.
    `rows` is the fraction of the table's rows that a client sends, those whose change has the
    largest L1 norm; 1.0 sends all rows that changed. `error_feedback` keeps the others for later.
    """

    dim: int = 300
    maps: int = 100
    dropout: float = 0.5
    table: Literal["rows", "rest"] = "rows"
    rows: float = 0.1
    error_feedback: bool = True
    label: str = ""


@dataclass(frozen=True, slots=True)
class Images:
    """How `cnn-mnist` and `cnn-cifar10` show images to the network.

    Attributes:
        crop: side of the square that is cut out; 0 for whole images.
        random_crop: cut at a random place in training; central if not, as in evaluation.
        flip: mirror half of the images in training.
        label: column of the class, where it is not the data set's only one.
    """

    crop: int = 0
    random_crop: bool = True
    flip: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """How `textcnn` and the image presets spread the training data.

    Attributes:
        clients: number of clients.
        scheme: `iid`, or `dirichlet` for label-skewed clients.
        alpha: concentration of `dirichlet`; small means few labels a client.
    """

    clients: int = 100
    scheme: Literal["iid", "dirichlet"] = "iid"
    alpha: float = 0.5


@dataclass(frozen=True, slots=True)
class Local:
    """Training at a client.

    Attributes:
        optimizer: `gradient` (one gradient of all samples, nothing is stepped), `sgd` or `adam`.
        lr: rate of `sgd` and `adam`.
        lr_decay: factor on the rate after every `lr_decay_rounds` rounds.
        lr_decay_rounds: see above.
        adam_eps: of `adam`. Fresh moments make every step of Adam as large as the rate, however
            small the gradient; a larger eps keeps words that are learnt from moving on.
        weight_decay: of `sgd` and `adam`.
        batch_size: examples a batch (`din` takes all samples of the user as one).
        epochs: passes over the client's examples.
        steps: stop after so many batches; 0 for no limit.
        loss: `mean` over the batch, or `sum` divided by `loss_divisor`, which lets a client with
            more samples weigh more.
        loss_divisor: see above.
        precision: of the model's forward and backward pass; with `bfloat16`, torch's autocast
            chooses the operations that use it. Weights, the loss, the update and evaluation stay
            float32. Convolutions train twice as fast on CPUs that have the instructions.
    """

    optimizer: Literal["gradient", "sgd", "adam"] = "sgd"
    lr: float = 0.01
    lr_decay: float = 1.0
    lr_decay_rounds: int = 10
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    batch_size: int = 50
    epochs: int = 1
    steps: int = 0
    loss: Literal["mean", "sum"] = "mean"
    loss_divisor: float = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True, slots=True)
class Server:
    """The servers' optimizer on the mean over the cohort; `sgd` with rate 1 is averaging.

    Attributes:
        optimizer: `sgd` or `adam`.
        lr: its rate.
        momentum: of `sgd`, in [0, 1); a change then counts 1 / (1 - momentum) times in the end,
            in rounds in which nobody sends its position, too.
        beta1: of `adam`.
        beta2: of `adam`.
        eps: of `adam`.
        average: in [0, 1): evaluate the mean of the servers' models over rounds, too, in which
            all models before the latest keep this weight (0.99: about the last hundred rounds); 0
            for none. Changes no round.
        lr_decay: of `sgd`: factor on the rate after every `lr_decay_rounds` rounds, in (0, 1].
        lr_decay_rounds: see above.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 1.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    average: float = 0.0
    lr_decay: float = 1.0
    lr_decay_rounds: int = 10

    def settings(self) -> OptimizerSettings:
        """The optimizer as both servers build it, wherever they run.

        Raises:
            ConfigError: a setting is out of range, or not of this optimizer.
        """
        own = {name: value for name, value in dataclasses.asdict(self).items() if name != "average"}
        try:
            settings = OptimizerSettings(own.pop("optimizer"), **own)
            settings.build()
        except ParameterError as error:
            raise ConfigError(f"server: {error}") from error
        return settings


@dataclass(frozen=True, slots=True)
class Encoding:
    """Fixed point: see `torchfsl.FixedPoint`. Clients times clip must stay inside the ring."""

    ring_bits: int = 32
    frac_bits: int = 20
    clip: float = 4.0
    rounding: Literal["nearest", "stochastic"] = "nearest"


@dataclass(frozen=True, slots=True)
class Rest:
    """How weights outside the embedding tables are sent.

    Attributes:
        policy: `dense` (all of them), `topk` (scalars of largest magnitude) or `blocks` (blocks
            of largest L1 norm).
        amount: fraction of the scalars or blocks.
        block: values a block.
        error_feedback: with `topk` and `blocks`, keep what is not sent for later rounds.
    """

    policy: Literal["dense", "topk", "blocks"] = "dense"
    amount: float = 0.05
    block: int = 32
    error_feedback: bool = True


@dataclass(frozen=True, slots=True)
class Config:
    """A whole experiment. Sections of a TOML file have the names of the fields below.

    Attributes:
        preset: name of the preset it came from.
        data: `synthetic`, a folder, or a Hub name.
        rounds: federated rounds.
        clients_per_round: cohort size, drawn anew for every round.
        min_clients: fewest reports that the servers may open; operators can ask for more.
        eval_every: rounds between evaluations; the first and last always evaluate.
        checkpoint_every: rounds between checkpoints.
        seed: of everything but keys, masks and hash seeds.
        aggregation: how updates are summed, see `training.federation`.
        above_break_even: what `fsl` does with a segment whose trees cost more than dense shares:
            refuse, switch to dense shares, or keep the trees.
        malicious_security: check words on trees, by which servers refuse malformed reports, and
            tags on answers, by which clients notice altered rows.
        device: torch device of the clients' training.
        threads: of torch and of the native backend; 0 leaves both their defaults.
        torch_threads: most threads of torch, 0 for no limit; small models train fastest on one.
        servers: `in-process`, or the URLs of both servers with a comma between.
        tls: folder of certificates for servers elsewhere.
    """

    preset: str
    data: str
    rounds: int
    clients_per_round: int
    eval_every: int
    checkpoint_every: int = 10
    min_clients: int = 2
    seed: int = 0
    aggregation: Aggregation = "fsl"
    above_break_even: AboveBreakEven = "error"
    malicious_security: bool = True
    device: str = "cpu"
    threads: int = 0
    torch_threads: int = 0
    servers: str = "in-process"
    tls: str = ""
    din: Din = Din()
    sentences: Sentences = Sentences()
    images: Images = Images()
    partition: Partition = Partition()
    local: Local = Local()
    server: Server = Server()
    encoding: Encoding = Encoding()
    rest: Rest = Rest()

    def __post_init__(self) -> None:
        for name in (
            "rounds",
            "clients_per_round",
            "eval_every",
            "checkpoint_every",
            "min_clients",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}; choose one in [0, 2**63)")
        if not 0 <= self.server.average < 1:
            raise ConfigError(
                f"server.average is {self.server.average}; choose one in [0, 1), 0 for no mean"
            )
        self.server.settings()
        for name in ("threads", "torch_threads"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; choose 0 (default) or more")


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
            raise ConfigError(f"unknown setting {where}{name}; known: {', '.join(known)}")
        kind = known[name]
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}{name} is a section: write [{where}{name}]")
            changes[name] = merge(getattr(config, name), value, f"{where}{name}.")
        else:
            changes[name] = _checked(value, kind, f"{where}{name}")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


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
            raise ConfigError(f"{where} is {value!r}; choose one of {', '.join(choices)}")
        return value
    assert not isinstance(kind, types.GenericAlias)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where} is {value!r}; it must be of type {kind.__name__}")
    return value
