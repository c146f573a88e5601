"""The API server as grpoctl needs it: one context of a kubeconfig, objects as dicts, errors in words."""

import json
import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.watch.watch import iter_resp_lines
from urllib3.exceptions import HTTPError, ReadTimeoutError
from yaml import YAMLError

from grpo_api import names
from grpoctl.errors import CliError, Forbidden, Silence

Object = dict[str, Any]
TIMEOUT = (10, 60)
"""Seconds to connect, and between two reads."""
WATCH_SECONDS = 50
_GRPOJOBS: dict[str, Any] = {"group": names.GROUP, "version": names.VERSION, "plural": names.PLURAL}


class Cluster:
    """Calls on one namespace. Methods raise CliError, with the server's own words where it has any."""

    def __init__(self, api: client.ApiClient, namespace: str, options: dict[str, str] | None = None) -> None:
        """`options` leads a further grpoctl command to this cluster and namespace."""
        self.namespace, self._options = namespace, options or {}
        self._host = api.configuration.host
        self._custom, self._core = client.CustomObjectsApi(api), client.CoreV1Api(api)

    @staticmethod
    def connect(kubeconfig: str | None, context: str | None, namespace: str | None) -> "Cluster":
        """By --kubeconfig, else KUBECONFIG, else ~/.kube/config; the namespace is the context's where none is given."""
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        options = client.Configuration()
        options.retries = False
        try:
            contexts, active = config.list_kube_config_contexts(config_file=kubeconfig)
            chosen = active if context is None else next((item for item in contexts if item["name"] == context), None)
            if chosen is None:
                known = ", ".join(item["name"] for item in contexts)
                raise CliError(f"the kubeconfig has no context {context}; it has: {known}")
            config.load_kube_config(config_file=kubeconfig, context=chosen["name"], client_configuration=options)
        except (ConfigException, OSError, YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
            # What is no kubeconfig fails in the client wherever its form first matters.
            said = isinstance(error, ConfigException | OSError)
            why = _first_line(error) if said else "the file holds no kubeconfig"
            raise CliError(
                f"no usable kubeconfig ({kubeconfig or 'KUBECONFIG, ~/.kube/config'}): {why}; "
                "set KUBECONFIG or pass --kubeconfig"
            ) from None
        usual = chosen["context"].get("namespace") or "default"
        given = {
            "--kubeconfig": kubeconfig,
            "--context": context,
            "-n": namespace if namespace != usual else None,
        }
        told = {option: value for option, value in given.items() if value}
        return Cluster(client.ApiClient(options), namespace or usual, told)

    def command(self, *arguments: str) -> str:
        """A grpoctl command that speaks of this namespace and cluster, for a user to copy."""
        given = {key: value for key, value in self._options.items() if key != "-n" or "-A" not in arguments}
        options = [text for option in given.items() for text in option]
        return shlex.join(["grpoctl", *arguments, *options])

    def create_job(self, job: Object) -> Object:
        with self._told(f"the API server refused GRPOJob {job['metadata']['name']}"):
            return _object(
                self._custom.create_namespaced_custom_object(
                    **_GRPOJOBS, namespace=self.namespace, body=job, field_validation="Strict", _request_timeout=TIMEOUT
                )
            )

    def find_job(self, name: str) -> Object | None:
        """The job, or None where the namespace has none of that name."""
        with self._told(f"cannot read GRPOJob {name}"):
            try:
                return _object(
                    self._custom.get_namespaced_custom_object(
                        **_GRPOJOBS, namespace=self.namespace, name=name, _request_timeout=TIMEOUT
                    )
                )
            except ApiException as error:
                if error.status == 404 and _status_of(error).get("details", {}).get("name") == name:
                    return None
                raise

    def get_job(self, name: str) -> Object:
        job = self.find_job(name)
        if job is None:
            raise CliError(
                f"there is no GRPOJob {name} in namespace {self.namespace} ({self.command('list', '-A')} shows all)"
            )
        return job

    def list_jobs(self, all_namespaces: bool) -> list[Object]:
        with self._told("cannot list GRPOJobs"):
            if all_namespaces:
                answer = self._custom.list_custom_object_for_all_namespaces(
                    group=names.GROUP,
                    version=names.VERSION,
                    resource_plural=names.PLURAL,
                    _request_timeout=TIMEOUT,
                )
            else:
                answer = self._custom.list_namespaced_custom_object(
                    **_GRPOJOBS, namespace=self.namespace, _request_timeout=TIMEOUT
                )
        return list(_object(answer)["items"])

    def watch_job(self, name: str) -> Iterator[tuple[str, Object]]:
        """(event type, job) from now on, the present state first; ends by itself after a while."""
        with self._told(f"cannot watch GRPOJob {name}"):
            answer = self._custom.list_namespaced_custom_object(
                **_GRPOJOBS,
                namespace=self.namespace,
                field_selector=f"metadata.name={name}",
                watch=True,
                timeout_seconds=WATCH_SECONDS,
                _preload_content=False,
                _request_timeout=TIMEOUT,
            )
            for line in _lines(answer):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]

    def delete_job(self, name: str) -> None:
        with self._told(f"cannot delete GRPOJob {name}"):
            self._custom.delete_namespaced_custom_object(
                **_GRPOJOBS, namespace=self.namespace, name=name, _request_timeout=TIMEOUT
            )

    def find_pod(self, name: str) -> Object | None:
        with self._told(f"cannot read pod {name}"):
            try:
                return self._json(self._core.read_namespaced_pod(name, self.namespace, **_RAW))
            except ApiException as error:
                if error.status == 404:
                    return None
                raise

    def list_objects(
        self, kind: str, *, labels: str = "", fields: str = "", all_namespaces: bool = False
    ) -> list[Object]:
        """Objects of one kind, each with its `kind`: of this namespace, of all, or of the cluster for nodes."""
        calls = {
            "Pod": (self._core.list_namespaced_pod, self._core.list_pod_for_all_namespaces),
            "Service": (self._core.list_namespaced_service, None),
            "ConfigMap": (self._core.list_namespaced_config_map, None),
            "PersistentVolumeClaim": (self._core.list_namespaced_persistent_volume_claim, None),
            "Event": (self._core.list_namespaced_event, None),
            "Node": (None, self._core.list_node),
        }
        in_namespace, everywhere = calls[kind]
        selection: dict[str, Any] = {"label_selector": labels, "field_selector": fields}
        given = {key: value for key, value in selection.items() if value}
        with self._told(f"cannot list {kind} objects"):
            if everywhere is not None and (all_namespaces or in_namespace is None):
                answer = everywhere(**given, **_RAW)
            else:
                assert in_namespace is not None
                answer = in_namespace(self.namespace, **given, **_RAW)
            return [{**item, "kind": kind} for item in self._json(answer)["items"]]

    def children(self, job: str) -> list[Object]:
        """Pods, Services, ConfigMaps and claims of a job, each with its `kind`."""
        kinds = ("Pod", "Service", "ConfigMap", "PersistentVolumeClaim")
        return [item for kind in kinds for item in self.list_objects(kind, labels=f"{names.LABEL_JOB_NAME}={job}")]

    def pod_log(self, pod: str, *, follow: bool, last: int | None = None) -> Iterator[tuple[str, str]]:
        """(timestamp, line) of the trainer's container: all, or the `last` lines. Timestamps compare as text."""
        tail = {} if last is None else {"tail_lines": last}
        with self._told(f"cannot read the log of pod {pod}"):
            answer = self._core.read_namespaced_pod_log(
                pod, self.namespace, container=names.TRAINER_CONTAINER, follow=follow, timestamps=True, **tail, **_RAW
            )
            for line in _lines(answer):
                timestamp, _, text = line.partition(" ")
                yield timestamp, text

    @staticmethod
    def _json(answer: Any) -> Object:
        return dict(json.loads("".join(_lines(answer))))

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """The client's errors as CliError."""
        try:
            yield
        except ApiException as error:
            kind = Forbidden if error.status in (401, 403) else CliError
            raise kind(f"{what}: {_explain(error)}") from None
        except ReadTimeoutError as error:
            raise Silence(f"{what}: the API server at {self._host} does not answer: {_first_line(error)}") from None
        except (HTTPError, OSError) as error:
            raise CliError(f"{what}: the API server at {self._host} does not answer: {_first_line(error)}") from None


_RAW: dict[str, Any] = {"_preload_content": False, "_request_timeout": TIMEOUT}


def _lines(answer: Any) -> Iterator[str]:
    """Lines of a streamed answer. Without preloading, the client does not raise for an error's status."""
    try:
        if not 200 <= answer.status <= 299:
            raise ApiException(http_resp=_Whole(answer))
        yield from iter_resp_lines(answer)  # type: ignore[no-untyped-call]
    finally:
        answer.close()


class _Whole:
    """A response read to its end, as ApiException wants one."""

    def __init__(self, answer: Any) -> None:
        self.status, self.reason = answer.status, answer.reason
        self.data = answer.read()
        self._answer = answer

    def getheaders(self) -> Any:
        return self._answer.getheaders()


def _object(answer: object) -> Object:
    """The client types what it decodes as `object`."""
    assert isinstance(answer, dict)
    return answer


def _status_of(error: ApiException) -> Object:
    """The `Status` object that the API server sent, where it sent one."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body or ""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _explain(error: ApiException) -> str:
    status = _status_of(error)
    causes = [item for item in status.get("details", {}).get("causes") or [] if item.get("message")]
    # CEL rules speak for themselves; the schema's own complaints need their field.
    if status.get("reason") == "Invalid" and causes:
        return "\n  ".join(["", *(f"{item.get('field', '')}: {item['message']}".lstrip(": ") for item in causes)])
    if error.status == 404 and "name" not in status.get("details", {}):
        return (
            f"the cluster does not know {names.PLURAL}.{names.GROUP}; install the operator's chart first "
            "(helm install grpo-operator charts/grpo-operator)"
        )
    return str(status.get("message") or f"{error.status} {error.reason}").strip()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
