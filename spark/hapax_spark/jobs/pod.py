"""Spark's settings for a driver in a pod, from its environment variables and from the pod's description.

| variable | sets |
|---|---|
| `POD_NAME`, `POD_NAMESPACE`, `POD_IP` | the driver's pod, which owns its executors: they are deleted with it |
| `HAPAX_SPARK_EXECUTORS` | `spark.executor.instances` (1) |
| `HAPAX_SPARK_EXECUTOR_CORES` | `spark.executor.cores` (1) |
| `HAPAX_SPARK_EXECUTOR_MEMORY` | `spark.executor.memory` (1g) |
| `HAPAX_SPARK_DRIVER_MEMORY` | `spark.driver.memory` (1g) |
| `HAPAX_SPARK_CHECKPOINT` | `spark.sql.streaming.checkpointLocation`, and the jobs' `--checkpoint` |
| `HAPAX_SPARK_EXECUTOR_TEMPLATE` | the executors' pod template, as JSON, in the place of the image's `executor.yaml` |
| `HAPAX_SPARK_CONF` | further settings as a JSON object; they override the others |

Executors have the driver's image, pull secrets and labels, and those of its volumes that several machines may mount
(claims with ReadWriteMany), because a query with state also writes its checkpoint from the executors.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from hapax_spark.jobs.session import DAEMON, REDACTION

TEMPLATE: Final = Path(__file__).parents[1] / "executor.yaml"
GIVEN_TEMPLATE: Final = Path("/tmp/hapax-executor.json")
DRIVER_PORT: Final = 7078
BLOCK_MANAGER_PORT: Final = 7079
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ASKING_S: Final = 20.0
_COMPONENT: Final = "app.kubernetes.io/component"
_OURS: Final = ("app.kubernetes.io/", "hapax.dev/")


class PodError(Exception):
    """The pod lacks something; the message is one sentence."""


Ask = Callable[[str], Any]
"""The API server's answer to GET of a path; raises PodError."""


def settings(environment: Mapping[str, str], ask: Ask) -> dict[str, str]:
    """All settings of the session. Outside of a pod (no POD_NAME), only those that do not concern Kubernetes."""
    found = dict((("spark.driver.memory", environment.get("HAPAX_SPARK_DRIVER_MEMORY", "1g")), DAEMON, REDACTION))
    if checkpoint := environment.get("HAPAX_SPARK_CHECKPOINT"):
        found["spark.sql.streaming.checkpointLocation"] = checkpoint
    if environment.get("POD_NAME"):
        found |= _in_pod(environment, ask)
    return found | _further(environment.get("HAPAX_SPARK_CONF", ""))


def _further(text: str) -> dict[str, str]:
    try:
        given = json.loads(text or "{}")
        return {str(name): _text(value) for name, value in given.items()}
    except (ValueError, AttributeError):
        raise PodError(
            'HAPAX_SPARK_CONF must be a JSON object of Spark settings, such as {"spark.ui.enabled": "false"}'
        ) from None


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _in_pod(environment: Mapping[str, str], ask: Ask) -> dict[str, str]:
    missing = [name for name in ("POD_NAMESPACE", "POD_IP") if not environment.get(name)]
    if missing:
        raise PodError(f"{' and '.join(missing)} must be set together with POD_NAME (downward API)")
    template = environment.get("HAPAX_SPARK_EXECUTOR_TEMPLATE", "")
    mounted = _written(template) if template else frozenset()
    name, namespace, address = (environment[each] for each in ("POD_NAME", "POD_NAMESPACE", "POD_IP"))
    host = environment.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    space = f"/api/v1/namespaces/{namespace}"
    return {
        "spark.master": f"k8s://https://{f'[{host}]' if ':' in host else host}:{port}",
        "spark.submit.deployMode": "client",
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,  # executors connect to this address
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.driver.pod.name": name,
        "spark.kubernetes.executor.podTemplateFile": str(GIVEN_TEMPLATE if template else TEMPLATE),
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.executor.instances": environment.get("HAPAX_SPARK_EXECUTORS", "1"),
        "spark.executor.cores": environment.get("HAPAX_SPARK_EXECUTOR_CORES", "1"),
        "spark.executor.memory": environment.get("HAPAX_SPARK_EXECUTOR_MEMORY", "1g"),
        # Memory for Python workers with Arrow beside the JVM; the same share as spark-submit's for Python.
        "spark.executor.memoryOverheadFactor": "0.4",
        **_as_driver(
            ask(f"{space}/pods/{name}"), lambda claim: ask(f"{space}/persistentvolumeclaims/{claim}"), mounted),
    }  # fmt: skip


def _written(template: str) -> frozenset[str]:
    """Writes the template to a file. Returns the names of its volumes, which the executors have by it."""
    try:
        volumes = frozenset(each["name"] for each in json.loads(template)["spec"].get("volumes", ()))
        GIVEN_TEMPLATE.write_text(template)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PodError(f"HAPAX_SPARK_EXECUTOR_TEMPLATE must be a pod template as JSON: {error!r}") from None
    except OSError as error:
        raise PodError(f"the executors' pod template cannot be written: {error}") from error
    return volumes


def _as_driver(pod: Any, claim: Ask, mounted: Collection[str]) -> dict[str, str]:
    """The settings that executors take from this pod. `mounted`: volumes that they have without them."""
    containers = pod["spec"]["containers"]
    container = next((each for each in containers if each.get("name") == "driver"), containers[0])
    found = {
        "spark.kubernetes.container.image": container["image"],
        "spark.kubernetes.container.image.pullPolicy": container.get("imagePullPolicy", "IfNotPresent"),
    }
    if secrets := [each["name"] for each in pod["spec"].get("imagePullSecrets", ())]:
        found["spark.kubernetes.container.image.pullSecrets"] = ",".join(secrets)
    labels = {name: value for name, value in pod["metadata"].get("labels", {}).items() if name.startswith(_OURS)}
    for name, value in {**labels, _COMPONENT: "spark-executor"}.items():
        found[f"spark.kubernetes.executor.label.{name}"] = value
    mounts = {each["name"]: each for each in container.get("volumeMounts", ())}
    for volume in pod["spec"].get("volumes", ()):
        name = volume["name"]
        if "persistentVolumeClaim" not in volume or name not in mounts or name in mounted:
            continue
        claimed = volume["persistentVolumeClaim"]["claimName"]
        if "ReadWriteMany" in claim(claimed)["spec"]["accessModes"]:
            setting = f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{name}"
            found[f"{setting}.options.claimName"] = claimed
            found[f"{setting}.mount.path"] = mounts[name]["mountPath"]
            found[f"{setting}.mount.readOnly"] = str(mounts[name].get("readOnly", False)).lower()
            if sub := mounts[name].get("subPath"):
                found[f"{setting}.mount.subPath"] = sub
    return found


def api_server(environment: Mapping[str, str]) -> Ask:
    """Calls the API server with the pod's service account."""

    def ask(path: str) -> Any:
        host = environment.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        server = f"https://{f'[{host}]' if ':' in host else host}:{environment.get('KUBERNETES_SERVICE_PORT', '443')}"
        try:
            token = (_ACCOUNT / "token").read_text()
            trusted = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
            request = urllib.request.Request(server + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=_ASKING_S, context=trusted) as answer:
                return json.load(answer)
        except FileNotFoundError:
            raise PodError(
                "the pod has no service account's token, without which a driver cannot create executors") from None
        except urllib.error.HTTPError as error:
            raise PodError(
                f"the API server answered {error.code} to GET {path}: the driver's service account needs the rights "
                "of the chart's `spark.enabled`") from None
        except OSError as error:
            raise PodError(f"GET {path} of the API server failed: {error}") from error

    return ask
