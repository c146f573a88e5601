"""Requests to the API server, in dicts: models of a thousand pods cost over a second of CPU, dicts a tenth of it."""

import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import getproxies

from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from grpo_api.names import API_VERSION, PLURAL

Object = dict[str, Any]

PAGE_SIZE = 500
Page = list[Object]

RESOURCES = {
    "GRPOJob": (API_VERSION, PLURAL),
    "Pod": ("v1", "pods"),
    "Service": ("v1", "services"),
    "ConfigMap": ("v1", "configmaps"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Event": ("v1", "events"),
    "Node": ("v1", "nodes"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
}
"""Kind to (API version, plural). Kinds of gang backends are not here: their names say both, see `kind_of`."""


def kind_of(manifest: Object) -> str:
    """The name by which caches and plans know an object's kind.

    Several APIs call a kind PodGroup or Workload, so those are named in full: `PodGroup.v1beta1.scheduling.k8s.io`.
    """
    kind: str = manifest["kind"]
    return kind if kind in RESOURCES else full_kind(manifest["apiVersion"], kind)


def full_kind(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    return f"{kind}.{version}.{group}"


def resource_of(kind: str) -> tuple[str, str]:
    """(API version, plural) of a kind by its name, short or full."""
    if kind in RESOURCES:
        return RESOURCES[kind]
    name, version, group = kind.split(".", 2)
    return f"{group}/{version}", f"{name.lower()}s"


class KubeError(Exception):
    """The API server refused a request, or this process may not make it any longer."""

    def __init__(self, code: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.retry_after = retry_after
        """Seconds that the API server asks to wait for; it sends them with 429 and some 503."""


class Kube:
    """A client of one API server. `on_request(verb, resource, code)` is called after each request."""

    def __init__(self, on_request: Callable[[str, str, int], None] = lambda verb, resource, code: None) -> None:
        self._on_request = on_request
        self.may_write: Callable[[], bool] = lambda: True
        """Asked before each write but the Lease's: a process that was frozen may wake up without its Lease."""
        self._api: client.ApiClient | None = None

    async def connect(self) -> None:
        """Log in by the pod's service account, else by KUBECONFIG."""
        configuration = client.Configuration()
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(client_configuration=configuration)
        configuration.retries = None  # False is taken for a number, and tries for ever
        # Else it reads ~/.netrc in a thread before each request, a sixth of this process's time. Proxies it must know.
        configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
        self._api = client.ApiClient(configuration=configuration)

    async def close(self) -> None:
        if self._api is not None:
            await self._api.close()

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object, or None where it does not exist."""
        try:
            return await self._request("GET", _path(kind, namespace, name), "get", kind)
        except KubeError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str = "", selector: str = "", fields: str = "") -> list[Object]:
        """Objects of one namespace, or of all, by labels and fields. Items carry no kind; their list says it once."""
        return [item async for page in self.pages(kind, namespace, selector, fields) for item in page]

    async def pages(self, kind: str, namespace: str = "", selector: str = "", fields: str = "") -> AsyncIterator[Page]:
        """The same, PAGE_SIZE at a time and all as of one moment: all pods of a cluster at once are a lot of memory.

        Raises KubeError 410 where the API server has forgotten that moment before the last page is read.
        """
        asked = {"limit": str(PAGE_SIZE), "labelSelector": selector, "fieldSelector": fields, "continue": ""}
        while True:
            query = urlencode({name: value for name, value in asked.items() if value})
            answer = await self._request("GET", f"{_path(kind, namespace)}?{query}", "list", kind)
            yield answer.get("items") or []
            asked["continue"] = (answer.get("metadata") or {}).get("continue", "")
            if not asked["continue"]:
                return

    async def create(self, kind: str, body: Object, dry_run: bool = False) -> Object:
        """Make an object, or only see what it would be. A field that the API server does not know is refused."""
        path = f"{_path(kind, body['metadata']['namespace'])}?fieldValidation=Strict"
        path += "&dryRun=All" if dry_run else ""
        return await self._request("POST", path, "create", kind, body)

    async def replace(self, kind: str, body: Object) -> Object:
        metadata = body["metadata"]
        return await self._request("PUT", _path(kind, metadata["namespace"], metadata["name"]), "update", kind, body)

    async def patch(self, kind: str, namespace: str, name: str, change: Object) -> Object:
        """Merge into an object."""
        path = _path(kind, namespace, name)
        return await self._request("PATCH", path, "patch", kind, change, "application/merge-patch+json")

    async def patch_status(
        self, kind: str, namespace: str, name: str, uid: str, status: Object, held: Object | None = None
    ) -> Object:
        """Put this status in place of that of the object with this UID, as long as that one has the fields `held`.
        Else, and for a namesake that was made since, it is a 422.

        A merge patch with `metadata.uid` would not do: for the status of a custom resource, the API server puts its own
        metadata in place of the patch's before it looks at it, and so writes into the namesake.
        """
        path = f"{_path(kind, namespace, name)}/status"
        change = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            *({"op": "test", "path": f"/status/{field}", "value": value} for field, value in (held or {}).items()),
            {"op": "add", "path": "/status", "value": status},  # replaces what is there
        ]
        return await self._request("PATCH", path, "patch", kind, change, "application/json-patch+json")

    async def delete(self, kind: str, namespace: str, name: str, uid: str, grace: int | None = None) -> bool:
        """Delete the object with this UID. Returns False where it was gone already, or its name is another's."""
        options: Object = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self._request("DELETE", _path(kind, namespace, name), "delete", kind, options)
        except KubeError as error:
            if error.code not in (404, 409):
                raise
            return False
        return True

    async def served(self, api_version: str) -> set[str]:
        """Plurals of the resources that the API server has of one group and version."""
        try:
            answer = await self._request("GET", f"/apis/{api_version}", "get", "APIResourceList")
        except KubeError as error:
            if error.code == 404:
                return set()
            raise
        return {resource["name"] for resource in answer.get("resources") or []}

    async def may(self, verb: str, kind: str, namespace: str = "") -> bool:
        """Whether this process's account has a right, in one namespace or in all (a SelfSubjectAccessReview)."""
        api_version, plural = resource_of(kind)
        asked = {"verb": verb, "group": api_version.rpartition("/")[0], "resource": plural, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self._request("POST", path, "create", "SelfSubjectAccessReview", review)
        return bool(answer["status"]["allowed"])

    async def _request(
        self,
        method: str,
        path: str,
        verb: str,
        kind: str,
        body: Any = None,
        content: str = "application/json",
    ) -> Object:
        assert self._api is not None, "connect() first"
        if method != "GET" and kind != "Lease" and not self.may_write():
            raise KubeError(0, "LeaseLost", "the Lease has run out, another operator may act")
        settings = self._api.configuration
        headers = {"Accept": "application/json", "Content-Type": content, "User-Agent": "grpo-operator"}
        for auth in (await settings.auth_settings()).values():
            if auth["in"] == "header" and auth["value"]:
                headers[auth["key"]] = auth["value"]
        code = 0
        try:
            response = await self._api.rest_client.request(
                method, settings.host + path, headers=headers, body=body, _request_timeout=60
            )
            data = await response.read()
            code = response.status
            if not 200 <= code < 300:
                raise _error(code, data, response.headers.get("Retry-After"))
        except ApiException as error:
            code = int(error.status or 0)
            raise _error(code, error.body, (error.headers or {}).get("Retry-After")) from error
        finally:
            known = kind in RESOURCES or "." in kind
            self._on_request(verb, resource_of(kind)[1] if known else kind, code)
        answer: Object = json.loads(data)
        return answer


def _error(code: int, body: bytes | str | None, retry_after: str | None) -> KubeError:
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    try:
        status = json.loads(body or b"{}")
        return KubeError(code, str(status.get("reason", "")), str(status.get("message", "")), seconds)
    except (ValueError, AttributeError):  # a proxy's page
        return KubeError(code, "", str(body)[:500], seconds)


def _path(kind: str, namespace: str, name: str = "") -> str:
    api_version, plural = resource_of(kind)
    root = "/api" if "/" not in api_version else "/apis"
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}/{api_version}{scope}/{plural}" + (f"/{quote(name)}" if name else "")
