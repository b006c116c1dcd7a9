from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.small_tasks import (
    SMALL_PRESETS,
    flat,
    small_config,
    small_federation,
    small_task,
)
from torchfsl.errors import Error
from torchfsl.fsl import messages
from torchfsl.fsl.in_process import TwoServers
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.server.server import Server
from training.attached import make_settings
from training.config import Config
from training.federation import Federation, build
from training.presets import NARROW
from training.section_checks import ConfigError
from training.sections import Encoding
from training.tasks.build import build_task
from training.trainer import RoundRecord, Trainer


def run(config: Config) -> tuple[Federation, list[RoundRecord]]:
    task = small_task(config)
    federation = build(config, task)
    records: list[RoundRecord] = []
    Trainer(config, task, federation).run(1, records.append)
    return federation, records


def servers_of(federation: Federation) -> tuple[Server, ...]:
    two = federation.audit.aggregation
    assert isinstance(two, TwoServers)
    return two.servers


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_sampled_blocks_go_with_either_rounding(rounding: Any) -> None:
    found = []
    for aggregation in ("plain", "fsl"):
        config = small_config("cnn-mnist", aggregation)
        config = dataclasses.replace(
            config,
            above_break_even="keep",
            rest=dataclasses.replace(config.rest, policy="sample", amount=0.02),
            encoding=dataclasses.replace(config.encoding, rounding=rounding),
        )
        federation, records = run(config)
        assert all(record.exact for record in records)
        found.append(federation.model_sha256())
    assert found[0] == found[1]


@pytest.mark.parametrize("preset", SMALL_PRESETS)
def test_plain_and_fsl_end_with_the_same_model(preset: str) -> None:
    plain, _ = run(small_config(preset, "plain"))
    fsl, records = run(small_config(preset, "fsl"))
    assert all(record.exact for record in records)
    assert {record.exact_retrieval for record in records} == {True if preset == "din" else None}
    assert plain.model_sha256() == fsl.model_sha256()
    for record in records:
        assert sum(record.phases.values()) == record.upload_bytes + record.download_bytes
        assert {"report", "report_commit", "model", "model_digest"} <= set(record.phases)
    mechanisms = {segment.name: segment.mechanism for segment in fsl.plan.segments}
    assert set(mechanisms.values()) <= {"dpf", "full-domain", "dense"}
    assert set(mechanisms.values()) != {"dense"}
    one, two = servers_of(fsl)
    assert one.model.digest() == two.model.digest()


def test_another_seed_gives_another_model() -> None:
    first, _ = run(small_config("din", "plain", seed=3))
    second, _ = run(small_config("din", "plain", seed=4))
    assert first.model_sha256() != second.model_sha256()


def test_dense_sends_everything_and_gives_the_model_of_plain_where_nothing_is_left_out() -> None:
    plain, few = run(small_config("din", "plain"))
    dense, all_of_it = run(small_config("din", "dense"))
    assert [segment.mechanism for segment in dense.plan.segments] == ["dense"]
    assert all(record.exact for record in all_of_it)
    assert plain.model_sha256() == dense.model_sha256()
    values = sum(parameter.numel() for parameter in dense.model.parameters())
    assert 0 < all_of_it[0].upload_bytes - 4 * values < 300
    assert few[0].upload_bytes < all_of_it[0].upload_bytes


@pytest.mark.parametrize(
    ("rest", "rows"), [(16, 0), (0, 16), (16, 24), (0, 0)], ids=["rest", "rows", "both", "neither"]
)
def test_rings_of_segments_give_dense_the_model_of_plain_and_fsl(rest: int, rows: int) -> None:
    encoding = Encoding(rest_ring_bits=rest, rows_ring_bits=rows, rest_clip=0.125)
    if rest:
        encoding = dataclasses.replace(encoding, rest_clips=("*.bias=0.5", "head.*=0.25"))
    found = {}
    for aggregation in ("plain", "fsl", "dense"):
        config = dataclasses.replace(small_config("din", aggregation), encoding=encoding)  # type: ignore[arg-type]
        federation, records = run(config)
        assert all(record.exact for record in records)
        found[aggregation] = federation
    assert len({federation.model_sha256() for federation in found.values()}) == 1
    assert found["dense"].plan.rings == found["fsl"].plan.rings == {rest or 32, rows or 32}
    assert all(segment.is_dense for segment in found["dense"].plan.segments)


def test_stochastic_rounding_is_the_same_under_plain_and_fsl() -> None:
    def stochastic(aggregation: str) -> Config:
        config = small_config("din", aggregation)  # type: ignore[arg-type]
        encoding = dataclasses.replace(config.encoding, rounding="stochastic", frac_bits=8)
        return dataclasses.replace(config, encoding=encoding)

    plain, _ = run(stochastic("plain"))
    fsl, records = run(stochastic("fsl"))
    assert all(record.exact for record in records)
    assert plain.model_sha256() == fsl.model_sha256()


def narrow(aggregation: str) -> Config:
    return dataclasses.replace(small_config("din", aggregation), encoding=NARROW)  # type: ignore[arg-type]


def test_rings_of_16_bits_are_exact_and_the_same_under_plain_and_fsl() -> None:
    plain, _ = run(narrow("plain"))
    fsl, records = run(narrow("fsl"))
    assert fsl.plan.rings == {16}
    assert all(record.exact for record in records)
    assert plain.model_sha256() == fsl.model_sha256()
    wide, more = run(small_config("din", "fsl"))
    assert wide.plan.rings == {32}
    assert more[0].upload_bytes > records[0].upload_bytes


@pytest.mark.parametrize("download", ["float16", "bfloat16"])
def test_a_rounded_download_is_half_and_the_same_under_plain_and_fsl(download: Any) -> None:
    encoding = dataclasses.replace(NARROW, download=download)
    plain, _ = run(dataclasses.replace(narrow("plain"), encoding=encoding))
    fsl, records = run(dataclasses.replace(narrow("fsl"), encoding=encoding))
    assert all(record.exact and record.exact_retrieval for record in records)
    assert plain.model_sha256() == fsl.model_sha256()
    encoding = dataclasses.replace(NARROW, download="full")
    whole, more = run(dataclasses.replace(narrow("fsl"), encoding=encoding))
    assert records[0].download_bytes < 0.7 * more[0].download_bytes
    assert whole.model_sha256() != fsl.model_sha256(), "clients trained on other numbers"


def test_parts_of_the_rest_have_rings_of_their_own_and_stay_the_same_under_plain_and_fsl() -> None:
    clips = ("attention.*=0.001", "head.4.*=1.0")
    encoding = dataclasses.replace(NARROW, rest_clip=0.25, rest_clips=clips)
    plain, _ = run(dataclasses.replace(narrow("plain"), encoding=encoding))
    fsl, records = run(dataclasses.replace(narrow("fsl"), encoding=encoding))
    assert all(record.exact for record in records)
    assert plain.model_sha256() == fsl.model_sha256()
    found = {s.name: s.encoding for s in fsl.plan.segments if s.name != "rows4"}
    bits = {name: one.frac_bits for name, one in found.items() if one is not None}
    assert bits["attention.*"] > bits["rest"] + 6 > bits["head.4.*"] + 6


@pytest.mark.parametrize("text", ["attention.*", "=1", "a=0", "a=-1", "a=nan", "a=b"])
def test_an_odd_clip_of_a_part_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rest_clips has"):
        dataclasses.replace(NARROW, rest_clips=(text,))


def test_other_protocols_keep_the_encoding_of_all_values() -> None:
    config = narrow("sefl")
    assert make_settings(config, build_task(config)).encodings == {}
    config = narrow("dense")
    parts = {part for part, _ in NARROW.parts}
    assert set(make_settings(config, build_task(config)).encodings) == {"rest", *parts}


def test_bytes_do_not_depend_on_the_cohort() -> None:
    _, records = run(small_config("din", "fsl"))
    assert len({record.upload_bytes for record in records}) == 1
    assert len({record.download_bytes for record in records}) == 1


def test_a_client_holds_only_the_rows_it_retrieved() -> None:
    config, task, federation = small_federation("din", "fsl")
    seen: list[tuple[int, int]] = []

    hook = federation.model.item_embedding.register_forward_pre_hook(  # type: ignore[union-attr]
        lambda module, _: seen.append(
            (int(torch.isnan(module.weight).any(dim=1).sum()), len(module.weight))
        )
    )
    Trainer(config, task, federation).run_round(1)
    hook.remove()
    assert seen
    assert all(0 < hidden < rows for hidden, rows in seen)


@pytest.mark.parametrize("kind", [Kind.REPORT, Kind.REPORT_COMMIT, Kind.TREES])
def test_one_flipped_byte_of_one_report_is_noticed(kind: Kind) -> None:
    reference, _ = run(dataclasses.replace(small_config("din", "plain"), rounds=1))
    config, task, federation = small_federation("din", "fsl")
    two = federation.audit.aggregation
    assert isinstance(two, TwoServers)
    send, flipped = two.link.send, []

    def flip(party: int, message: bytes) -> None:
        if not flipped and kind_of(federation, message) is kind:
            flipped.append(party)
            middle = len(message) * 3 // 4
            altered = bytes([message[middle] ^ 1])
            message = message[:middle] + altered + message[middle + 1 :]
        send(party, message)

    two.link.send = flip  # type: ignore[method-assign]
    try:
        record = Trainer(config, task, federation).run_round(1)
    except Error:
        assert flipped
        return
    assert flipped
    assert not record.exact
    assert federation.model_sha256() != reference.model_sha256()


def kind_of(federation: Federation, message: bytes) -> Kind:
    kinds = (Kind.REPORT, Kind.REPORT_COMMIT, Kind.TREES, Kind.TREES_COMMIT)
    return messages.decode(federation.plan, message, *kinds).kind


def test_a_row_changed_on_the_servers_is_what_the_client_reads() -> None:
    config, task, federation = small_federation("din", "fsl")
    trainer = Trainer(config, task, federation)
    client = trainer.cohort(1)[0]
    row = int(task.work(1, client).rows["item_embedding.weight"][0])
    for server in servers_of(federation):
        server.model.state["item_embedding.weight"][row] = 0.625
    read: list[np.ndarray] = []

    def watch(module: torch.nn.Module, _: object) -> None:
        read.append(module.weight[row].detach().clone().numpy())  # type: ignore[union-attr]

    hook = federation.model.item_embedding.register_forward_pre_hook(watch)  # type: ignore[union-attr]
    record = trainer.run_round(1)
    hook.remove()
    assert (read[0] == 0.625).all()
    assert record.exact_retrieval


def test_the_audit_notices_a_wrong_sum() -> None:
    config, task, federation = small_federation("din", "plain")
    plain, audit = federation.audit.aggregation, federation.audit
    close = plain.close_round

    def off_by_one() -> object:
        plain._sum.sums["rest"][0, 0] += 1  # type: ignore[attr-defined]
        return close()

    plain.close_round = off_by_one  # type: ignore[method-assign, assignment]
    record = Trainer(config, task, federation).run_round(1)
    assert not record.exact
    assert audit.exact_retrieval


def test_training_changes_the_model_and_learns() -> None:
    config = dataclasses.replace(
        small_config("din", "plain"), rounds=15, clients_per_round=15, eval_every=15
    )
    task = small_task(config)
    federation = build(config, task)
    before = flat(federation.server_model.state).copy()
    records: list[RoundRecord] = []
    Trainer(config, task, federation).run(1, records.append)
    assert not np.array_equal(flat(federation.server_model.state), before)
    assert [bool(record.metrics) for record in records].count(True) == 2
    assert records[-1].metrics["auc"] > task.baselines()["untrained_auc"] + 0.05
    assert sum(record.clipped_values for record in records) == 0


def test_batchnorm_statistics_stay() -> None:
    federation, _ = run(small_config("din", "plain"))
    norm = federation.model.norm
    assert not norm.running_mean.any()  # type: ignore[union-attr]
    assert (norm.running_var == 1).all()  # type: ignore[union-attr]
