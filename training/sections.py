"""The sections of an experiment's settings; `training.config` joins them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchfsl.errors import Error, ParameterError
from torchfsl.submodel.optimizer_settings import OptimizerSettings


class ConfigError(Error, ValueError):
    """A setting is wrong. The message names it and what is allowed."""

    code = "settings"


@dataclass(frozen=True, slots=True)
class Sentences:
    """Model of `textcnn`, and how its word table is sent.

    Attributes:
        dim: width of the embeddings.
        maps: feature maps a window width.
        dropout: in training.
        table: how the word table is sent: by `rows`, or as part of the `rest`, scalar by scalar.
        rows: the fraction of the table's rows that a client sends, those whose change has the
            largest L1 norm; 1.0 sends all rows that changed.
        error_feedback: keep the other rows' changes for later rounds.
        label: column of the class, where it is not the data set's only one.
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
    """How the image presets show images to the network.

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
        scheme: `iid`, `dirichlet` for label-skewed clients, or `two-labels`: the samples sorted by
            label, two pieces of them for each client (McMahan et al.).
        alpha: concentration of `dirichlet`; small means few labels a client.
    """

    clients: int = 100
    scheme: Literal["iid", "dirichlet", "two-labels"] = "iid"
    alpha: float = 0.5


@dataclass(frozen=True, slots=True)
class Local:
    """Training at a client.

    Attributes:
        optimizer: `gradient` (one gradient of all samples, nothing is stepped), `sgd`, `adam`, the
            name of a class in torch.optim (`RMSprop`), or `MODULE:NAME` of a function, which
            gets the model and this section and returns the optimizer; see
            docs/own-experiments.md.
        lr: rate of every optimizer that steps.
        lr_decay: factor on the rate after every `lr_decay_rounds` rounds.
        lr_decay_rounds: see above.
        adam_eps: of `adam`. Fresh moments make every step of Adam as large as the rate, however
            small the gradient; a larger eps keeps words that are learnt from moving on.
        weight_decay: of every optimizer that has one.
        batch_size: examples a batch (recommenders take all samples of the user as one; under
            `central` these are pooled and cut to this size).
        epochs: passes over the client's examples; of a recommender under optimizers that
            step so many steps on all samples of the user.
        steps: stop after so many batches; 0 for no limit.
        loss: `mean` over the batch, or `sum` divided by `loss_divisor`, which lets a client with
            more samples weigh more.
        loss_divisor: see above.
        clip_norm: gradients of a step are scaled down to this length, over all parameters
            together; 0 for as they are.
        proximal: mu of FedProx: gradients pull parameters back to where the round began, by mu
            times the distance; 0 for none. It needs more than one step.
        precision: of the model's forward and backward pass; with `bfloat16`, torch's autocast
            chooses the operations that use it. Weights, the loss, the update and evaluation stay
            float32. Convolutions train twice as fast on CPUs that have the instructions.
        together: of recommenders under `gradient` and `sgd`: take the gradients of a round's
            clients in batches, several times faster. Sums of float32 are then taken in another
            order.
    """

    optimizer: str = "sgd"
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
    clip_norm: float = 0.0
    proximal: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    together: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.proximal < math.inf:
            raise ConfigError(f"local.proximal is {self.proximal}; choose 0 or more")


@dataclass(frozen=True, slots=True)
class Server:
    """The servers' optimizer on the mean over the cohort; `sgd` with rate 1 is averaging.

    Attributes:
        optimizer: `sgd`, `adam`, or `lazy-adam`, which leaves rows alone that nobody trained in a
            round, and what it knows of them.
        lr: its rate.
        table_rate: of `lazy-adam`: the rate of embedding tables, as a multiple of `lr`.
        mean: what the sum of a row or another chosen position is divided by: the `cohort`, or
            those who `trained` it (FedSubAvg, by round), whose number the servers then open.
        momentum: of `sgd`, in [0, 1); a change then counts 1 / (1 - momentum) times in the end,
            in rounds in which nobody sends its position, too.
        beta1: of `adam` and `lazy-adam`.
        beta2: of `adam` and `lazy-adam`.
        eps: of `adam` and `lazy-adam`.
        average: in [0, 1): evaluate the mean of the servers' models over rounds, too, in which
            all models before the latest keep this weight (0.99: about the last hundred rounds); 0
            for none. Changes no round.
        lr_decay: of `sgd`: factor on the rate after every `lr_decay_rounds` rounds, in (0, 1].
        lr_decay_rounds: see above.
    """

    optimizer: Literal["sgd", "adam", "lazy-adam"] = "sgd"
    lr: float = 1.0
    table_rate: float = 1.0
    mean: Literal["cohort", "trained"] = "cohort"
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    average: float = 0.0
    lr_decay: float = 1.0
    lr_decay_rounds: int = 10

    def settings(self, tables: Sequence[str] = ()) -> OptimizerSettings:
        """The optimizer as both servers build it, wherever they run.

        Args:
            tables: names of the model's embedding tables.

        Raises:
            ConfigError: a setting is out of range, or not of this optimizer.
        """
        own = dataclasses.asdict(self)
        for name in ("average", "mean", "table_rate"):
            del own[name]
        if self.optimizer == "lazy-adam":
            own["rates"] = dict.fromkeys(tables, self.lr * self.table_rate)
        if not 0 < self.table_rate < math.inf:
            raise ConfigError(f"server.table_rate is {self.table_rate}; choose one above 0")
        try:
            settings = OptimizerSettings(own.pop("optimizer"), **own)
            settings.build()
        except ParameterError as error:
            raise ConfigError(f"server: {error}") from error
        return settings


@dataclass(frozen=True, slots=True)
class Rest:
    """How weights outside the embedding tables are sent.

    Attributes:
        policy: `dense` (all of them), `topk` (scalars of largest magnitude), `blocks` (blocks of
            largest L1 norm) or `sample` (blocks that each client draws in secret, scaled so that
            their mean over the draws is the whole change).
        amount: fraction of the scalars or blocks.
        block: values a block.
        error_feedback: with `topk` and `blocks`, keep what is not sent for later rounds.
    """

    policy: Literal["dense", "topk", "blocks", "sample"] = "dense"
    amount: float = 0.05
    block: int = 32
    error_feedback: bool = True


@dataclass(frozen=True, slots=True)
class Fsl:
    """How much a client may write under `--aggregation fsl`.

    Attributes:
        l2_norm: clients (of `plain` and `dense`, too) scale an update to at most this length; or 0.
        proofs: what they prove to both servers: `none`, `lanes`, `norm`, or the planner's choice.
    """

    l2_norm: float = 0.0
    proofs: Literal["default", "none", "lanes", "norm"] = "default"

    def __post_init__(self) -> None:
        if not 0 <= self.l2_norm < math.inf:
            raise ConfigError(f"fsl.l2_norm is {self.l2_norm}; choose 0 or more")


@dataclass(frozen=True, slots=True)
class Sefl:
    """Encryption and noise of `--aggregation sefl`.

    Attributes:
        slots: numbers a ciphertext: 2048, or 4096 for wider sums.
        l2_norm: clients scale an update down to this length, in the model's units; 0 for none.
        noise: standard deviation of the noise that each of both servers adds to every sum, as a
            multiple of `l2_norm`; 0 for none.
        delta: of the guarantee that a run with noise prints.
    """

    slots: int = 2048
    l2_norm: float = 0.0
    noise: float = 0.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.slots not in (2048, 4096):
            raise ConfigError(f"sefl.slots is {self.slots}; choose 2048 or 4096")
        for name in ("l2_norm", "noise"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"sefl.{name} is {getattr(self, name)}; choose 0 or more")
        if self.noise and not self.l2_norm:
            raise ConfigError("sefl.noise guarantees nothing without sefl.l2_norm: set both")
        if not 0 < self.delta < 1:
            raise ConfigError(f"sefl.delta is {self.delta}; choose one in (0, 1)")

    def in_units(self, frac_bits: int) -> tuple[int, int]:
        """`l2_bound` and `noise_sigma` of a plan, in units of 2**-frac_bits.

        Raises:
            ConfigError: one is given and too small to be any unit, or beyond 2**62 of them.
        """
        norm = self.l2_norm * 2**frac_bits
        noise = self.noise * norm if self.noise else 0.0
        for name, units, given in (("l2_norm", norm, self.l2_norm), ("noise", noise, self.noise)):
            if given and not 1 <= units <= 1 << 62:
                raise ConfigError(
                    f"sefl.{name} = {given} comes to {units:g} units of 2**-{frac_bits}: choose it "
                    "so that it is neither below one unit nor beyond 2**62, or other "
                    "encoding.frac_bits"
                )
        bound = round(norm)
        return bound, round(self.noise * bound)


@dataclass(frozen=True, slots=True)
class Sesa:
    """Clients of different widths: the presets `...-widths`, under every aggregation.

    Attributes:
        shards: equal parts into which the units of every hidden layer are cut.
        budgets: by class of clients the share of each hidden layer that one of them trains, a
            whole number of shards. The clients are spread over the classes as evenly as it goes,
            and so is every cohort.
        choice: which shards a client trains in a round: `random` ones of every layer; a window
            that moves on by one shard a round (`rolling`, FedRolex if a shard is a unit); the first
            ones (`static`, HeteroFL).
        scaled: multiply the activations of a narrow client's layers by 1 / budget.
        mean: what the sum of a submodel is divided by: the `cohort` that submitted, or its
            `owners` among them, whose number `plain` and `fsl` then open as well.
        collusion: of `--aggregation sesa` only: share of the cohort that may work together, and
            with the server, without learning more than the sums.
        max_isolation: of `--aggregation sesa` only: most submodels, in expectation, of which a
            round may open the update of a single honest client; see `torchfsl.sesa.SesaPlan`.
    """

    shards: int = 4
    budgets: tuple[float, ...] = (1.0, 0.5, 0.25)
    choice: Literal["random", "rolling", "static"] = "random"
    scaled: bool = False
    mean: Literal["cohort", "owners"] = "cohort"
    collusion: float = 0.1
    max_isolation: float = 1e-4

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ConfigError(f"sesa.shards is {self.shards}; choose at least 1")
        if not self.budgets:
            raise ConfigError("sesa.budgets is empty; give the share that each class trains")
        for budget in self.budgets:
            taken = budget * self.shards
            if not 0 < budget <= 1 or not math.isclose(taken, round(taken)) or round(taken) < 1:
                raise ConfigError(
                    f"sesa.budgets has {budget}: choose shares in (0, 1] that are whole numbers of "
                    f"{self.shards} shards"
                )
        if not 0 < self.collusion < 1:
            raise ConfigError(f"sesa.collusion is {self.collusion}; choose a share in (0, 1)")

    @property
    def taken(self) -> tuple[int, ...]:
        """By class the number of shards of a layer that one of its clients trains."""
        return tuple(round(budget * self.shards) for budget in self.budgets)
