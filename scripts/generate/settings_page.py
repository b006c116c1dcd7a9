"""Writes docs/settings.md, the reference of the settings in a TOML file of `python -m training`.

    python -m scripts.generate.settings_page

Names, types and defaults come from the dataclasses of `training.config` and `training.sections`,
what they mean from their docstrings. A test compares.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from typing import Any, Literal

from scripts.generate.writing import CHECK, write
from scripts.program import ROOT, Options, program
from training.config import Config, described
from training.presets import PRESETS

PAGE = ROOT / "docs" / "settings.md"
_BEGINNING = """\
# Settings of an experiment

Made from the dataclasses of `training/` by `python -m scripts.generate.settings_page`; a test
compares.

`python -m training PRESET --config FILE.toml` starts from a preset. FILE.toml overrides the preset,
and options of the command override FILE.toml. The trainer refuses unknown settings, and settings
without effect in a run. If only the aggregation does not use a setting of the file, the trainer
prints the name of this setting, also under `--quiet`. The settings of a run are in its
`config.json`.

```toml
rounds = 50
[local]
lr = 0.05
[rest]
policy = "blocks"
amount = 0.05
```

The tables have the default of each setting. [Presets](#presets) lists what each preset changes.
"""


def page() -> str:
    """The page."""
    sections = [f for f in dataclasses.fields(Config) if _is_section(Config, f.name)]
    top = [f for f in dataclasses.fields(Config) if not _is_section(Config, f.name)]
    parts = [_BEGINNING, "## At the top\n", _table(Config, top)]
    for field in sections:
        kind = _kind(Config, field.name)
        intro, _, _ = _docstring(kind).partition("\n\n")
        parts += [f"## [{field.name}]\n", " ".join(intro.split()) + "\n"]
        parts.append(_table(kind, list(dataclasses.fields(kind))))
    parts += ["## Presets\n", "Each preset changes these defaults.\n"]
    for name, preset in PRESETS.items():
        parts += [f"### {name}\n", f"```toml\n{_said(preset)}```\n"]
    return "\n".join(parts)


def _table(kind: type, fields: list[dataclasses.Field[Any]]) -> str:
    meanings = described(kind)
    lines = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
    for field in fields:
        default = "" if field.default is dataclasses.MISSING else f"`{toml(field.default)}`"
        meaning = meanings[field.name].replace("|", "\\|")
        lines.append(f"| `{field.name}` | {_values(kind, field.name)} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(toml(entry) for entry in value)}]"
    return repr(value)


def _values(kind: type, name: str) -> str:
    hint = _kind(kind, name)
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{toml(choice)}`" for choice in typing.get_args(hint))
    if isinstance(hint, types.GenericAlias):
        return f"list of {'texts' if hint.__args__[0] is str else 'numbers'}"
    return {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}[hint]


def _said(preset: Config) -> str:
    """Settings of a preset that differ from the defaults, as TOML."""
    top, sections = [], []
    for field in dataclasses.fields(Config):
        value = getattr(preset, field.name)
        if not _is_section(Config, field.name):
            if value != field.default and field.name != "preset":
                top.append(f"{field.name} = {toml(value)}")
        elif value != field.default:
            own = [f for f in dataclasses.fields(value) if getattr(value, f.name) != f.default]
            lines = [f"{f.name} = {toml(getattr(value, f.name))}" for f in own]
            sections += [f"[{field.name}]", *lines]
    return "\n".join(top + sections) + "\n"


def _is_section(owner: type, name: str) -> bool:
    return dataclasses.is_dataclass(_kind(owner, name))


def _kind(owner: type, name: str) -> Any:
    return typing.get_type_hints(owner)[name]


def _docstring(kind: type) -> str:
    return inspect.getdoc(kind) or ""


@program(CHECK, finds=False)
def main(options: Options) -> int:
    """Write or check the page."""
    return write(options, PAGE, page())
