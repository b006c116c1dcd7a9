"""Rules of docs/style.md that a pattern can find. `scripts.checks.prose` counts what they hit.

Each rule has a sentence that it must hit and one that it must not; a test holds every rule to both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_START = r"(?:^|(?<=[.:;!?] ))"
"""The beginning of a sentence."""
_NO_QUESTION = r"(?![^.?!]*\?)"


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern.

    Attributes:
        name: what the baseline calls it.
        pattern: regular expression that finds it.
        write: what to write in its place.
        bad: sentence that it hits.
        good: the same in plain English.
    """

    name: str
    pattern: str
    write: str
    bad: str
    good: str
    regex: re.Pattern[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern."""
        object.__setattr__(self, "regex", re.compile(self.pattern))


RULES: Final = (
    Rule("negated-noun",
         r"\b(?<![Tt]here )(?:is|are|was|were|be) no (?!longer\b|more\b|less\b|better\b|worse\b"
         r"|different\b|other\b|earlier\b|later\b|need\b|way\b|limit\b|difference\b|reason\b|point\b|such\b"
         r"|effect\b|cost\b|one\b|guarantee\b)[a-z`{]\w*",
         "negate the verb: is not a ...; in a message: expected ..., got ...",
         "A tensor is no handle.", "A tensor is not a handle."),
    Rule("none-as-noun", r"\b(?:ids?|numbers?|that|which|it) (?:is|are) none\b",
         "say what is wrong: invalid row ids",
         "It raises for ids that are none.", "It raises for invalid ids."),
    Rule("says-so",
         r"\bsays? so\b|\b(?:is|are|was|were) (?:told|said)\b|\btold (?:of|by) (?:the|what|how)\b",
         "name who logs, raises, warns or reports",
         "A client with too many rows is told.", "A client with too many rows raises an error."),
    Rule("programs-talk", r"\b(?:hears?|heard|speaks?) (?:of|that|the same|`)",
         "receives, supports, uses",
         "The server hears of the round.", "The server receives the number of the round."),
    Rule("of-now", r"\bof (?:now|before)\b|\bversions before\b",
         "current, earlier", "It keeps the state of now.", "It keeps the current state."),
    Rule("owes", r"\bowe[sd]?\b", "residual, unsent update",
         "What a client owes is sent later.", "The client sends its residual later."),
    Rule("in-silence", r"\bin silence\b", "silently",
         "Nothing is dropped in silence.", "Nothing is dropped silently."),
    Rule("but-for", r"\bbut for\b|\b[Aa]ll but\b|\bno(?:body|ne|thing) but\b", "except",
         "All but the first run offline.", "All commands except the first run offline."),
    Rule("beside", r"\b[Bb]eside\b", "next to, in addition to, compared with",
         "Beside counts it has weights.", "In addition to counts, it has weights."),
    Rule("too-at-end", r", too(?=[.,:;)])", "also, before the verb",
         "The helper stores it, too.", "The helper also stores it."),
    Rule("who-as-subject",
         _START + r"(?:Who|Whoever|What|Whatever) (?:\w+s|was|are|they|you|a|an|the|one|clients"
         r"|servers)\b" + _NO_QUESTION,
         "name the actor: a client that ..., users who ...",
         "Who asks often enough learns the model.", "A client that asks often learns the model."),
    Rule("those-as-subject", _START + r"(?:Those|Others|One|Such) (?:that|who|which|of which)\b",
         "repeat the noun: rows that ..., clients that ...",
         "Those that are not sent stay.", "Rows that the client does not send stay."),
    Rule("where-for-if",
         _START + r"Where (?:it|a|an|the|they|others|one|no|rows?|tables?|clients?)\b"
         + _NO_QUESTION,
         "If or When", "Where a row is missing, it raises.", "If a row is missing, it raises."),
    Rule("rate-with-a",
         r"\b(?:bytes?|[kMG]B|seconds?|ms|lines?|values|rows|calls?|weight|count|blocks|budgets?"
         r"|reports?|rounds?) an? (?:client|round|row|server|position|leaf|block|tree|task|step"
         r"|key|day|table|report|process|second)\b",
         "per", "It uploads 40 bytes a client.", "It uploads 40 bytes per client."),
    Rule("of-its-own", r"\bof (?:its|their|one's|your|his|our) own\b", "separate, custom",
         "Write a loop of your own.", "Write a custom loop."),
    Rule("nobody", r"\b[Nn]obody\b", "no one, or name the party",
         "Rows that nobody sent stay.", "Rows that no client sent stay."),
    Rule("old-words",
         r"\b(?:nothing of|good for|held to|by itself|in vain|dearer|shall|thereof|whereby"
         r"|whose turn|all the same)\b",
         "a plain verb or adverb",
         "It learns nothing of a client.", "It learns no data about a client."),
    Rule("whole-as-adverb",
         r"\b(?:go(?:es)?|sent|sends?|travels?|downloads?|downloaded|trained|fetched) whole\b",
         "dense, in full", "Dense tables are sent whole.", "The client sends tables in full."),
    Rule("takes-part", r"\b(?:tak(?:e|es|ing) (?:no )?part|took part)\b", "participate",
         "Ten clients take part.", "Ten clients participate."),
    Rule("same-bits", r"\b(?:the )?same bits\b|\bequal bits\b|\bto the bit\b", "bit-identical",
         "Both give the same bits.", "Both results are bit-identical."),
    Rule("two-marks", r"[;:] [^.!?\n|;:]*; ", "two sentences",
         "It stops: the disk is full; free some space; start again.",
         "It stops because the disk is full. Free some space."),
)  # fmt: skip
