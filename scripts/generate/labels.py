"""Labels of the package: where the sources define and use them, and what each is bound to.

`USES` is written by hand, places come from the syntax trees, and `tests/docs/test_registries.py`
holds one against the other. A line of it is label, primitive, secret, context, places. A part of a
context is `name:bytes`, `name` if its length varies, a "literal", or `name..` for any number of
parts at the end. C is the context of trees and R that of a report (`fsl/dpf/keys.py`).
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from scripts.program import ROOT

PACKAGE: Final = ROOT / "torchfsl"
_PREFIX: Final = b"torchfsl "
_ELSEWHERE: Final = re.compile(r'"(torchfsl [a-zA-Z ]+)"')
"""Labels in C++ and TypeScript, which have no other strings like these."""

USES: Final = """
tree | derive | nonce | C:96, segment | fsl/dpf/keys.py:TreeContext.tree_key
tree | derive | hint nonce | R:144, "carries of the proof" | fsl/dpf/keys.py:ReportContext.carry_keys
tree | derive | draw of QA | | privhfl/comparison_trees.py:Trees.deal
check | derive | nonce | C:96, segment | fsl/dpf/keys.py:TreeContext.check_key
check | derive | hint nonce | R:144, "carries of the proof" | fsl/dpf/keys.py:ReportContext.carry_keys
convert | derive | hint nonce | R:144, segment | fsl/dpf/keys.py:ReportContext.convert_key
convert | derive | hint nonce | R:144, "carries of the proof" | fsl/dpf/keys.py:ReportContext.carry_keys
bits | derive | nonce | C:96, segment | fsl/dpf/keys.py:TreeContext.bits_key
authenticate | derive | nonce | C:96, segment, round:8 | fsl/dpf/keys.py:TreeContext.mac_key
roots | derive | master seed | C:96, segment | fsl/dpf/keys.py:_roots
roots | derive | master seed | R:144, segment | fsl/dpf/keys.py:_roots
roots | derive | master seed | R:144, "carries of the proof" | fsl/dpf/keys.py:_roots
dense | derive | master seed | R:144, segment, party:1 | fsl/dpf/keys.py:ReportContext.dense_mask
proof | derive | master seed | R:144, "slack", party:1 | fsl/dpf/keys.py:ReportContext.proof_mask
proof | derive | master seed | R:144, "elements", party:1 | fsl/dpf/keys.py:ReportContext.proof_mask
proof | derive | verify key | "point", client:8 | fsl/server/proofs.py:Questions._derived
proof | derive | verify key | "weights", client:8 | fsl/server/proofs.py:Questions._derived
proof | derive | verify key | "rho", client:8 | fsl/server/proofs.py:Questions._derived
answer | derive | master seed | C:96, party:1, round:8 | fsl/dpf/keys.py:TreeContext.answer_key
answer | derive | master seed | C:96, party:1, round:8, bound:96 | fsl/dpf/keys.py:TreeContext.answer_key
upload | derive | master seed | C:96, party:1, commitment:32 | fsl/dpf/keys.py:upload_tag
upload | derive | master seed | R:144, party:1, digests.. | fsl/dpf/keys.py:upload_tag
upload | digest | | masked | fsl/dpf/keys.py:ReportContext.masked_digest
seed | seal | | plan:32, party:1, client:8, nonce:16 | fsl/dpf/keys.py:TreeContext.seal_info
commitment | digest | | "trees", C:96, public | fsl/dpf/keys.py:TreeContext.commitment
commitment | digest | | "fetch", C:96, public | fsl/dpf/keys.py:TreeContext.fetch_commitment
commitment | digest | | "report", R:144, public | fsl/dpf/keys.py:ReportContext.commitment
private | digest | | R:144, party:1, seed:16, masked:32 | fsl/dpf/keys.py:ReportContext.private_digest
chunk | digest | | chunk | crypto/kdf.py:_chunk_digest
row digest | derive | digest of rows | plan:32, segment | fsl/dpf/psr.py:row_key
model | digest | | "rows", rows | fsl/bodies.py:ModelDigest.of
model | digest | | "clear", tensors | fsl/bodies.py:_clear_digest
permutation | derive | hash seed | segment, table:1, m:8 | fsl/cuckoo/placement.py:_order_key
bins | derive | hash seed | segment, m:8, bins:8, round:8 | submodel/bins.py:PublicBins.of
rounding | derive | rounding seed | segment, attempt:4 | submodel/update.py:_round
rounding | digest | | path | federation/simulation.py:_Simulation._participate
choice | derive | client's seed | | submodel/stretches.py:draw
coin | digest | | "commitment", template:32, party:1, coin:32 | fsl/plan/coin.py:commitment
coin | digest | | "seed", template:32, coin:32, coin:32 | fsl/plan/coin.py:with_coins
report set | digest | | R:144, verified:1, trees, report, private.. | fsl/server/reports.py:Report.digest
report set | digest | | plan:32, report.. | fsl/server/opening.py:Opening._accept
fold | digest | | set:32, coin:32, coin:32 | fsl/server/opening.py:Opening.agree
fold | derive | verify key | segment, "key" | fsl/dpf/checks.py:fold_masks
fold | derive | verify key | segment, "masks" | fsl/dpf/checks.py:fold_masks
share | digest | | party:1, set:32, salt:32, share | fsl/server/opening.py:Opening._commitment
share | digest | | party:1, set:32, salt:32, root:32, counts | fsl/server/opening.py:Opening._counts_commitment
row | digest | | set:32, party:1, segment, leaf | fsl/server/commitments.py:RowCommitments._leaves
row root | digest | | set:32, party:1, leaves | fsl/server/commitments.py:RowCommitments.root
promise | digest | | plan:32, round:8, place:2, value:32 | fsl/server/audited.py:AuditedRound._promise
noise | derive | noise secret | plan:32, round:8, party:1, coin:32, set:32 | fsl/server/audited.py:AuditedRound.noise_key
noise | derive | noise key | "stream", number:8, chunk:8 | fsl/noise.py:KeyedNoise._words
record | digest | | plan:32, round:8, messages.. | fsl/server/audited.py:AuditedRound.digest
record | sign | key of server | record:32, party:1, commitment:32 | fsl/server/audited.py:AuditedRound.signed, fsl/server/audited.py:AuditedRound.is_signed
pass | sign | key of auditor | record:32, party:1, commitment:32 | fsl/audit/replay.py:Auditor.sign, fsl/server/audited.py:AuditedRound.check_pass
named | sign | key of auditor | plan:32, round:8, party:1, record, commitment, step, why | service/auditor.py:AuditorProcess._said, service/server/auditing.py:AuditDesk._halt
audit key | seal | | plan:32, round:8, party:1 | service/state/audits.py:transcript_info
audit key | sign | key of auditor | info, key | service/auditor.py:AuditorProcess._give_key, service/server/auditing.py:AuditDesk._keep_key
transcript | digest | | transcript | fsl/audit/transcript.py:_digest
transcript | sign | key of server | digest:32 | fsl/audit/transcript.py:parts, fsl/audit/transcript.py:Transcript.is_signed
piece | derive | key of a text | number:8, last:1 | crypto/aead.py:_piece_key
session | digest | | nonce, keys.. | service/net/identity.py:Authorities.session
request | sign | key of client | version, audience, name, token:32, body:32, length:8, nonce | service/net/tokens.py:signed_text
union | | | | reserved
submodel seed | derive | share's seed | plan:32, round:8, sender:8, recipient:8 | sesa/client_round.py:ClientRound._stream
submodel channel | derive | X25519 | plan:32, round:8, sender:40, recipient:40, salt:16 | sesa/channels.py:Channels._key
survivors | digest | | plan:32, round:8, cohort, mask | sesa/messages.py:survivors_digest
homomorphic key | digest | | key | sefl/messages.py:key_digest
encrypted update | digest | | header, body | sefl/messages.py:
encrypted sum | digest | | header, body | sefl/messages.py:
opened sum | digest | | header, body | sefl/messages.py:
signed sum | sign | key of server | digest:32 | sefl/messages.py:encode, sefl/messages.py:check_signature
encrypted receipt | sign | key of aggregator | plan:32, round:8, update:40 | sefl/messages.py:receipt_text
querying QA | derive | X25519 | plan:32, key:32, key:32 | privhfl/querying_party.py:QueryingParty.__init__, privhfl/answering_party.py:AnsweringParty.__init__
querying SQ | derive | X25519 | plan:32, key:32, key:32 | privhfl/querying_party.py:QueryingParty.__init__, privhfl/query_server.py:QueryServer.__init__
querying draw | derive | pair's seed | "weights", clients:16, version:8 | privhfl/draws.py:Draws.__init__
querying draw | derive | pair's seed | "batch", clients:16, numbers:24 | privhfl/draws.py:Draws.__init__
querying draw | derive | key of draws | node:8, purpose | privhfl/draws.py:Draws.key
querying own | derive | seed of a run | party | privhfl/querying.py:Querying._secret
"""


class Use(NamedTuple):
    """One context of one label."""

    label: str
    how: str
    secret: str
    parts: tuple[str, ...]
    places: tuple[str, ...]


def uses() -> list[Use]:
    """The lines of `USES`."""
    found = []
    for line in USES.strip().splitlines():
        label, how, secret, parts, places = (cell.strip() for cell in line.split("|"))
        listed = (tuple(filter(None, cell.split(", "))) for cell in (parts, places))
        found.append(Use(f"torchfsl {label}", how, secret, *listed))
    return found


@functools.cache
def _trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return tuple((p.relative_to(ROOT).as_posix(), ast.parse(p.read_text())) for p in paths)


def _label(node: ast.AST | None) -> str | None:
    """The label that an expression is, if it is one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
        return node.value.decode() if node.value.startswith(_PREFIX) else None
    return None


def defined() -> dict[tuple[str, str], str]:
    """Labels by the file and the name of their constants."""
    return {
        (file, node.target.id): label
        for file, tree in _trees()
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if (label := _label(node.value)) is not None
    }


def literals() -> list[str]:
    """Every label that stands in a Python source, as often as it does."""
    nodes = (node for _, tree in _trees() for node in ast.walk(tree))
    return [label for node in nodes if (label := _label(node)) is not None]


def elsewhere() -> set[str]:
    """Labels in the sources of the client core and of the web client."""
    paths = (path for end in ("*.cc", "*.h", "*.ts") for path in PACKAGE.rglob(end))
    own = (path for path in paths if "node_modules" not in path.parts)
    return {label for path in own for label in _ELSEWHERE.findall(path.read_text())}


def used() -> set[tuple[str, str]]:
    """Labels, and where a source reads their constants: `file:Class.function`."""
    labels, found = defined(), set()
    for file, tree in _trees():
        imported = {
            name.asname or name.name: (f"{node.module}".replace(".", "/") + ".py", name.name)
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        for place, node in _read(tree, ""):
            if isinstance(node, ast.Attribute):
                source = "torchfsl/crypto/kdf.py", node.attr
            else:
                source = imported.get(node.id, (file, node.id))
            if source in labels:
                found.add((labels[source], f"{file.removeprefix('torchfsl/')}:{place}"))
    return found


def _read(node: ast.AST, place: str) -> Iterator[tuple[str, ast.Attribute | ast.Name]]:
    """Names that are read below a node, each with the classes and functions around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute | ast.Name) and isinstance(child.ctx, ast.Load):
            yield place, child
        inner = place
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            inner = f"{place}.{child.name}".lstrip(".")
        yield from _read(child, inner)


def could_be_equal(one: Use, other: Use) -> bool:
    """Whether two contexts may be the same bytes: of one length, and no part tells them apart."""
    for mine, theirs in zip_longest(one.parts, other.parts, fillvalue=""):
        if mine.endswith("..") or theirs.endswith(".."):
            return True
        if not mine or not theirs or _differ(mine, theirs):
            return False
    return True


def _differ(one: str, other: str) -> bool:
    """Whether two parts are different bytes, whatever their values."""
    if one.startswith('"') and other.startswith('"'):
        return one != other
    sizes = [_size(part) for part in (one, other)]
    return None not in sizes and sizes[0] != sizes[1]


def _size(part: str) -> int | None:
    if part.startswith('"'):
        return len(part) - 2
    _, colon, size = part.partition(":")
    return int(size) if colon else None
