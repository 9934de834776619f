"""The manifests of `deploy/kubernetes`: valid, confined, with probes and enough time to stop."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import kubernetes_validate
import pytest

from tests.support.recipes import DEPLOY, ROOT, containers, given, longest_stop, manifests

#: Of other makers: no schema is at hand.
CUSTOM = "keda.sh/v1alpha1"
VERSIONS = ("1.30", kubernetes_validate.latest_version())
#: What the Secret has to have, as the guide says.
SECRET = {"worker-url", "owner-url", "reader-url", "ui-token"}

PLAIN = [(f"{file}:{one['kind']}", one) for file, one in manifests() if one["apiVersion"] != CUSTOM]
PODS = [(place, container, pod) for place, container, pod in containers()]


def found(kind: str, name: str = "holdfast-worker") -> dict[str, Any]:
    [one] = [one for _, one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name]
    return one


@pytest.mark.req("P19")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("place", "manifest"), PLAIN, ids=[place for place, _ in PLAIN])
def test_kubernetes_knows_everything_in_the_manifest(place: str, manifest: dict[str, Any], version: str):
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_word_that_kubernetes_does_not_know_is_found():
    wrong = copy.deepcopy(found("Deployment"))
    wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 90
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


@pytest.mark.req("P19")
@pytest.mark.parametrize(("place", "container", "pod"), PODS, ids=[place for place, _, _ in PODS])
def test_a_container_may_do_no_more_than_it_needs(place: str, container: dict[str, Any], pod: dict[str, Any]):
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 10001}.items()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert set(container["resources"]["limits"]) == {"memory"}
    assert "USER 10001:10001\n" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.req("P19")
@pytest.mark.parametrize(("place", "container", "pod"), PODS, ids=[place for place, _, _ in PODS])
def test_a_pod_has_longer_to_stop_than_its_grace(place: str, container: dict[str, Any], pod: dict[str, Any]):
    if pod.get("restartPolicy") != "Never":
        assert pod["terminationGracePeriodSeconds"] > longest_stop(container["args"])


def test_every_secret_is_taken_from_the_one_that_the_guide_makes():
    used = {
        (env["valueFrom"]["secretKeyRef"]["name"], env["valueFrom"]["secretKeyRef"]["key"])
        for _, container, _ in PODS
        for env in container["env"]
    }
    assert used == {("holdfast", key) for key in SECRET}


def test_all_containers_run_the_same_image_with_a_tag():
    [image] = {container["image"] for _, container, _ in PODS}
    assert image.rpartition(":")[2] not in ("", "latest")


def test_probes_ask_on_the_ports_that_the_command_opens():
    for place, container, pod in PODS:
        ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", [])}
        probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe") if name in container]
        assert (probes == []) == (pod.get("restartPolicy") == "Never"), place
        option = "--health-port" if container["name"] == "worker" else "--port"
        for probe in probes:
            asked = probe.get("httpGet") or probe["tcpSocket"]
            assert ports[asked["port"]] == given(container["args"], option), place


def test_services_and_budgets_choose_pods_that_exist():
    labels = [
        one["spec"]["template"]["metadata"]["labels"] for _, one in manifests() if one["kind"] in ("Deployment", "Job")
    ]
    for _, one in manifests():
        spec = one["spec"]
        chosen = spec["selector"] if one["kind"] == "Service" else spec.get("selector", {}).get("matchLabels")
        assert chosen is None or chosen in labels


def test_prometheus_is_sent_to_the_port_of_metrics():
    for name, option in (("worker", "--metrics-port"), ("metrics", "--port")):
        template = found("Deployment", f"holdfast-{name}")["spec"]["template"]
        [container] = template["spec"]["containers"]
        assert template["metadata"]["annotations"] == {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": given(container["args"], option),
        }


@pytest.mark.req("P18", "P19")
def test_keda_scales_the_workers_with_the_address_that_they_have():
    scaled = found("ScaledObject")["spec"]
    worker = found("Deployment", scaled["scaleTargetRef"]["name"])
    [container] = worker["spec"]["template"]["spec"]["containers"]
    [trigger] = scaled["triggers"]
    assert trigger["type"] == "postgresql"
    assert trigger["metadata"]["connectionFromEnv"] in [env["name"] for env in container["env"]]
    assert (scaled["minReplicaCount"], trigger["metadata"]["activationTargetQueryValue"]) == (0, "0")


@pytest.mark.req("P18", "P19")
def test_keda_asks_what_holdfast_prints_for_it():
    words = [sys.executable, "-m", "holdfast", "sql", "keda", "--store", "postgresql://worker@db.example.com/books"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"] == printed.strip()
