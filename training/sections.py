"""The sections of an experiment's settings; `training.config` joins them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from training.section_checks import ConfigError, at_least, expect, expect_share, expect_widths


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Model and samples of the recommenders.

    Attributes:
        dim: width of the embeddings.
        history: most items of a history.
        negatives: sampled items for every positive one.
        rows_per_client: public budget k_max of embedding rows that one client fetches and sends.
        columns: of a CSV or Parquet file as data, `user=NAME,item=NAME,time=NAME,category=NAME`,
            the last two optional.
        user_table: whether each user has an embedding row. Without, a user is its items. Its
            upload then names no row of this user, and users who participate once or twice lose
            nothing.
        head: widths of the head's hidden layers.
        attention: widths of the hidden layers of DIN's attention.
        activation: of DIN's head, as published: `prelu` or `dice`.
        dropout: share of the head's input that is zero in training, in [0, 1); of SASRec's
            embeddings and blocks.
        blocks: of SASRec.
        ranked_users: how many seeded users' held-out item is ranked among 99 negatives at the end
            of a run; 0 for none, any large number for all.
        catalogue_users: how many seeded users' held-out item is ranked in the whole catalogue; any
            large number for all.
        rank_every: rounds between rankings, each with an evaluation; 0 for none before the end.
    """

    dim: int = 18
    history: int = 50
    negatives: int = 4
    rows_per_client: int = 256
    columns: str = ""
    user_table: bool = True
    head: tuple[int, ...] = (200, 80)
    attention: tuple[int, ...] = (80, 40)
    activation: Literal["prelu", "dice"] = "prelu"
    dropout: float = 0.0
    blocks: int = 2
    ranked_users: int = 0
    catalogue_users: int = 0
    rank_every: int = 0

    def __post_init__(self) -> None:
        at_least(1, self, "history", "negatives", "rows_per_client", "blocks")
        at_least(2, self, "dim")
        at_least(0, self, "ranked_users", "catalogue_users", "rank_every")
        for name in ("head", "attention"):
            expect_widths(self, name, "[] for no hidden layer")
        expect_share(self, "dropout")


@dataclass(frozen=True, slots=True)
class Ctr:
    """Model and samples of `ctr-deepfm`.

    Attributes:
        columns: of a CSV, TSV or Parquet file as data:
            `label=NAME,fields=A+B,numeric=C+D,client=NAME,time=NAME`, the last three optional.
            `fields=*` takes all others. Empty for Criteo's TSV of 40 columns without names.
        clients: over so many clients lines are spread at random, where no column names the client.
        dim: width of the embeddings, the weight of first order included.
        head: widths of the network's hidden layers.
        dropout: share of the network's input that is zero in training, in [0, 1).
        least: how often a value must be in the training lines to have a separate row.
        lines: most lines that a client trains on in a round.
        rows_per_client: public budget k_max of embedding rows that one client fetches and sends;
            lines beyond it wait for another round.
    """

    columns: str = ""
    clients: int = 1000
    dim: int = 17
    head: tuple[int, ...] = (64, 32)
    dropout: float = 0.0
    least: int = 10
    lines: int = 64
    rows_per_client: int = 512

    def __post_init__(self) -> None:
        at_least(1, self, "clients", "least", "lines", "rows_per_client")
        at_least(2, self, "dim")
        expect_widths(self, "head")
        expect_share(self, "dropout")


@dataclass(frozen=True, slots=True)
class Language:
    """Text and model of `lstm-wikitext2` and `transformer-wikitext2`.

    Attributes:
        vocabulary: longest list of words; rarer ones are unknown. 0 for all words.
        width: of embeddings and layers.
        layers: of the LSTM or the Transformer.
        heads: of the Transformer's attention.
        dropout: in training.
        block: side of the block-Hankel blocks of the layers' matrices; 1 for whole matrices.
        block_embedding: the same of the embedding, and of an untied decoder.
        decoder: `tied` scores words by the input table, `untied` by a separate matrix,
            `adaptive` by clusters of rare words: far fewer operations with many words.
        rows: of the input table of a decoder that is not tied: the fraction of its rows that a
            client sends. They are those with the largest L1 norm of the change (`fsl`, `plain`).
        tokens: words of a window, which the model sees at once.
        clients: the training text is cut into so many blocks, in order.
        valid_tokens: evaluations read so many words of the validation text; 0 for all.
        start: folder of a finished run with whole matrices, whose model is projected to blocks
            once and goes on from there; empty to start anew.
    """

    vocabulary: int = 8192
    width: int = 64
    layers: int = 2
    heads: int = 2
    dropout: float = 0.2
    block: int = 1
    block_embedding: int = 1
    decoder: Literal["tied", "untied", "adaptive"] = "tied"
    rows: float = 1.0
    tokens: int = 32
    clients: int = 100
    valid_tokens: int = 0
    start: str = ""

    def __post_init__(self) -> None:
        at_least(1, self, "width", "layers", "heads", "block", "block_embedding", "tokens")
        at_least(1, self, "clients")
        expect("32 or more, or 0 for all words", lambda n: n == 0 or n >= 32, self, "vocabulary")
        at_least(0, self, "valid_tokens")
        if self.width % self.heads:
            raise ConfigError(
                f"language.width is {self.width}, which is not a multiple of language.heads = "
                f"{self.heads}: choose a multiple of {self.heads}"
            )
        expect_share(self, "dropout")
        expect("a fraction in (0, 1]", lambda rows: 0 < rows <= 1, self, "rows")
        if self.decoder == "adaptive" and self.width < 16:
            raise ConfigError(
                f"language.width is {self.width}, but the adaptive decoder gives the rarest words "
                "a sixteenth of the width: choose 16 or more"
            )
        if self.decoder == "adaptive" and self.block_embedding > 1:
            raise ConfigError(
                f"language.block_embedding is {self.block_embedding}, which the adaptive decoder "
                "does not support: choose a tied or untied decoder, or block_embedding = 1"
            )


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
        scheme: `iid`, `dirichlet` for label-skewed clients, `two-labels`: the samples sorted by
            label, two pieces of them for each client (McMahan et al.). With `writers` each client
            is one writer of LEAF's FEMNIST, or of a made set under `--data synthetic`.
        alpha: concentration of `dirichlet`; small means few labels a client.
    """

    clients: int = 100
    scheme: Literal["iid", "dirichlet", "two-labels", "writers"] = "iid"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        expect("a number above 0", lambda value: 0 < value < math.inf, self, "alpha")


@dataclass(frozen=True, slots=True)
class Local:
    """Training at a client.

    Attributes:
        optimizer: `gradient` (one gradient of all samples without a step), `sgd`, `adam`, the
            name of a class in torch.optim (`RMSprop`), or `MODULE:NAME` of a function. It gets
            the model and this section, and returns the optimizer (docs/own-experiments.md).
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
        proximal: mu of FedProx. Gradients pull parameters back to where the round began, by mu
            times the distance. 0 for none. It needs more than one step.
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
        at_least(0, self, "proximal")


@dataclass(frozen=True, slots=True)
class Server:
    """The servers' optimizer on the mean over the cohort; `sgd` with rate 1 is averaging.

    Attributes:
        optimizer: `sgd`, `adam`, or `lazy-adam`, which changes neither rows that no client trained
            in a round, nor their moments.
        lr: its rate.
        table_rate: of `lazy-adam`: the rate of embedding tables, as a multiple of `lr`.
        mean: what the sum of a row or another chosen position is divided by: the `cohort`, or
            those who `trained` it (FedSubAvg, by round), whose number the servers then open.
        momentum: of `sgd`, in [0, 1); a change then counts 1 / (1 - momentum) times in the end,
            also in rounds in which no client sends its position.
        beta1: of `adam` and `lazy-adam`.
        beta2: of `adam` and `lazy-adam`.
        eps: of `adam` and `lazy-adam`.
        average: in [0, 1): also evaluate the mean of the servers' models over rounds. All models
            before the latest keep this weight (0.99: about the last hundred rounds). 0 for none.
            Changes no round.
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


@dataclass(frozen=True, slots=True)
class Encoding:
    """Fixed point: see `torchfsl.FixedPoint`. Clients times clip must stay inside the ring.

    Attributes:
        ring_bits: of the ring in which values are added: 16, 24, 32, 48, 64 or 128.
        frac_bits: binary digits behind the point.
        clip: largest magnitude of a value; larger ones are cut and counted.
        rounding: `nearest`, or `stochastic`, which is right on average.
        rows_ring_bits: of tables that go by rows (under `dense` whole), as fine as the cohort
            allows; or 0. All six settings from here on are for `plain`, `fsl` and `dense`.
        rows_clip: magnitudes that it keeps at least.
        rest_ring_bits: of everything else, likewise.
        rest_clip: see above.
        rest_clips: `PATTERN=CLIP` for parameters outside tables whose values are much smaller or
            larger than the others' (`attention.*=0.001`): each in a separate ring, as fine as its
            clip allows. The first that fits counts.
        download: as what clients get the model.
    """

    ring_bits: int = 32
    frac_bits: int = 20
    clip: float = 4.0
    rounding: Literal["nearest", "stochastic"] = "nearest"
    rows_ring_bits: int = 0
    rows_clip: float = 0.25
    rest_ring_bits: int = 0
    rest_clip: float = 1.0
    rest_clips: tuple[str, ...] = ()
    download: Literal["full", "float16", "bfloat16"] = "full"

    def __post_init__(self) -> None:
        for part, clip in self.parts:
            if not (part and clip > 0 and math.isfinite(clip)):
                raise ConfigError(
                    f"encoding.rest_clips has {part}={clip}, expected a clip above 0: write "
                    "PATTERN=CLIP, for example attention.*=0.001"
                )

    @property
    def parts(self) -> list[tuple[str, float]]:
        """Patterns of `rest_clips` and their clips.

        Raises:
            ConfigError: no number.
        """
        found = []
        for text in self.rest_clips:
            part, _, clip = text.rpartition("=")
            try:
                found.append((part, float(clip)))
            except ValueError as error:
                raise ConfigError(
                    f"encoding.rest_clips has {text!r}, expected PATTERN=CLIP: write for example "
                    "attention.*=0.001"
                ) from error
        return found


@dataclass(frozen=True, slots=True)
class Rest:
    """How weights outside the embedding tables are sent.

    Attributes:
        policy: `dense` (all of them), `topk` (scalars of largest magnitude), `blocks` (blocks of
            largest L1 norm), `bins` (the block of largest L1 norm of each public bin) or `sample`.
            With `sample` each client draws blocks in secret, scaled so that their mean over the
            draws is the whole change.
        amount: fraction of the scalars or blocks.
        block: values per block; 1 with `bins` sends scalars.
        error_feedback: with `topk`, `blocks` and `bins`, keep what is not sent for later rounds.
    """

    policy: Literal["dense", "topk", "blocks", "bins", "sample"] = "dense"
    amount: float = 0.05
    block: int = 32
    error_feedback: bool = True


@dataclass(frozen=True, slots=True)
class Fsl:
    """How much a client may write under `--aggregation fsl`.

    Attributes:
        l2_norm: clients scale an update to at most this length, also of `plain` and `dense`; or 0.
        proofs: what they prove to both servers: `none`, `lanes`, `norm`, or the planner's choice.
        sum_bound: servers scale a sum down to what so many such updates make up.
    """

    l2_norm: float = 0.0
    proofs: Literal["default", "none", "lanes", "norm"] = "default"
    sum_bound: bool = True

    def __post_init__(self) -> None:
        at_least(0, self, "l2_norm")


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
        expect("2048 or 4096", (2048, 4096).__contains__, self, "slots")
        at_least(0, self, "l2_norm", "noise")
        if self.noise and not self.l2_norm:
            raise ConfigError(
                "sefl.noise without sefl.l2_norm gives no privacy guarantee: set both"
            )
        expect("a number above 0 and below 1", lambda delta: 0 < delta < 1, self, "delta")


@dataclass(frozen=True, slots=True)
class Sesa:
    """Clients of different widths: the presets `...-widths`, under every aggregation.

    Attributes:
        shards: equal parts into which the units of every hidden layer are cut.
        budgets: by class of clients the share of each hidden layer that one of them trains, a
            whole number of shards. The clients are spread over the classes as evenly as it goes,
            and so is every cohort.
        choice: which shards a client trains in a round. `random` takes random ones of every layer.
            `rolling` takes a window that moves on by one shard per round (FedRolex if a shard is a
            unit). `static` takes the first ones (HeteroFL).
        scaled: multiply the activations of a narrow client's layers by 1 / budget.
        mean: what the sum of a submodel is divided by: the `cohort` that submitted, or its
            `owners` among them, whose number `plain` and `fsl` then open as well.
        collusion: of `--aggregation sesa` only: share of the cohort that may work together, and
            with the server, without learning more than the sums.
        max_isolation: of `--aggregation sesa` only: most submodels, in expectation, of which a
            round may open the update of a single honest client. See `torchfsl.sesa.SesaPlan`.
    """

    shards: int = 4
    budgets: tuple[float, ...] = (1.0, 0.5, 0.25)
    choice: Literal["random", "rolling", "static"] = "random"
    scaled: bool = False
    mean: Literal["cohort", "owners"] = "cohort"
    collusion: float = 0.1
    max_isolation: float = 1e-4

    def __post_init__(self) -> None:
        at_least(1, self, "shards")
        if not self.budgets:
            raise ConfigError(
                "sesa.budgets is empty: give the share of the model that each class of clients "
                "trains, for example [1.0, 0.5]"
            )
        for budget in self.budgets:
            taken = budget * self.shards
            if not 0 < budget <= 1 or not math.isclose(taken, round(taken)) or round(taken) < 1:
                raise ConfigError(
                    f"sesa.budgets has {budget}, expected multiples of 1/{self.shards} above 0 "
                    f"and at most 1, because sesa.shards is {self.shards}"
                )
        expect("a share above 0 and below 1", lambda share: 0 < share < 1, self, "collusion")

    @property
    def taken(self) -> tuple[int, ...]:
        """By class the number of shards of a layer that one of its clients trains."""
        return tuple(round(budget * self.shards) for budget in self.budgets)
