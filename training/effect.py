"""Which settings a run has no use for: refused where the preset or another setting makes them idle.

Whether an aggregation uses a setting is another question: one file of settings serves all of them,
so that what `plain` or `sesa` has no use for is named and left alone. On the command line, where it
is given for this one run, it is refused as well.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from training.config import Config
from training.sections import ConfigError


class Use(NamedTuple):
    """A setting or a whole section, which runs use it, and those runs in words."""

    path: str
    holds: Callable[[Config], bool]
    where: str


def _steps(config: Config) -> bool:
    return config.local.optimizer != "gradient"


def _falls(config: Config) -> bool:
    return _steps(config) and config.local.lr_decay != 1


def _selects(config: Config) -> bool:
    return config.rest.policy in ("topk", "blocks")


def _is_sentences(config: Config) -> bool:
    return config.preset == "textcnn"


def _is_real(config: Config) -> bool:
    return config.data != "synthetic"


def _sends_rows(config: Config) -> bool:
    return config.sentences.table == "rows"


def _has_parts(config: Config) -> bool:
    return config.preset != "din"


def _has_partition(config: Config) -> bool:
    return _has_parts(config) and not config.is_language


def _has_images(config: Config) -> bool:
    return config.preset.startswith(("cnn-", "mlp-"))


def _is_table(config: Config) -> bool:
    return config.data.endswith((".csv", ".parquet"))


_SETTINGS: Final = (
    Use("din", lambda c: c.preset == "din", "the preset din"),
    Use("din.columns", _is_table, "--data FILE.csv or FILE.parquet"),
    Use("sentences", _is_sentences, "the preset textcnn"),
    Use("sentences.rows", _sends_rows, 'sentences.table = "rows"'),
    Use("sentences.error_feedback", _sends_rows, 'sentences.table = "rows"'),
    Use("sentences.label", _is_real, "data sets, not for synthetic data"),
    Use("images", _has_images, "presets of images"),
    Use("images.label", _is_real, "data sets, not for synthetic data"),
    Use("images.random_crop", lambda c: c.images.crop != 0, "images.crop"),
    Use("language", lambda c: c.is_language, "the presets ...-wikitext2"),
    Use("language.heads", lambda c: c.preset == "transformer-wikitext2", "the Transformer"),
    Use("language.rows", lambda c: c.language.decoder != "tied", "decoders that are not tied"),
    Use(
        "partition",
        _has_partition,
        "presets of images and sentences; elsewhere a user or a stretch of text is a client",
    ),
    Use(
        "partition.alpha",
        lambda c: c.partition.scheme == "dirichlet",
        'partition.scheme = "dirichlet"',
    ),
    Use("local.batch_size", _has_parts, "presets other than din: a user is one batch"),
    Use("local.epochs", _has_parts, "presets other than din: a user is one batch"),
    Use("local.steps", _has_parts, "presets other than din: a user is one batch"),
    Use("local.lr", _steps, 'local.optimizer = "sgd" or "adam"'),
    Use("local.lr_decay", _steps, 'local.optimizer = "sgd" or "adam"'),
    Use("local.lr_decay_rounds", _falls, "local.lr_decay"),
    Use("local.weight_decay", _steps, 'local.optimizer = "sgd" or "adam"'),
    Use("local.adam_eps", lambda c: c.local.optimizer == "adam", 'local.optimizer = "adam"'),
    Use("rest.amount", _selects, 'rest.policy = "topk" or "blocks"'),
    Use("rest.error_feedback", _selects, 'rest.policy = "topk" or "blocks"'),
    Use("rest.block", lambda c: c.rest.policy == "blocks", 'rest.policy = "blocks"'),
    Use("sefl.delta", lambda c: c.sefl.noise > 0, "sefl.noise"),
    Use("tls", lambda c: c.servers != "in-process", "--servers URL0,URL1"),
    Use("replace", lambda c: c.servers != "in-process", "--servers URL0,URL1"),
    Use(
        "servers",
        lambda c: c.aggregation in ("fsl", "dense"),
        "--aggregation fsl or dense, which have two servers",
    ),
)
"""What the preset or another setting decides."""

_BY_AGGREGATION: Final = (
    Use("above_break_even", lambda c: c.aggregation == "fsl", "fsl"),
    Use("malicious_security", lambda c: c.aggregation == "fsl", "fsl"),
    Use("rest", lambda c: c.aggregation not in ("dense", "sefl"), "plain, fsl and sesa"),
    Use("encoding.ring_bits", lambda c: c.aggregation != "sesa", "plain, dense and fsl"),
    *(
        Use(f"sefl.{name}", lambda c: c.aggregation == "sefl", "sefl")
        for name in ("slots", "l2_norm", "noise", "delta")
    ),
    Use("sesa.collusion", lambda c: c.aggregation == "sesa", "sesa"),
    Use("sesa.max_isolation", lambda c: c.aggregation == "sesa", "sesa"),
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
    for use in _idle(_SETTINGS, config, preset):
        raise ConfigError(f"{use.path} has no effect in this run: it is for {use.where}")
    for use in _idle(_BY_AGGREGATION, config, preset):
        if use.path in options:
            name = use.path.replace("_", "-")
            raise ConfigError(
                f"--{name} has no effect under {config.aggregation}: it is for {use.where}"
            )


def idle_under_aggregation(config: Config, preset: Config) -> list[str]:
    """Chosen settings that the aggregation has no use for, though another one has."""
    return [use.path for use in _idle(_BY_AGGREGATION, config, preset)]


def _idle(uses: tuple[Use, ...], config: Config, preset: Config) -> list[Use]:
    return [use for use in uses if _differs(use.path, config, preset) and not use.holds(config)]


def _differs(path: str, config: Config, preset: Config) -> bool:
    value = operator.attrgetter(path)
    return bool(value(config) != value(preset))
