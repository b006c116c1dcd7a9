"""Predicts costs from the plan alone: bytes on the wire, AES blocks, server memory.

AES blocks are those of the kernels: trees, Conv, check, tags, proofs. The streams of roots and
masks come on top and are small. Bytes and blocks are exact, and tests compare them with those
counted while a round runs. The predicted memory covers everything that grows with the plan, and is
within a tenth and a few megabytes of what rounds take.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.fsl import messages
from torchfsl.fsl.cuckoo.placement import IN_MEMORY_BYTES
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeGroup, TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import CARRY_BITS
from torchfsl.fsl.server import sizes, spool
from torchfsl.fsl.suite import NUM_HASHES
from torchfsl.kernels.portable.proofs import HALF
from torchfsl.submodel.segments import ceil_div, ceil_shift

_CHECK_BLOCKS = 5
"""AES blocks of the check a leaf: three for the leaf hash, two for the fold."""

_LEAF_HASH_KEYS = 3
"""AES blocks that make the keys of the leaf hash, once a group of trees."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Costs of one client and of one round.

    Attributes:
        upload_bytes: from a client to both servers together, headers included; in a session, in
            a round in which its trees go up.
        later_upload_bytes: the same in a later round of a session; equal without sessions.
        download_bytes: by a client that downloads the clear part and retrieves its rows.
        server_aes_blocks: of one server for one client, in a round in which its trees are new.
        later_server_aes_blocks: the same in a later round of a session, whose trees are checked.
        client_aes_blocks: of one client, in a round in which its trees are new.
        server_memory_bytes: what one server holds at once for `max_clients` reports: messages up
            to the spool's window, tables for retrieval, permutations, accumulators, shares and
            sums (`ServerMemory.most`). The model and the kernels' scratch space come on top.
        opening_bytes: from one server to the other to open a round: commitment, counts if they are
            opened first, and share, headers included.
    """

    upload_bytes: int
    later_upload_bytes: int
    download_bytes: int
    server_aes_blocks: int
    later_server_aes_blocks: int
    client_aes_blocks: int
    server_memory_bytes: int
    opening_bytes: int


def predict(plan: Plan, *, cores: int | None = None) -> Prediction:
    """The costs of a plan; memory on that many cores, as `memory` has it."""
    with_trees = plan.with_trees
    later = sum(_server_blocks(plan, s) for s in with_trees) + _proof_blocks(plan)
    checks = sum(_check_blocks(g) for s in with_trees for g in s.groups)
    return Prediction(
        upload_bytes=client_bytes(plan),
        later_upload_bytes=client_bytes(plan, first_round=plan.max_epochs == 1),
        download_bytes=download_bytes(plan),
        server_aes_blocks=later + checks,
        later_server_aes_blocks=later if plan.max_epochs > 1 else later + checks,
        client_aes_blocks=sum(_client_blocks(plan, s) for s in with_trees) + _proving_blocks(plan),
        server_memory_bytes=memory(plan, cores=cores).most,
        opening_bytes=sum(messages.max_bytes(plan, kind) for kind in _opening_kinds(plan)),
    )


def _opening_kinds(plan: Plan) -> list[Kind]:
    """Kinds of a server's messages once it has verified the reports."""
    counts = [Kind.COUNTS] if plan.opens_counts_first else []
    return [Kind.SHARE_COMMIT, *counts, Kind.SHARE]


def client_bytes(plan: Plan, *, first_round: bool = True) -> int:
    """Upload of one client in one round, to both servers together, headers included.

    `first_round` is False for a later round of a session, in which no trees go up.
    """
    kinds = [Kind.REPORT, Kind.REPORT_COMMIT]
    if plan.early and first_round:
        kinds += [Kind.TREES, Kind.TREES_COMMIT]
    return sum(messages.max_bytes(plan, kind) for kind in kinds)


def download_bytes(plan: Plan) -> int:
    """Download of one client in one round: clear model, digests and both answers."""
    kinds = [Kind.MODEL, Kind.MODEL_DIGEST]
    if plan.retrieving:
        kinds += [Kind.ANSWER, Kind.ANSWER]
    return sum(messages.max_bytes(plan, kind) for kind in kinds)


def tree_blocks(group: TreeGroup) -> int:
    """One pass over all trees of a group: two blocks a node above the leaves."""
    nodes = sum(ceil_shift(group.num_leaves, group.depth - level) for level in range(group.depth))
    return 2 * group.num_trees * nodes


def _server_blocks(plan: Plan, segment: TreeSegment) -> int:
    """Aggregation, and retrieval if any, of one client's segment."""
    total = 0
    payload = ceil_div(plan.value_bytes(segment) << segment.nu, 16)
    for group in segment.groups:
        leaves = group.num_trees * group.num_leaves
        total += tree_blocks(group) + leaves * payload
        if segment.retrieve:
            total += tree_blocks(group) + (leaves if segment.tag_bytes else 0)
    return total


def _check_blocks(group: TreeGroup) -> int:
    if not group.check_bytes:
        return 0
    leaves = group.num_trees * group.num_leaves
    return tree_blocks(group) + _CHECK_BLOCKS * leaves + _LEAF_HASH_KEYS


def _client_blocks(plan: Plan, segment: TreeSegment) -> int:
    """Both parties' path to every selected leaf, Conv there, check words and tags."""
    payload = ceil_div(plan.value_bytes(segment) << segment.nu, 16)
    secrets = 2 if segment.tag_bytes else 0
    total = 0
    for group in segment.groups:
        total += group.num_trees * (4 * group.depth + 2 * payload + secrets)
        if group.check_bytes:
            total += 2 * (3 * group.num_trees + _LEAF_HASH_KEYS)
    return total


def _proof_blocks(plan: Plan) -> int:
    """Of one server for one report's proof: carry trees and their check.

    Sums over leaves are made while the report is added up, of the same blocks.
    """
    statement = plan.statement
    if statement is None:
        return 0
    (group,) = statement.carries.groups
    carried = ceil_div(CARRY_BITS << group.nu, 128) * group.num_trees * group.num_leaves
    return tree_blocks(group) + carried + _check_blocks(group)


def _proving_blocks(plan: Plan) -> int:
    """Of one client: both shares of what it sends, and its carry trees."""
    statement = plan.statement
    if statement is None:
        return 0
    total = 0
    for segment in plan.with_trees:
        payload = ceil_div(statement.leaf_values(segment) * plan.ring_bytes(segment), 16)
        total += 2 * segment.num_trees * payload
    (group,) = statement.carries.groups
    carried = ceil_div(CARRY_BITS << group.nu, 128)
    total += group.num_trees * (4 * group.depth + 4 * carried)
    return total + 2 * (3 * group.num_trees + _LEAF_HASH_KEYS)


def memory(plan: Plan, *, cores: int | None = None) -> ServerMemory:
    """Memory of one server, by holder and step by step of a round.

    Proofs are asked side by side, one a core; None stands for as many cores as may have one.
    """
    kinds = {kind: messages.max_bytes(plan, kind) for kind in Kind}
    # The server that all public shares come to holds most: whole messages, parts are views of them.
    # Beyond the spool's window, and the message that reaches it, they lie in files.
    early = kinds[Kind.TREES] if plan.early else 0
    held = plan.max_clients * (kinds[Kind.REPORT] + early)
    share = messages.share_bytes(plan)
    kept = plan.max_clients * lifted_bytes(plan)
    together = min(sizes.proofs_together(plan), plan.max_clients, cores or plan.max_clients)
    first = plan.opens_counts_first
    return ServerMemory(
        lifted=min(kept, spool.WINDOW_BYTES + lifted_bytes(plan)),
        proofs=sizes.proof_bytes(plan) * together,
        together=together,
        messages=min(held, spool.WINDOW_BYTES + max(kinds[Kind.REPORT], early)),
        tables=sum(sizes.table_bytes(s) for s in plan.retrieving),
        keeps_tables=sizes.keeps_tables(plan),
        permutations=sum(
            _permutation_bytes(s.m) for s in plan.with_trees if s.num_bins and not s.binned
        ),
        accumulators=sizes.sums_bytes(plan),
        keeps_sums=sizes.keeps_sums(plan),
        share=share,
        counted=sum(s.m for s in plan.with_trees) if first else 0,
        counts=sum(s.m * plan.ring_bytes(s) for s in plan.with_trees) if first else 0,
        slots=messages.slots_bytes(plan) if first else 0,
        opened=8 * sum(map(plan.sum_values, plan.segments)),
    )


def lifted_bytes(plan: Plan) -> int:
    """Bytes of a report's sums over leaves until its proof is asked."""
    statement = plan.statement
    if statement is None:
        return 0
    parts = 8 * (1 + (statement.ring_bits > HALF))
    return parts * sum(s.num_trees * statement.leaf_values(s) for s in plan.with_trees)


def _permutation_bytes(m: int) -> int:
    """All three, or one of them where they lie in a file."""
    whole = 4 * NUM_HASHES * m
    return whole if whole <= IN_MEMORY_BYTES else 4 * m


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Bytes at one server, in addition to its model and its optimizer's state.

    Attributes:
        lifted: sums over leaves of reports under proofs.
        proofs: what asking proofs side by side takes.
        together: how many are.
        messages: of the clients.
        tables: the model's rows in the layout of the bins, and digests; once for both servers of a
            process.
        keeps_tables: whether they stay after the round's last answer.
        permutations: of the cuckoo table; once for both servers of a process.
        accumulators: running sums.
        keeps_sums: whether they stay after they are gathered.
        share: this server's, and as much again for the peer's.
        counted: rows, where counts are opened first and then those alone that are kept; else 0,
            as are the next two.
        counts: a share of the counts.
        slots: what a server sends of its share after that.
        opened: the sums as signed 64-bit numbers.
    """

    lifted: int
    proofs: int
    together: int
    messages: int
    tables: int
    keeps_tables: bool
    permutations: int
    accumulators: int
    keeps_sums: bool
    share: int
    counted: int
    counts: int
    slots: int
    opened: int

    @property
    def most(self) -> int:
        """Most bytes of one server in a separate process."""
        return self.permutations + max(self._by_step(1))

    @property
    def most_of_both(self) -> int:
        """Of both servers in one process."""
        return self.permutations + max(self._by_step(2))

    def _by_step(self, servers: int) -> tuple[int, ...]:
        """While messages come, proofs are asked, sums are gathered, and these are opened."""
        tables = self.tables if self.keeps_tables else 0
        sums = self.accumulators if self.keeps_sums else 0
        each = self.messages + self.accumulators + self.lifted
        leaves = DIGEST_BYTES * self.counted
        fixing = SEED_BYTES * self.counted + leaves
        steps = (
            self.tables + servers * each,
            tables + servers * (each + self.proofs),
            tables + servers * (each - self.messages) + (servers + 1) * self.share + fixing,
        )
        if not self.counted:
            return (*steps, tables + servers * (sums + 2 * self.share + self.opened))
        # Servers of one process say and open one after the other: the first one's share is gone
        # when the last one opens, which holds the peer's leaves, or both shares with zeros for
        # what stays hidden.
        held = sums + self.share + self.slots + 2 * self.counts + self.counted
        last = held + (servers - 1) * (sums + self.slots)
        return (
            *steps,
            tables + servers * held + max(fixing, self.slots),
            tables + last + (servers - 1) * self.opened + self.share + leaves,
            tables + last + servers * self.opened + 2 * self.share,
        )
