"""The operator's process: metrics and probes from the start, then the Lease, then watching and reconciling."""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time

import kopf
from aiohttp import ClientError, web
from prometheus_client import start_http_server

from grpo_operator import metrics
from grpo_operator.cache import Cache
from grpo_operator.capabilities import discover
from grpo_operator.cluster_view import ClusterView
from grpo_operator.gatekeeper import Gatekeeper
from grpo_operator.handlers import make_registry
from grpo_operator.kube import Kube, KubeError
from grpo_operator.lease import DURATION_SECONDS, Lease
from grpo_operator.progress import ProgressReader
from grpo_operator.reconciler import Reconciler
from grpo_operator.resync import Resync
from grpo_operator.settings import Settings

RESYNC_SECONDS = 300.0
FIRST_RESYNC_SECONDS = 30.0
"""Before a watch is thought dead (WATCH_BEHIND_SECONDS), so that what went before it began is not held against it."""
BEGIN_SECONDS = 5.0
"""From a watch's beginning with a list to the resync that finds what was deleted before: all watches begin anew at
once where the API server was restarted, and each pauses for up to 5 s between its tries."""
RETRY_SECONDS = 5.0
WATCH_BEHIND_SECONDS = 60.0
QUEUE_STUCK_SECONDS = 120.0
PROGRESS_POLL_SECONDS = 5.0

logger = logging.getLogger("grpo_operator")


class Operator:
    """All parts of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.kube = Kube(metrics.count_request)
        self.cache = Cache()
        poll = min(PROGRESS_POLL_SECONDS, settings.progress_interval)
        self.reader = ProgressReader(poll, lambda key: self.reconciler.queue.add(key))
        self.view = ClusterView()
        self.gatekeeper = Gatekeeper(self.kube, self.cache, self.view, lambda key: self.reconciler.queue.add(key))
        self.reconciler = Reconciler(self.kube, self.cache, settings, self.reader, line=self.gatekeeper.told)
        self.resync = Resync(self.kube, self.cache, self.reconciler.queue, settings.namespaces, self.view)
        self.lease = Lease(self.kube, settings.lease_namespace, settings.lease_name, settings.identity)
        self.kube.may_write = lambda: time.monotonic() - self.lease.renewed_at < DURATION_SECONDS
        self.leading = False
        self.watches = False

    async def run(self) -> int:
        """Run until a signal (exit code 0) or until the Lease is lost or a part ends (1)."""
        queue = self.reconciler.queue
        metrics.REGISTRY.register(metrics.JobCollector(self.cache, lambda: queue.depth, lambda: queue.oldest_seconds))
        start_http_server(self.settings.metrics_port, registry=metrics.REGISTRY)
        probes = await self._serve_probes()
        await self.kube.connect()
        stop = asyncio.Event()
        take_signals(stop)
        asked = asyncio.create_task(stop.wait())
        try:
            acquire = asyncio.create_task(self.lease.acquire())
            await asyncio.wait({asked, acquire}, return_when=asyncio.FIRST_COMPLETED)
            if not acquire.done():
                acquire.cancel()
                return 0
            acquire.result()
            return await self._lead(asked, stop)
        finally:
            await probes.cleanup()
            await self.kube.close()

    async def _lead(self, asked: asyncio.Task[bool], stop: asyncio.Event) -> int:
        self.leading = True
        metrics.LEADER.set(1)
        self.cache.capabilities = await discover(self.kube, self.settings.namespaces, self.settings.lease_namespace)
        await self.resync.run()
        logger.info(
            "leads; kinds for gangs: %s; sees all nodes and pods: %s; namespaces: %s",
            ", ".join(sorted(self.cache.capabilities.kinds | self.cache.capabilities.reads)) or "none",
            self.cache.capabilities.sees_cluster,
            ", ".join(self.settings.namespaces) or "all",
        )
        registry = make_registry(self.cache, self.reconciler.queue, self.resync.health, self.view)
        begun = asyncio.Event()
        watching = kopf.operator(
            registry=registry,
            standalone=True,
            # Else kopf asks for the user's name, and an arbitrary UID has none.
            identity=self.settings.identity,  # type: ignore[arg-type]
            ready_flag=begun,
            namespaces=self.settings.namespaces,
            clusterwide=not self.settings.namespaces,
        )
        parts = {
            asyncio.create_task(self.reconciler.queue.run(), name="queue"),
            asyncio.create_task(self.reader.run(), name="progress"),
            asyncio.create_task(self.lease.keep(), name="lease"),
        }
        if self.cache.capabilities.sees_cluster:
            parts.add(asyncio.create_task(self.gatekeeper.run(), name="gates"))
        resync = asyncio.create_task(self._keep_in_sync(), name="resync")
        parts.add(resync)
        watch = asyncio.create_task(watching, name="watching")
        parts.add(watch)
        await asyncio.wait(
            {asked, watch, ready := asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()
        take_signals(stop)  # from kopf, which on a signal would wait 5 s for every task that was made after its start
        self.watches = True
        done, pending = await asyncio.wait({asked, *parts}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*pending, return_exceptions=True), 5)
        # A signal before our handlers were back has ended the watching without an error.
        if asked in done or any(task in done and task.exception() is None for task in (watch, resync)):
            with contextlib.suppress(Exception):
                await self.lease.release()
            return 0
        for task in done:
            if (error := task.exception()) is not None:  # a lost Lease has been told
                logger.error("%s ended: %s: %s", task.get_name(), type(error).__name__, error)
        return 1

    async def _keep_in_sync(self) -> None:
        """List everything now and then; return where the process must start anew to watch other kinds."""
        pause = FIRST_RESYNC_SECONDS
        while True:
            begun = await self._watch_begins(pause)
            try:
                found = await discover(self.kube, self.settings.namespaces, self.settings.lease_namespace)
                if found != self.cache.capabilities:
                    logger.info("what the cluster has for gangs has changed: %s; starts anew with it", found)
                    return
                await self.resync.run(plan_all=pause != FIRST_RESYNC_SECONDS and not begun)
                pause = FIRST_RESYNC_SECONDS if begun else RESYNC_SECONDS
            except (KubeError, ClientError, TimeoutError, OSError) as error:
                logger.warning("resync: %s: %s; again in %.0f s", type(error).__name__, error, RETRY_SECONDS)
                pause = RETRY_SECONDS

    async def _watch_begins(self, seconds: float) -> bool:
        """Wait for so long, or until some time after a watch has begun with a list, as when its place in the history
        was gone (410). Returns whether one has."""
        begun = self.resync.health.begun
        try:
            await asyncio.wait_for(begun.wait(), seconds)
        except TimeoutError:
            return False
        await asyncio.sleep(BEGIN_SECONDS)
        begun.clear()
        return True

    async def _serve_probes(self) -> web.AppRunner:
        async def healthz(_: web.Request) -> web.Response:
            problem = self._problem()
            return web.Response(status=500 if problem else 200, text=problem or "ok")

        async def readyz(_: web.Request) -> web.Response:
            if self.leading and not self.watches:
                return web.Response(status=503, text="starts to watch")
            return web.Response(text="leads" if self.leading else "stands by")

        app = web.Application()
        app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, port=self.settings.probe_port).start()
        return runner

    def _problem(self) -> str:
        """Why this process should be restarted; empty where it is well."""
        if not self.leading:
            return ""
        if self.reconciler.queue.oldest_seconds > QUEUE_STUCK_SECONDS:
            return f"a job waits for its reconcile since {self.reconciler.queue.oldest_seconds:.0f} s"
        if time.monotonic() - self.lease.renewed_at > DURATION_SECONDS * 2:
            return "the Lease is not being renewed"
        watch, behind = self.resync.health.owes()
        if behind > WATCH_BEHIND_SECONDS:
            return f"the watch of {watch} has not brought for {behind:.0f} s what a list shows"
        return ""


def take_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT set `stop`, and nothing else."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


def main() -> None:
    # By default the collector looks at all objects so often that it took a third of the time for a thousand jobs.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stdout)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    sys.exit(asyncio.run(Operator(Settings.from_environment()).run()))


if __name__ == "__main__":
    main()
