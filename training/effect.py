"""Which settings a run has no use for: refused where the preset or another setting makes them idle.

Whether an aggregation uses a setting is another question: one file of settings serves all of them,
so that protections and policies that `plain` or `sesa` has no use for are named and left alone. On
the command line, where it is given for this one run, such a setting is refused. So are narrow rings
and rounded downloads wherever they stand: without them the run has other bytes and another model
than the file says.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

from training.config import READS, Config
from training.section_checks import ConfigError


class Use(NamedTuple):
    """A setting or a whole section, which runs use it, and those runs in words."""

    path: str
    holds: Callable[[Config], bool]
    where: str


def _uses(section: str, names: str, holds: Callable[[Config], bool], where: str) -> tuple[Use, ...]:
    """The same of several settings of a section, their names with blanks between."""
    return tuple(Use(f"{section}.{name}", holds, where) for name in names.split())


def _steps(config: Config) -> bool:
    return config.local.optimizer != "gradient"


def _has_clients(config: Config) -> bool:
    return config.aggregation != "central"


def _can_batch(config: Config) -> bool:
    plain = config.local.precision == "float32" and not config.local.clip_norm
    simple = config.local.optimizer in ("gradient", "sgd") and config.device == "cpu"
    rows = config.aggregation in ("plain", "fsl")
    return config.is_recommender and plain and simple and rows


def _repeats(config: Config) -> bool:
    """Whether a client's examples can be passed more than once."""
    own_steps = _steps(config) and _has_clients(config)
    return own_steps if config.is_recommender else True


def _moves_on(config: Config) -> bool:
    """Whether a client takes a step away from the round's start, and then another."""
    if config.is_recommender:
        return _repeats(config) and config.local.epochs > 1
    return _steps(config) and config.local.steps != 1


def _falls(config: Config) -> bool:
    return _steps(config) and config.local.lr_decay != 1


def _selects(config: Config) -> bool:
    return config.rest.policy in ("topk", "blocks", "bins", "sample")


def _keeps(config: Config) -> bool:
    return config.rest.policy in ("topk", "blocks", "bins")


def _adapts(config: Config) -> bool:
    return config.server.optimizer in ("adam", "lazy-adam")


def _has_rows(config: Config) -> bool:
    """Whether a client may send some rows of a table and not all."""
    rows = config.is_recommender or config.is_clicks or config.preset == "own"
    rows = rows or (config.preset == "textcnn" and _sends_rows(config))
    return rows or (config.is_language and config.language.decoder != "tied")


def _has_trees(config: Config) -> bool:
    """Whether a client may send some positions of a segment and not all."""
    return _has_rows(config) or _selects(config)


def _shares_a_ring(config: Config) -> bool:
    """Whether any value is sent in the shared encoding and not in a separate one."""
    own = config.encoding
    if config.aggregation not in ("plain", "fsl", "dense"):
        return True
    return not own.rest_ring_bits or (_has_rows(config) and not own.rows_ring_bits)


def _is_sentences(config: Config) -> bool:
    return config.preset == "textcnn"


def _is_real(config: Config) -> bool:
    return config.data != "synthetic"


def _sends_rows(config: Config) -> bool:
    return config.sentences.table == "rows"


def _takes(config: Config, name: str) -> bool:
    return name in READS.get(config.preset.partition("-")[0], ())


def _has_parts(config: Config) -> bool:
    return not config.is_recommender


def _has_partition(config: Config) -> bool:
    return _has_parts(config) and not config.is_language and not config.is_clicks


def _has_images(config: Config) -> bool:
    return config.preset.startswith(("cnn-", "mlp-"))


def _is_table(config: Config) -> bool:
    return config.data.lower().endswith((".csv", ".tsv", ".parquet")) or Path(config.data).is_file()


def _spreads(config: Config) -> bool:
    """Whether lines of clicks are spread over a number of clients."""
    return config.data == "synthetic" or "client=" not in config.ctr.columns


_SETTINGS: Final = (
    Use("recommendation", lambda c: c.is_recommender, "recommenders"),
    *(
        Use(
            f"recommendation.{name}",
            functools.partial(_takes, name=name),
            f"presets {', '.join(kind for kind in READS if name in READS[kind])}",
        )
        for name in ("user_table", "head", "attention", "activation", "dropout", "blocks")
    ),
    Use(
        "evaluate",
        lambda c: not c.is_language and c.preset != "own",
        "presets of recommenders, clicks, images and sentences",
    ),
    Use("recommendation.columns", _is_table, "--data FILE.csv, FILE.tsv or FILE.parquet"),
    Use("ctr", lambda c: c.is_clicks, "the preset ctr-deepfm"),
    Use("ctr.columns", _is_table, "--data FILE.csv, FILE.tsv or FILE.parquet"),
    Use("ctr.clients", _spreads, "data of which no column names the client"),
    Use("sentences", _is_sentences, "the preset textcnn"),
    *_uses("sentences", "rows error_feedback", _sends_rows, 'sentences.table = "rows"'),
    Use("sentences.label", _is_real, "data sets, not for synthetic data"),
    Use("images", _has_images, "presets of images"),
    Use("images.label", _is_real, "data sets, not for synthetic data"),
    Use("images.random_crop", lambda c: c.images.crop != 0, "images.crop"),
    Use("language", lambda c: c.is_language, "the presets ...-wikitext2"),
    Use(
        "language.heads",
        lambda c: c.preset == "transformer-wikitext2",
        "the preset transformer-wikitext2",
    ),
    Use(
        "language.rows",
        lambda c: c.language.decoder != "tied",
        'language.decoder = "untied" or "adaptive"',
    ),
    Use(
        "partition",
        _has_partition,
        "presets of images and sentences",
    ),
    Use(
        "partition.alpha",
        lambda c: c.partition.scheme == "dirichlet",
        'partition.scheme = "dirichlet"',
    ),
    Use(
        "local.batch_size",
        lambda c: _has_parts(c) or not _has_clients(c),
        "other presets and --aggregation central (in a recommender, a user is one batch)",
    ),
    Use(
        "local.epochs",
        _repeats,
        "other presets and, under aggregations with clients, a local.optimizer other than "
        '"gradient" (in a recommender, a user is one batch)',
    ),
    Use(
        "local.proximal",
        _moves_on,
        'several steps per round (a local.optimizer other than "gradient", and local.steps other '
        "than 1, or in a recommender local.epochs above 1)",
    ),
    Use("local.steps", _has_parts, "other presets (in a recommender, a user is one batch)"),
    *_uses("local", "lr lr_decay weight_decay", _steps, 'a local.optimizer other than "gradient"'),
    Use("local.lr_decay_rounds", _falls, "local.lr_decay"),
    Use("local.adam_eps", lambda c: c.local.optimizer == "adam", 'local.optimizer = "adam"'),
    Use(
        "local.together",
        _can_batch,
        'recommenders under plain or fsl on cpu, with local.optimizer "gradient" or "sgd", '
        'local.precision "float32" and local.clip_norm 0',
    ),
    Use("rest.amount", _selects, 'rest.policy = "topk", "blocks", "bins" or "sample"'),
    Use("rest.error_feedback", _keeps, 'rest.policy = "topk", "blocks" or "bins"'),
    Use(
        "rest.block",
        lambda c: c.rest.policy in ("blocks", "bins", "sample"),
        'rest.policy = "blocks", "bins" or "sample"',
    ),
    *_uses(
        "encoding",
        "ring_bits frac_bits clip",
        _shares_a_ring,
        "values outside encoding.rows_ring_bits and encoding.rest_ring_bits",
    ),
    Use("encoding.rows_ring_bits", _has_rows, "presets that send rows of tables"),
    Use("encoding.rows_clip", lambda c: c.encoding.rows_ring_bits != 0, "encoding.rows_ring_bits"),
    Use("encoding.rest_clip", lambda c: c.encoding.rest_ring_bits != 0, "encoding.rest_ring_bits"),
    Use(
        "encoding.rest_clips",
        lambda c: c.encoding.rest_ring_bits != 0 and not _selects(c),
        'encoding.rest_ring_bits with rest.policy = "dense"',
    ),
    Use("sefl.delta", lambda c: c.sefl.noise > 0, "sefl.noise"),
    Use("privacy", lambda c: not c.preset.endswith("-widths"), "presets with clients of one size"),
    *_uses("privacy", "delta rounds band", lambda c: c.privacy.epsilon > 0, "privacy.epsilon"),
    Use(
        "privacy.rows",
        lambda c: c.is_recommender and c.servers == "in-process",
        "recommenders, with servers in this process",
    ),
    Use("privacy.list_share", lambda c: c.privacy.rows > 0, "privacy.rows"),
    Use(
        "privacy.min_separation",
        lambda c: c.privacy.epsilon > 0 or c.privacy.max_participations > 0,
        "privacy.epsilon or privacy.max_participations",
    ),
    *_uses("server", "beta1 beta2 eps", _adapts, 'server.optimizer = "adam" or "lazy-adam"'),
    Use(
        "server.table_rate",
        lambda c: c.server.optimizer == "lazy-adam",
        'server.optimizer = "lazy-adam"',
    ),
    Use("server.lr_decay_rounds", lambda c: c.server.lr_decay != 1, "server.lr_decay"),
    Use(
        "server.mean",
        _has_trees,
        'presets that send rows, and rest.policy = "topk", "blocks", "bins" or "sample"',
    ),
    Use(
        "workers",
        lambda c: not c.local.together and _has_clients(c),
        "clients that train one by one (local.together = false, and not central)",
    ),
    Use("tls", lambda c: c.servers != "in-process", "--servers URL0,URL1"),
    Use("replace", lambda c: c.servers != "in-process", "--servers URL0,URL1"),
    Use(
        "servers",
        lambda c: c.aggregation in ("fsl", "dense"),
        "--aggregation fsl or dense, which have two servers",
    ),
)
"""Settings that the preset or another setting can make idle."""

_SAVES_BYTES: Final = _uses(
    "encoding",
    "rows_ring_bits rows_clip rest_ring_bits rest_clip rest_clips download",
    lambda c: c.aggregation in ("plain", "dense", "fsl"),
    "--aggregation plain, dense and fsl",
)
"""Settings that change bytes and model; refused if the aggregation does not use them."""

_BY_AGGREGATION: Final = (
    Use("above_break_even", lambda c: c.aggregation in ("fsl", "plain"), "fsl and plain"),
    Use("malicious_security", lambda c: c.aggregation == "fsl", "fsl"),
    Use("rest", lambda c: c.aggregation not in ("dense", "sefl", "central"), "plain, fsl and sesa"),
    Use(
        "encoding.ring_bits",
        lambda c: c.aggregation not in ("sesa", "central"),
        "plain, dense and fsl",
    ),
    *_uses("encoding", "frac_bits clip rounding", _has_clients, "all other aggregations"),
    Use("min_clients", _has_clients, "all other aggregations"),
    Use("device", _has_clients, "all other aggregations"),
    *_uses(
        "local",
        "loss loss_divisor clip_norm precision",
        lambda c: _has_clients(c) or _steps(c),
        'all other aggregations, and a local.optimizer other than "gradient"',
    ),
    *_uses(
        "server",
        "optimizer lr table_rate momentum beta1 beta2 eps lr_decay lr_decay_rounds",
        lambda c: _has_clients(c) or not _steps(c),
        'all other aggregations, and local.optimizer = "gradient"',
    ),
    Use(
        "fsl.l2_norm", lambda c: c.aggregation in ("plain", "dense", "fsl"), "plain, dense and fsl"
    ),
    Use("privacy", lambda c: c.aggregation in ("plain", "dense", "fsl"), "plain, dense and fsl"),
    Use(
        "fsl.sum_bound",
        lambda c: c.aggregation in ("plain", "dense", "fsl"),
        "plain, dense and fsl",
    ),
    Use("fsl.proofs", lambda c: c.aggregation == "fsl", "fsl"),
    *_uses("sefl", "slots l2_norm noise delta", lambda c: c.aggregation == "sefl", "sefl"),
    *_uses("sesa", "collusion max_isolation", lambda c: c.aggregation == "sesa", "sesa"),
)


def refuse_idle(config: Config, preset: Config, options: Collection[str]) -> None:
    """Refuse settings that this run has no use for.

    Args:
        config: of the run.
        preset: what it started from. A setting that has its preset's value was not chosen.
        options: settings that were given on the command line.

    Raises:
        ConfigError: names the first one, and the runs that use it.
    """
    for use in _idle(_SAVES_BYTES, config, preset):
        raise ConfigError(
            f"{use.path} has no effect under {config.aggregation}, because it is for {use.where}: "
            f"leave {use.path} out of this run's settings"
        )
    for use in _idle(_SETTINGS, config, preset):
        raise ConfigError(
            f"{use.path} has no effect in this run, because it is for {use.where}: leave out "
            f"{use.path}"
        )
    for use in _idle(_BY_AGGREGATION, config, preset):
        if use.path in options:
            name = use.path.replace("_", "-")
            raise ConfigError(
                f"--{name} has no effect under {config.aggregation}, because it is for "
                f"{use.where}: leave out --{name}"
            )


def idle_under_aggregation(config: Config, preset: Config) -> list[str]:
    """Chosen settings that the aggregation has no use for, though another one has."""
    return [use.path for use in _idle(_BY_AGGREGATION, config, preset)]


def _idle(uses: tuple[Use, ...], config: Config, preset: Config) -> list[Use]:
    return [use for use in uses if _differs(use.path, config, preset) and not use.holds(config)]


def _differs(path: str, config: Config, preset: Config) -> bool:
    value = operator.attrgetter(path)
    return bool(value(config) != value(preset))
