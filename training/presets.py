"""The presets: DIN, three of the FSL paper's section 7.3, language models, different widths.

Why those of widths have the cohorts and the collusion that they have. Thirds of a cohort train all,
half and a quarter of each layer. The SESA paper lets half of the clients collude; then hardly an
honest wide client is left: of 20 clients' submodels one a round would open as the update of one
client where two drop out, of 40 clients' 0.057 where four do (docs/results/sesa.md). A cohort whose
wide clients outnumber colluding ones and dropouts by two isolates nothing, whatever is drawn.

- `mlp-mnist-widths`: K = 4; 13 wide clients of 40, 4 collude, so that up to 7 may drop out and
  nothing is isolated. With 10 dropouts one round in 40,000 is refused for those that were left.
- `cnn-...-widths`: both sides of most layers are cut, so K = 16; 8 wide clients of 24, 4 collude:
  nothing is isolated with 2 dropouts, and a third one is refused.
"""

from __future__ import annotations

import dataclasses

from training.config import Config
from training.ctr_section import Ctr
from training.encoding_section import Encoding
from training.language_section import Language
from training.recommendation_section import Recommendation
from training.sections import (
    Images,
    Local,
    Partition,
    Rest,
    Sentences,
    Server,
    Sesa,
)

_LANGUAGE = Config(
    preset="",
    data="Salesforce/wikitext",
    rounds=40,
    clients_per_round=8,
    eval_every=10,
    checkpoint_every=10,
    torch_threads=1,
    # Segments that trees would make dearer than dense shares are sent as these.
    above_break_even="dense",
    language=Language(),
    # Sequential steps count: with few of them a round, a cohort's mean stays at the frequencies
    # of single words.
    local=Local(optimizer="adam", lr=3e-3, batch_size=8, steps=20, clip_norm=1.0),
    encoding=Encoding(frac_bits=22, clip=4.0),
)
"""What both language models share."""


NARROW = Encoding(
    frac_bits=22,
    clip=4.0,
    rounding="stochastic",
    rows_ring_bits=16,
    rest_ring_bits=16,
    rows_clip=0.125,
    rest_clip=0.125,
    rest_clips=("attention.4.*=0.004", "attention.*=0.0005", "head.[34].*=1.0"),
    download="float16",
)
"""For DIN: two bytes a value both ways, clips where its gradients on Beauty end."""

_NARROW_ROWS = {"din-small": 252}
"""Budgets of rows for which some bins fewer do."""


def narrowed(config: Config) -> Config:
    """Settings of DIN with two bytes a value."""
    task = config.recommendation
    rows = _NARROW_ROWS.get(config.preset, task.rows_per_client)
    task = dataclasses.replace(task, rows_per_client=rows)
    return dataclasses.replace(config, encoding=NARROW, recommendation=task)


def _recommender(name: str, settings: Recommendation, average: float = 0.985) -> Config:
    """A user is a client; the servers move the rows that a round trained."""
    return Config(
        preset=name,
        data="synthetic",
        rounds=600,
        clients_per_round=100,
        eval_every=20,
        torch_threads=1,
        recommendation=dataclasses.replace(settings, ranked_users=100_000),
        # One gradient of all samples; dividing the sum by a constant lets users with more
        # samples weigh more. The divisor only places gradients inside the encoding's range.
        local=Local(optimizer="gradient", loss="sum", loss_divisor=32.0),
        server=Server(
            optimizer="lazy-adam", lr=0.01, table_rate=3.0, beta1=0.8, beta2=0.99, average=average
        ),
        encoding=Encoding(frac_bits=22, clip=4.0),
    )


PRESETS = {
    preset.preset: preset
    for preset in (
        _recommender("din", Recommendation(user_table=False, dropout=0.3), average=0.99),
        _recommender(
            "din-small", Recommendation(user_table=False, head=(32, 16), attention=(16, 8))
        ),
        dataclasses.replace(
            _recommender("din-published", Recommendation()),
            rounds=300,
            server=Server(optimizer="adam", lr=0.01, beta1=0.8, beta2=0.99),
        ),
        _recommender("mf", Recommendation(user_table=False)),
        _recommender("ncf", Recommendation(user_table=False, head=(32, 16))),
        _recommender("deepfm", Recommendation(user_table=False, head=(32, 16))),
        _recommender("sasrec", Recommendation()),
        dataclasses.replace(
            _recommender("ctr-deepfm", Recommendation()),
            rounds=300,
            recommendation=Recommendation(),
            ctr=Ctr(),
            local=Local(optimizer="gradient", batch_size=64, loss="sum", loss_divisor=32.0),
        ),
        Config(
            preset="own",
            data="synthetic",
            rounds=20,
            clients_per_round=10,
            eval_every=1,
            torch_threads=1,
            # As for din: rows of few clients move little in a mean of steps, Adam's are as large.
            local=Local(optimizer="gradient"),
            server=Server(optimizer="adam", lr=0.05, beta1=0.8, beta2=0.99),
            encoding=Encoding(frac_bits=22, clip=4.0),
        ),
        Config(
            preset="textcnn",
            data="CogComp/trec",
            # Accuracy on a tenth of the training data, held out, no longer rises after 15 rounds.
            rounds=15,
            clients_per_round=4,
            eval_every=1,
            sentences=Sentences(),
            partition=Partition(clients=4),
            local=Local(optimizer="adam", lr=1e-3, batch_size=64, epochs=2),
            encoding=Encoding(frac_bits=24, clip=4.0),
        ),
        dataclasses.replace(_LANGUAGE, preset="lstm-wikitext2"),
        dataclasses.replace(_LANGUAGE, preset="transformer-wikitext2"),
        Config(
            preset="cnn-mnist",
            data="ylecun/mnist",
            rounds=100,
            clients_per_round=10,
            eval_every=10,
            checkpoint_every=20,
            above_break_even="keep",
            local=Local(optimizer="sgd", lr=0.01, lr_decay=0.99, weight_decay=5e-4),
            encoding=Encoding(frac_bits=24, clip=4.0),
            rest=Rest(policy="topk", amount=0.05),
        ),
        Config(
            preset="cnn-cifar10",
            data="uoft-cs/cifar10",
            rounds=100,
            clients_per_round=10,
            eval_every=10,
            checkpoint_every=20,
            above_break_even="keep",
            images=Images(crop=24, flip=True),
            local=Local(optimizer="sgd", lr=0.1, lr_decay=0.99, weight_decay=5e-4),
            encoding=Encoding(frac_bits=24, clip=4.0),
            rest=Rest(policy="topk", amount=0.05),
        ),
        Config(
            preset="mlp-mnist-widths",
            data="ylecun/mnist",
            rounds=60,
            clients_per_round=40,
            eval_every=10,
            checkpoint_every=10,
            torch_threads=1,
            above_break_even="keep",
            partition=Partition(scheme="two-labels"),
            local=Local(optimizer="sgd", lr=0.2),
            encoding=Encoding(frac_bits=20, clip=4.0),
            sesa=Sesa(collusion=0.1),
        ),
        Config(
            preset="cnn-mnist-widths",
            data="ylecun/mnist",
            rounds=100,
            clients_per_round=24,
            eval_every=10,
            checkpoint_every=20,
            above_break_even="keep",
            local=Local(optimizer="sgd", lr=0.1),
            encoding=Encoding(frac_bits=20, clip=4.0),
            sesa=Sesa(collusion=0.17),
        ),
        Config(
            preset="cnn-cifar10-widths",
            data="uoft-cs/cifar10",
            rounds=100,
            clients_per_round=24,
            eval_every=10,
            checkpoint_every=20,
            above_break_even="keep",
            images=Images(crop=24, flip=True),
            local=Local(optimizer="sgd", lr=0.1),
            encoding=Encoding(frac_bits=20, clip=4.0),
            sesa=Sesa(collusion=0.17),
        ),
    )
}
