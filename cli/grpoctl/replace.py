"""Delete a job and wait until nothing of it stands in a new one's way."""

import time

from rich.console import Console

from grpoctl.cluster import Cluster, Object
from grpoctl.errors import CliError

GONE_SECONDS = 180.0


def replace(cluster: Cluster, name: str, console: Console) -> None:
    """Delete the job, if there is one, and wait until it and all that it owns are gone. A kept claim stays."""
    if cluster.find_job(name) is not None:
        console.print(f"deleting GRPOJob {name} and waiting until it is gone")
        cluster.delete_job(name)
    left: list[Object] = []
    deadline = time.monotonic() + GONE_SECONDS
    while cluster.find_job(name) is not None or (left := [item for item in cluster.children(name) if _goes(item)]):
        if time.monotonic() > deadline:
            names = ", ".join(f"{item['kind']} {item['metadata']['name']}" for item in left) or f"GRPOJob {name}"
            raise CliError(f"still there {GONE_SECONDS:.0f} s after the deletion of GRPOJob {name}: {names}")
        time.sleep(0.5)
    for item in cluster.children(name):
        claim = item["metadata"]["name"]
        console.print(
            f"claim {claim} was kept: with checkpoint.resume Auto the new job goes on from its newest checkpoint",
            style="yellow",
        )


def _goes(item: Object) -> bool:
    """Whether an object goes with the job: a claim without an owner does not."""
    metadata = item["metadata"]
    return bool(metadata.get("ownerReferences") or metadata.get("deletionTimestamp"))
