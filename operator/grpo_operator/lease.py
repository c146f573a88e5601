"""Leader election on a Lease: at most one operator acts. Follows client-go's leaderelection (15 s, 10 s, 2 s)."""

import asyncio
import logging
import time
from datetime import UTC, datetime

from aiohttp import ClientError

from grpo_operator.kube import Kube, KubeError, Object

DURATION_SECONDS = 15
RENEW_DEADLINE_SECONDS = 10.0
RETRY_SECONDS = 2.0
REQUEST_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Lease:
    """Held by `identity` from `acquire` until `keep` returns."""

    def __init__(self, kube: Kube, namespace: str, name: str, identity: str) -> None:
        self._kube, self._namespace, self._name, self._identity = kube, namespace, name, identity
        self._seen: tuple[str, float] | None = None
        self.renewed_at = 0.0
        """time.monotonic() of the last renewal."""

    async def acquire(self) -> None:
        """Wait until the Lease is ours."""
        while not await self._try():
            await asyncio.sleep(RETRY_SECONDS)
        logger.info("holds the Lease %s/%s", self._namespace, self._name)

    async def keep(self) -> None:
        """Renew until that fails for RENEW_DEADLINE_SECONDS, then return: this process must stop acting."""
        while (left := self.renewed_at + RENEW_DEADLINE_SECONDS - time.monotonic()) > 0:
            await asyncio.sleep(min(RETRY_SECONDS, left))
            left = self.renewed_at + RENEW_DEADLINE_SECONDS - time.monotonic()
            if left > 0:
                await self._try(min(REQUEST_SECONDS, left))
        logger.error("lost the Lease %s/%s", self._namespace, self._name)

    async def release(self) -> None:
        """Let another operator take over at once."""
        held = await self._kube.get("Lease", self._namespace, self._name)
        if held is not None and held["spec"].get("holderIdentity") == self._identity:
            held["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._kube.replace("Lease", held)

    async def _try(self, seconds: float = REQUEST_SECONDS) -> bool:
        try:
            return await asyncio.wait_for(self._take(), seconds)
        except (KubeError, ClientError, TimeoutError, OSError) as error:
            logger.warning("Lease %s/%s: %s: %s", self._namespace, self._name, type(error).__name__, error)
            return False

    async def _take(self) -> bool:
        asked = time.monotonic()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._identity, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now}
        held = await self._kube.get("Lease", self._namespace, self._name)
        if held is None:
            body: Object = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": {**spec, "acquireTime": now},
            }
            await self._kube.create("Lease", body)
        else:
            old = held.get("spec") or {}
            if old.get("holderIdentity") != self._identity:
                if not self._expired(old):
                    return False
                spec |= {"acquireTime": now, "leaseTransitions": int(old.get("leaseTransitions") or 0) + 1}
            held["spec"] = {**old, **spec}
            await self._kube.replace("Lease", held)  # its resourceVersion makes a race end in a conflict
        self.renewed_at = asked
        return True

    def _expired(self, spec: Object) -> bool:
        """Measured by our clock since the record last changed, as client-go does: clocks of nodes differ."""
        if not spec.get("holderIdentity"):
            return True
        record = f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
        if self._seen is None or self._seen[0] != record:
            self._seen = (record, time.monotonic())
        return time.monotonic() - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION_SECONDS)
