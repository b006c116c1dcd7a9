"""The Kubernetes manifests: Kubernetes' own schemas, and what a server of ours expects of them."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchfsl.service.command import make_parser
from torchfsl.service.local import LoopbackServers
from torchfsl.service.serving import read_settings

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "server.yml").read_text()))
SET = next(one for one in MANIFESTS if one["kind"] == "StatefulSet")
POD: dict[str, Any] = SET["spec"]["template"]["spec"]
(SERVER,) = POD["containers"]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def test_there_is_one_server_on_one_disk_that_nothing_else_mounts() -> None:
    assert SET["spec"]["replicas"] == 1
    claims = {one["metadata"]["name"]: one["spec"] for one in SET["spec"]["volumeClaimTemplates"]}
    assert set(claims) == {"state", "witness"}  # not in one snapshot
    assert all(claim["accessModes"] == ["ReadWriteOncePod"] for claim in claims.values())


def test_it_may_nothing_but_write_its_state() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["automountServiceAccountToken"] is False
    assert SERVER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {m["name"] for m in SERVER["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"state", "witness", "scratch"}
    user = POD["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}\n" in (FOLDER.parent / "Dockerfile").read_text()


def test_the_settings_are_a_servers_and_fit_ports_and_mounts(tmp_path: Path) -> None:
    command = ["serve", "--config", str(FOLDER / "serve.toml")]
    settings, _ = read_settings(make_parser().parse_args(command))
    ports = {port["name"]: port["containerPort"] for port in SERVER["ports"]}
    assert settings.listen == f"0.0.0.0:{ports['grpc']}"
    assert settings.metrics == f"0.0.0.0:{ports['metrics']}"
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in SERVER["volumeMounts"]}
    assert settings.state.parent == mounts["state"]
    assert settings.tls.key.parent == mounts["tls"]
    assert settings.witness is not None
    assert settings.witness.parent == mounts["witness"]
    services = [one["spec"]["ports"] for one in MANIFESTS if one["kind"] == "Service"]
    assert {port["targetPort"] for offered in services for port in offered} == set(ports)


def test_what_the_probes_ask_for_is_answered(tmp_path: Path) -> None:
    with LoopbackServers(tmp_path, clients=0) as servers:
        servers.start(0)
        for probe in PROBES:
            asked = SERVER[probe]["httpGet"]
            assert asked["port"] == "metrics"
            url = f"http://127.0.0.1:{servers.metrics_ports[0]}{asked['path']}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.status == 200, probe
    assert SERVER["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert SERVER["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_what_is_named_exists() -> None:
    """Without a schema or a cluster: selectors, ports, mounts, services, settings."""
    labels = SET["spec"]["template"]["metadata"]["labels"].items()
    ports = {port["name"] for port in SERVER["ports"]}
    for one in MANIFESTS:
        assert one["apiVersion"] in ("v1", "apps/v1", "networking.k8s.io/v1"), one["kind"]
        spec = one["spec"]
        selectors = [spec.get("selector"), spec.get("podSelector")]
        (selector,) = [found for found in selectors if found]
        assert selector.get("matchLabels", selector).items() <= labels
        for rule in spec.get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= ports
    assert all(SERVER[probe]["httpGet"]["port"] in ports for probe in PROBES)
    names = {one["metadata"]["name"] for one in MANIFESTS if one["kind"] == "Service"}
    assert SET["spec"]["serviceName"] in names
    volumes = [one["name"] for one in POD["volumes"]]
    volumes += [one["metadata"]["name"] for one in SET["spec"]["volumeClaimTemplates"]]
    assert sorted(volumes) == sorted({mount["name"] for mount in SERVER["volumeMounts"]})
    kustomization = yaml.safe_load((FOLDER / "kustomization.yml").read_text())
    (made,) = kustomization["configMapGenerator"]
    (settings,) = [one for one in POD["volumes"] if "configMap" in one]
    assert settings["configMap"]["name"] == made["name"]
    assert {one["name"] for one in kustomization["images"]} == {SERVER["image"]}


@pytest.fixture(scope="module")
def built() -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(FOLDER)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kustomize_puts_them_together(built: str) -> None:
    kinds = {one["kind"] for one in yaml.safe_load_all(built)}
    assert kinds == {one["kind"] for one in MANIFESTS} | {"ConfigMap"}
    assert "registry.example/torchfsl:0.1.0" in built


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one["metadata"]["name"])
def test_kubernetes_schemas_take_each(manifest: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    schemas.validate(manifest, schemas.latest_version(), strict=True)
