"""What `--engine` takes, refuses and loads; a front that is killed goes on from its log."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")

from tests.service import test_node
from tests.service.test_node import Duo, some_updates
from tests.support.federation import mixed_plan
from tests.support.sharded import Twins, in_process
from torchfsl.errors import ParameterError
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.integrations.ray import engine
from torchfsl.service import serving
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.engines import EngineSettings, examine, make_evaluator


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_development_certificates(folder, [])
    return folder


@pytest.fixture
def protected(tmp_path: Path) -> dict[str, str]:
    """Variables with which Ray's token and TLS are on."""
    for name in ("cert", "key", "ca"):
        (tmp_path / name).touch()
    return {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(tmp_path / "cert"), "RAY_TLS_SERVER_KEY": str(tmp_path / "key"),
        "RAY_TLS_CA_CERT": str(tmp_path / "ca"),
    }  # fmt: skip


def test_a_cluster_with_token_and_tls_is_used(protected: dict[str, str]) -> None:
    engine.check_protected(protected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RAY_AUTH_MODE", "", "RAY_AUTH_MODE is not token"),
        ("RAY_AUTH_MODE", "disabled", "RAY_AUTH_MODE is not token"),
        ("RAY_USE_TLS", "0", "RAY_USE_TLS is not 1"),
        ("RAY_TLS_SERVER_CERT", "", "RAY_TLS_SERVER_CERT is not the path of a file"),
        ("RAY_TLS_SERVER_KEY", "/nowhere", "RAY_TLS_SERVER_KEY is not the path of a file"),
        ("RAY_TLS_CA_CERT", "/nowhere", "RAY_TLS_CA_CERT is not the path of a file"),
        ("RAY_AUTH_TOKEN", "", "Ray has no token"),
    ],
)
def test_a_cluster_without_token_or_tls_is_refused(
    protected: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    name: str, value: str, message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with pytest.raises(ParameterError, match=message):
        engine.check_protected(protected | {name: value})
    for variable in protected:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ParameterError, match="engine-insecure"):  # nothing was connected to
        engine.open_engine("ray://127.0.0.1:1", shards=1, authority=bytes(32))


@pytest.mark.parametrize(
    "url", ["ray://", "ray://host", "ray://host:", "ray://:1", "tcp://a:1", ""]
)
def test_a_wrong_address_is_refused(url: str) -> None:
    with pytest.raises(ParameterError, match="HOST:PORT"):
        engine.open_engine(url, shards=1, authority=bytes(32))


def test_the_other_server_s_namespace_is_foreign() -> None:
    own, other = engine.namespace_of(bytes(32)), engine.namespace_of(bytes([1] * 32))
    assert engine.foreign([own, "somebody", own], own) == []
    assert engine.foreign([own, other, other, ""], own) == [other]


def test_settings_name_an_engine(tls: Path) -> None:
    parser = argparse.ArgumentParser()
    serving.add_options(parser)
    usual = ["--party", "0", "--listen", "a:1", "--peer", "https://b:1", "--state", "s",
             "--tls", str(tls)]  # fmt: skip

    def read(*more: str) -> EngineSettings:
        return serving.read_settings(parser.parse_args([*usual, *more]))[0].engine

    assert read() == EngineSettings("", 1, False)
    assert read("--engine", "ray://h:1", "--shards", "3", "--engine-insecure") == EngineSettings(
        "ray://h:1", 3, True
    )
    for more in (["--shards", "2"], ["--engine-insecure"]):
        with pytest.raises(ParameterError, match="needs --engine"):
            read(*more)
    with pytest.raises(ParameterError, match="choose 1 or more"):
        read("--engine", "ray://h:1", "--shards", "0")


def test_settings_of_a_file_name_an_engine(tls: Path, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    text = f'party = 0\nlisten = "a:1"\npeer = "https://b:1"\nstate = "s"\ntls = "{tls}"\n'
    file.write_text(text + 'engine = "ray://h:1"\nshards = 2\nengine-insecure = true\n')
    assert serving.read_file(file).engine == EngineSettings("ray://h:1", 2, True)
    file.write_text(text + 'engine = "ray://h:1"\nengine-insecure = "yes"\n')
    with pytest.raises(ParameterError, match="true or false"):
        serving.read_file(file)


def test_without_an_engine_this_process_computes(tls: Path) -> None:
    files = TlsFiles.in_folder(tls, "server-0")
    assert make_evaluator(EngineSettings(), files, 0) is LocalEvaluator
    for call in (make_evaluator, examine):
        with pytest.raises(ParameterError, match="at the start of --engine"):
            call(EngineSettings("tcp://host:1"), files, 0)


def test_ray_is_loaded_by_nobody_who_does_not_name_it() -> None:
    code = (
        "import sys, torchfsl.service.command as c, torchfsl.service.server.process\n"
        "import torchfsl.service.server.engines, torchfsl.service.doctor\n"
        "c.make_parser()\n"
        "bad = [n for n in sys.modules if n.split('.')[0] == 'ray' or '.integrations' in n]\n"
        "assert not bad, bad\n"
        "import torchfsl.integrations.ray.engine\n"
        "assert 'ray' not in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def authorities(tls: Path) -> Authorities:
    return TlsFiles.in_folder(tls, "server-0").authorities()


@pytest.mark.parametrize("every", [1, 3, 7])
def test_a_front_that_is_killed_anywhere_goes_on_from_its_log(
    every: int, tmp_path: Path, authorities: Authorities, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shards end with it; those of the front that follows hold nothing."""
    monkeypatch.setattr(sizes, "WINDOW_REPORTS", 2)
    made = functools.partial(Twins, open_grid=in_process(2))
    settings = dataclasses.replace(test_node.SETTINGS, evaluator=made)
    plan = mixed_plan()
    updates = some_updates(plan, 0)
    calm = Duo(tmp_path / "calm", authorities, plan)
    calm.play(1, updates)
    monkeypatch.setattr(test_node, "SETTINGS", settings)
    duo = Duo(tmp_path / "crashed", authorities, plan)
    events = 0

    def crash() -> None:
        nonlocal events
        events += 1
        if events % every == 0:
            duo.crash(events % 2)

    duo.after_event = crash
    duo.play(1, updates)
    assert duo.digests() == calm.digests()
    assert events > 20
