"""Trouble that the operator meets in a cluster: foreign objects, edits, closed and dying namespaces, a slow etcd."""

import itertools
import json
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest
from kubernetes.aio.config import kube_config

from grpo_api import names
from grpo_operator import kube as kube_module
from grpo_operator.kube import Kube, KubeError
from tests.apiserver.chaos.api import Api, path_of
from tests.apiserver.operator_process import Operator, impatient
from tests.apiserver.test_operator import head  # noqa: F401

pytestmark = pytest.mark.apiserver


def test_foreign_objects_of_our_names_are_named_and_not_touched(rig, job):
    """One after another, as each repair shows the next; a gang is never made beside one."""
    name = "ours"
    pod = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "grpo.dev/never"}]}
    foreign = {
        "Service": {"apiVersion": "v1", "metadata": {"name": name}, "spec": {"ports": [{"port": 1}]}},
        "Pod": {"apiVersion": "v1", "metadata": {"name": f"{name}-1"}, "spec": pod},
    }
    labels = {"app.kubernetes.io/managed-by": "grpo-operator", "grpo.dev/job-name": name}
    for kind, item in foreign.items():
        item["metadata"]["labels"] = labels  # not even these make it ours
        rig.apply({"kind": kind, **item})
    before = {kind: rig.get(kind, item["metadata"]["name"]) for kind, item in foreign.items()}
    rig.apply(job(name))
    for kind, item in foreign.items():
        found = item["metadata"]["name"]
        told = f"a {kind} named {found} exists that is not this job's"
        rig.wait(f"words on {kind}", lambda told=told: told in rig.status(name).get("message", ""))
        assert rig.status(name)["reason"] == "NameConflict"
        assert rig.get(kind, found)["metadata"]["uid"] == before[kind]["metadata"]["uid"]
        assert rig.get(kind, found)["spec"] == before[kind]["spec"]
        rig.kubectl("delete", kind, found, "--force", "--grace-period=0")
    rig.wait("pods after the repair", lambda: set(rig.items("pods", name)) == {"ours-0", "ours-1"}, 40)


FORCE_AFTER_SECONDS = 3


@pytest.fixture
def sooner(request, plane):
    """A running operator that gives pods up sooner."""
    plane.operator.program = impatient(FORCE_AFTER_SECONDS)
    yield request.getfixturevalue("rig")
    del plane.operator.program


def test_job_applied_again_while_its_node_is_dead_gets_the_names_of_its_pods(sooner, job):
    """Nobody confirms the end of the earlier job's pods here; one beside them only looks as if it were such a pod."""
    rig, name = sooner, "again"
    made = job(name, template={"podOverlay": {"spec": {"terminationGracePeriodSeconds": 1}}})
    rig.apply(made)
    rig.run_pods(name)
    before = rig.items("pods", name)
    foreign = f"{name}-2"
    rig.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}})
    uid = rig.get("configmap", "theirs")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": uid}
    metadata = {"name": foreign, "labels": {**before[f"{name}-1"]["metadata"]["labels"], names.LABEL_NODE_RANK: "2"}}
    spec = {"nodeName": rig.nodes[0], "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "i"}]}
    rig.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec})
    rig.kubectl("delete", "pod", foreign, "--wait=false")
    rig.kubectl("delete", "grpojob", name)
    rig.wait("pods told to go", lambda: all(map(told_to_go, rig.items("pods", name).values())))
    rig.apply(made)
    held = {pod["metadata"]["uid"] for pod in before.values()}

    def second_gang():
        pods = [pod for pod in rig.items("pods", name).values() if not told_to_go(pod)]
        return len(pods) == 2 and not held & {pod["metadata"]["uid"] for pod in pods}

    rig.wait("the gang of the new job", second_gang, 60)
    assert told_to_go(rig.get("pod", foreign)), "it waits for its node, as its owner may wish"
    rig.kubectl("delete", "configmap", "theirs")


def told_to_go(pod):
    return bool(pod["metadata"].get("deletionTimestamp"))


@pytest.fixture
async def kube(plane, monkeypatch):
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(plane.plane.kubeconfig))
    made = Kube()
    await made.connect()
    yield made
    await made.close()


async def test_list_comes_in_pages_that_are_of_one_moment(plane, kube, monkeypatch):
    """Objects that are made and deleted after the first page change nothing of the others."""
    monkeypatch.setattr(kube_module, "PAGE_SIZE", 2)
    label = {"test/paged": "yes"}
    there = [f"paged-{letter}" for letter in "abcde"]
    for name in there:
        plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": label}})
    pages = []
    async for page in kube.pages("ConfigMap", "default", "test/paged=yes"):
        if not pages:
            plane.kubectl("delete", "configmap", "paged-c")
            plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "paged-z", "labels": label}})
        pages.append([item["metadata"]["name"] for item in page])
    assert pages == [there[:2], there[2:4], there[4:]]
    assert [item["metadata"]["name"] for item in await kube.list("ConfigMap", "default", "test/paged=yes")] == [
        *("paged-a", "paged-b", "paged-d", "paged-e", "paged-z")
    ]
    plane.kubectl("delete", "configmaps", "-l", "test/paged=yes")


async def test_namesake_is_neither_written_to_nor_deleted(plane, job, kube):
    """A job, and a pod, that somebody has replaced by another of the same name."""
    pod = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "test/never"}]}
    for item in (job("twin"), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "twin"}, "spec": pod}):
        plane.apply(item)
        old = plane.get(item["kind"], "twin")["metadata"]["uid"]
        plane.kubectl("delete", item["kind"], "twin", "--force", "--grace-period=0")
        plane.apply(item)
        before = plane.get(item["kind"], "twin")
        try:
            if item["kind"] == "Pod":
                assert await kube.delete("Pod", "default", "twin", old) is False
            else:
                with pytest.raises(KubeError) as error:
                    await kube.patch_status("GRPOJob", "default", "twin", old, {"state": "Running"})
                assert error.value.code == 422
            assert plane.get(item["kind"], "twin") == before
        finally:
            plane.kubectl("delete", item["kind"], "twin", "--force", "--grace-period=0")


def test_what_the_garbage_collector_leaves_of_an_earlier_job_makes_way(sooner, job):
    """It finds no owner whose version is not served, and so leaves these, as it leaves what it has missed."""
    rig, name = sooner, "heir"
    owner = {"apiVersion": f"{names.GROUP}/v0", "kind": names.KIND, "name": name, "uid": "gone", "controller": True}
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_JOB_NAME: name, names.LABEL_NODE_RANK: "1"}
    pod = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "grpo.dev/never"}]}
    left = {"Pod": (f"{name}-1", {"spec": pod}), "Service": (name, {"spec": {"clusterIP": "None"}})}
    left |= {"ConfigMap": (names.config_map_name(name), {"data": {"a": "b"}})}
    for kind, (its_name, more) in left.items():
        metadata = {"name": its_name, "labels": labels, "ownerReferences": [owner]}
        rig.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, **more})
    rig.apply(job(name))
    rig.wait("a gang", lambda: rig.status(name).get("createdAttempt") == 0, 60)
    uid = rig.get("grpojob", name)["metadata"]["uid"]
    for kind, (its_name, _) in left.items():
        assert [of["uid"] for of in rig.get(kind, its_name)["metadata"]["ownerReferences"]] == [uid]


def test_service_and_job_file_come_back_and_no_pod_is_touched(rig, job):
    rig.apply(job("kept"))
    rig.run_pods("kept")
    rig.wait("gang complete", lambda: rig.status("kept").get("createdAttempt") == 0)
    before = {name: pod["metadata"]["uid"] for name, pod in rig.items("pods", "kept").items()}
    rig.kubectl("delete", "service/kept", "configmap/kept-config")
    rig.wait("children again", lambda: rig.items("services", "kept") and rig.items("configmaps", "kept"))
    edit = {"spec": {"selector": {"app": "another", "grpo.dev/job-name": None}}}
    rig.kubectl("patch", "service", "kept", "--type=merge", "-p", json.dumps(edit))

    def restored():
        found = rig.items("services", "kept").get("kept")
        return found is not None and found["spec"]["selector"] == {"grpo.dev/job-name": "kept"}

    rig.wait("the Service as it was", restored)
    assert {name: pod["metadata"]["uid"] for name, pod in rig.items("pods", "kept").items()} == before
    assert rig.status("kept").get("restarts", []) == []


def test_namespace_that_is_deleted_takes_its_jobs_along_and_no_others(rig, job):
    rig.kubectl("create", "namespace", "dying")
    rig.apply({**job("last"), "metadata": {"name": "last", "namespace": "dying"}})
    pods = ("get", "pods", "-n", "dying", "-o", "name")
    rig.wait("pods there", lambda: len(rig.kubectl(*pods).split()) == 2)
    rig.kubectl("delete", "namespace", "dying", "--wait=false")
    rig.apply(job("alive"))
    rig.wait("pods elsewhere", lambda: len(rig.items("pods", "alive")) == 2)

    def gone():
        rig.kubectl("delete", "pods", "-n", "dying", "--all", "--force", "--grace-period=0", check=False)
        return "NotFound" in rig.kubectl("get", "namespace", "dying", check=False)

    rig.wait("the namespace gone", gone, 60)


@pytest.fixture
def confined(plane):
    """An operator whose account has a role in `open` and where its Lease is, told to watch `closed` too."""
    for namespace in ("open", "closed"):
        plane.kubectl("create", "namespace", namespace)
    plane.kubectl("create", "serviceaccount", "confined")
    for namespace in ("open", "default"):
        grant = ("--clusterrole=cluster-admin", "--serviceaccount=default:confined", "-n", namespace)
        plane.kubectl("create", "rolebinding", "confined", *grant)
    token = plane.kubectl("create", "token", "confined").strip()
    config = json.loads(plane.plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    kubeconfig = plane.directory / "confined.kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    operator = Operator(plane.plane, plane.directory / "confined.log")
    operator.start(KUBECONFIG=str(kubeconfig), GRPO_WATCH_NAMESPACES="closed,open", GRPO_LEASE_NAME="confined")
    yield operator
    operator.stop()
    plane.kubectl("delete", "namespace", "open", "closed", "--wait=false")
    plane.kubectl("delete", "pods", "--all", "-n", "open", "--force", "--grace-period=0")


def test_namespace_without_a_role_stops_no_other(plane, confined, job):
    for namespace in ("closed", "open"):
        plane.apply({**job("inside"), "metadata": {"name": "inside", "namespace": namespace}})
    pods = ("get", "pods", "-o", "name", "-n")
    try:
        plane.wait("pods in the open namespace", lambda: len(plane.kubectl(*pods, "open").split()) == 2)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{confined.log.read_text()[-3000:]}") from None
    assert plane.kubectl(*pods, "closed") == ""
    assert "namespace closed" in confined.log.read_text()
    assert confined.probe("healthz") == (200, "ok")


@contextmanager
def meanwhile(act):
    """`act` again and again in a thread of its own, until the block ends; its error is the block's."""
    stop, errors = threading.Event(), []

    def go_on():
        try:
            while not stop.is_set():
                act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors, errors


def test_another_writer_and_a_slow_etcd_change_nothing_but_the_pace(rig, job, head):  # noqa: F811
    """Somebody writes into the job's metadata and status without a pause, and etcd stands still half of the time."""
    _, port = head
    api, etcd = Api(rig.plane), rig.plane.processes.record("etcd").pid
    rig.apply(job("storm", metrics={"port": port}))
    path = path_of(rig.get("grpojob", "storm"))
    numbers = itertools.count()

    def write():
        number = next(numbers)
        api.merge(path, {"metadata": {"annotations": {"note": str(number)}}})
        api.merge(f"{path}/status", {"status": {"message": f"mine {number}", "nodes": None, "conditions": []}})

    def stall():
        os.kill(etcd, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(etcd, signal.SIGCONT)
        time.sleep(0.2)

    with meanwhile(write), meanwhile(stall):
        rig.run_pods("storm")
        rig.wait("gang complete", lambda: rig.status("storm").get("createdAttempt") == 0)
        rig.wait_state("storm", "Running")
        before = {pod["metadata"]["uid"] for pod in rig.items("pods", "storm").values()}
        rig.end_pod("storm-1", 1)
        rig.wait("a restart", lambda: rig.status("storm").get("attempt") == 1)

        def second_gang():
            rig.confirm_deletions("storm")
            pods = rig.items("pods", "storm").values()
            return len(pods) == 2 and not before & {pod["metadata"]["uid"] for pod in pods}

        rig.wait("new pods", second_gang)
        rig.run_pods("storm")
    rig.wait("the status as it should be", lambda: rig.status("storm").get("message") == "")
    status = rig.wait_state("storm", "Running")
    assert [entry["cause"] for entry in status["restarts"]] == ["Failed"]
    assert (status["failures"], status["nodes"]["summary"]) == (1, "2/2")
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        **{"Valid": "True", "Scheduled": "True", "Running": "True"},
    }
    assert next(numbers) > 20, "that was no storm"
