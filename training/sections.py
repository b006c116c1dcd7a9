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
        rows_per_client: most embedding rows that one client retrieves and sends; public.
        columns: columns of a CSV, TSV or Parquet file:
            `user=NAME,item=NAME,time=NAME,category=NAME`, the last two optional.
        user_table: whether each user has an embedding row. Without this row, only its items
            describe a user, which suits users who participate once or twice.
        head: widths of the head's hidden layers.
        attention: widths of the hidden layers of DIN's attention.
        activation: of DIN's head, as published: `prelu` or `dice`.
        dropout: share of the head's input that is zero in training, in [0, 1); in SASRec the
            share of its embeddings and blocks.
        blocks: number of SASRec's blocks.
        ranked_users: number of users, drawn by the seed, whose held-out item is ranked among 99
            negatives at the end of a run; 0 for none, any large number for all.
        catalogue_users: number of users, drawn by the seed, whose held-out item is ranked among
            all items; any large number for all.
        rank_every: rounds between rankings, each with an evaluation; 0 for one at the end only.
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
        columns: columns of a CSV, TSV or Parquet file:
            `label=NAME,fields=A+B,numeric=C+D,client=NAME,time=NAME`, the last three optional.
            `fields=*` takes all others. Empty for Criteo's TSV of 40 columns without names.
        clients: number of clients that get the lines at random, if no column names the client.
        dim: width of the embeddings, with the weight of first order.
        head: widths of the network's hidden layers.
        dropout: share of the network's input that is zero in training, in [0, 1).
        least: fewest training lines with a value for which the value has a separate row.
        lines: most lines that a client trains on in a round.
        rows_per_client: most embedding rows that one client retrieves and sends; public. Lines
            with further rows wait for another round.
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
        vocabulary: most words in the vocabulary; rarer words are unknown. 0 for all words.
        width: width of embeddings and layers.
        layers: number of layers of the LSTM or the Transformer.
        heads: number of heads of the Transformer's attention.
        dropout: share of activations that is zero in training.
        block: side of the block-Hankel blocks of the layers' matrices; 1 for whole matrices.
        block_embedding: side of the blocks of the embedding and of an untied decoder.
        decoder: `tied` scores words by the input table, `untied` by a separate matrix,
            `adaptive` by clusters of rare words: far fewer operations with many words.
        rows: share of the rows of the input table that a client sends under a decoder that is
            not tied. They are the rows with the largest L1 norm of the change (`fsl`, `plain`).
        tokens: words of a window, which the model sees at once.
        clients: number of clients, each with one part of the training text.
        valid_tokens: words of the validation text that evaluations read; 0 for all.
        start: folder of a finished run with whole matrices, whose model torchfsl projects to
            blocks as the first model of this run; empty for a fresh model.
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
        maps: feature maps per window width.
        dropout: share of activations that is zero in training.
        table: how a client sends the word table: by `rows`, or as part of the `rest`.
        rows: share of the table's rows that a client sends, those whose change has the largest
            L1 norm; 1.0 sends all rows that changed.
        error_feedback: whether a client keeps the changes of the other rows for later rounds.
        label: column of the class, if the data set has several.
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
        crop: side of the square cut out of each image, in pixels; 0 for whole images.
        random_crop: whether the square has a random place in training, or the centre as in
            evaluations.
        flip: whether half of the images are mirrored in training.
        label: column of the class, if the data set has several.
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
        scheme: `iid`, `dirichlet` for label-skewed clients, or `two-labels` for two pieces per
            client of the samples in the order of labels (McMahan et al.). With `writers` each
            client is one writer of LEAF's FEMNIST, or of synthetic data.
        alpha: concentration of `dirichlet`; with a small value a client has few labels.
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
            name of a class in torch.optim (`RMSprop`), or `MODULE:NAME` of a function. The
            function takes the model and this section, and returns the optimizer (see the page
            'Your own model or data').
        lr: learning rate of every optimizer except `gradient`.
        lr_decay: factor on the rate after every `lr_decay_rounds` rounds.
        lr_decay_rounds: rounds between two changes of the rate by `lr_decay`.
        adam_eps: eps of `adam`. With fresh moments every step of Adam is as large as the rate,
            however small the gradient. A larger eps makes steps of small gradients smaller.
        weight_decay: weight decay of every optimizer that has one.
        batch_size: examples per batch. Recommenders use all samples of a user as one batch, except
            under `central`.
        epochs: passes over the client's examples. In a recommender, number of steps on all samples
            of the user, for every optimizer except `gradient`.
        steps: most batches in a round; 0 for no limit.
        loss: `mean` over the batch, or `sum` divided by `loss_divisor`, with which a client with
            more samples weighs more.
        loss_divisor: divisor of the loss.
        clip_norm: longest gradient of a step, over all parameters together; 0 for no limit.
        proximal: mu of FedProx. Gradients pull parameters back to where the round began, by mu
            times the distance. 0 for none. FedProx needs more than one step.
        precision: precision of the model's forward and backward pass. With `bfloat16`, torch's
            autocast chooses the operations that use it. Weights, the loss, the update and
            evaluation stay float32. Convolutions train twice as fast on CPUs with bfloat16.
        together: whether recommenders under `gradient` and `sgd` compute the gradients of a round's
            clients in batches, which is several times faster. float32 sums then have another order.
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
            in a round, nor the moments of these rows.
        lr: learning rate of the servers.
        table_rate: rate of embedding tables under `lazy-adam`, as a multiple of `lr`.
        mean: divisor of the sum of a row or another chosen position: the `cohort`, or the clients
            that `trained` it (FedSubAvg, by round). The servers then open this count.
        momentum: momentum of `sgd`, in [0, 1). A change then counts 1 / (1 - momentum) times in the
            end, also in rounds in which no client sends its position.
        beta1: beta1 of `adam` and `lazy-adam`.
        beta2: beta2 of `adam` and `lazy-adam`.
        eps: eps of `adam` and `lazy-adam`.
        average: weight in [0, 1) of the earlier models in a mean of the servers' models over
            rounds, which evaluations also use (0.99 is about the last hundred rounds). 0 for none.
            The mean does not change the rounds.
        lr_decay: factor on the rate of `sgd` after every `lr_decay_rounds` rounds, in (0, 1].
        lr_decay_rounds: rounds between two changes of the rate by `lr_decay`.
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
        ring_bits: bits of the ring in which servers add values: 16, 24, 32, 48, 64 or 128.
        frac_bits: binary digits after the point.
        clip: largest magnitude of a value. torchfsl cuts and counts larger values.
        rounding: `nearest`, or `stochastic`, which is unbiased.
        rows_ring_bits: bits of a separate ring for tables that clients send by rows, with the most
            frac_bits that the cohort allows; 0 for the common ring. This setting and the next five
            are for `plain`, `fsl` and `dense`.
        rows_clip: smallest clip of that ring.
        rest_ring_bits: bits of a separate ring for everything except these tables; 0 for the
            common ring.
        rest_clip: smallest clip of that ring.
        rest_clips: `PATTERN=CLIP` for parameters outside tables with much smaller or larger values
            (`attention.*=0.001`), each in a separate ring with the most frac_bits that its clip
            allows. The first pattern that matches counts.
        download: format in which clients download the model.
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
        amount: share of the scalars or blocks that a client sends.
        block: values per block; 1 with `bins` sends scalars.
        error_feedback: whether a client keeps unsent changes for later rounds (`topk`, `blocks`,
            `bins`).
    """

    policy: Literal["dense", "topk", "blocks", "bins", "sample"] = "dense"
    amount: float = 0.05
    block: int = 32
    error_feedback: bool = True


@dataclass(frozen=True, slots=True)
class Fsl:
    """How much a client may write under `--aggregation fsl`.

    Attributes:
        l2_norm: longest update, to which clients scale longer updates, also under `plain` and
            `dense`; 0 for no limit.
        proofs: what clients prove to both servers: `none`, `lanes`, `norm`, or the plan's default.
        sum_bound: whether servers scale a sum down to the largest that updates of `l2_norm` allow.
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
        slots: numbers per ciphertext: 2048, or 4096 for wider sums.
        l2_norm: longest update, to which clients scale longer updates; 0 for no limit.
        noise: standard deviation of the noise that each server adds to every sum, as a multiple of
            `l2_norm`; 0 for none.
        delta: delta of the guarantee that a run with noise prints.
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
        shards: number of equal parts of the units of every hidden layer.
        budgets: share of each hidden layer that a client trains, per class of clients, in whole
            shards. All classes have the same number of clients, or differ by one, also in a round.
        choice: shards that a client trains in a round. `random` takes random shards of every layer.
            `rolling` takes a window that moves by one shard per round (FedRolex if a shard is a
            unit). `static` takes the first shards (HeteroFL).
        scaled: whether the activations of a narrow client's layers are multiplied by 1 / budget.
        mean: divisor of the sum of a submodel: the `cohort` that submitted, or the `owners` of the
            submodel among these. `plain` and `fsl` then also open this count.
        collusion: largest share of the cohort that may collude, also with the server, without
            learning more than the sums; only for `--aggregation sesa`.
        max_isolation: most submodels, in expectation, in which a round may open the update of a
            single honest client; only for `--aggregation sesa`. See `torchfsl.sesa.SesaPlan`.
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
