"""What belongs to a job, and what the cache holds after events that come late, twice, or of namesakes."""

import json

import pytest

from grpo_operator.cache import Cache, key_of
from grpo_operator.gang.cluster import requests_of
from grpo_operator.kube import kind_of
from grpo_operator.observe import Observed, observe
from grpo_operator.plan import plan
from tests.unit.operator.operator_support import (
    EARLIER,
    NOW,
    POD_GROUP,
    UID,
    WORKLOAD,
    child,
    pod,
    raw_job,
)

KEY = ("team", "sums")


def cache_of(*items, job=None):
    cache = Cache()
    cache.put_job(job or raw_job())
    for item in items:
        cache.put_child(kind_of(item), item)
    return cache


def seen(cache):
    return observe(cache, KEY, head_report=None, create_fault=None, default_image="image")


def versioned(item, version):
    item["metadata"]["resourceVersion"] = str(version)
    return item


def test_job_that_does_not_exist_is_not_observed():
    assert seen(Cache()) is None


def test_pods_are_sorted_by_rank_and_others_by_kind_and_name():
    ranks = [pod(rank) for rank in (10, 2, 0)]
    found = seen(cache_of(*ranks, child("Service", "sums"), child("ConfigMap", "sums-config")))
    assert [item["metadata"]["name"] for item in found.pods] == ["sums-0", "sums-2", "sums-10"]
    assert set(found.children) == {("Service", "sums"), ("ConfigMap", "sums-config")}
    assert found.default_image == "image"


@pytest.mark.parametrize("kind", ["Pod", "Service", "ConfigMap", WORKLOAD, POD_GROUP])
@pytest.mark.parametrize(("owner", "belongs"), [(UID, True), (EARLIER, False), (None, False)])
def test_children_are_told_by_the_owners_uid(kind, owner, belongs):
    item = child(kind, "sums-0", owner=owner)
    item["metadata"]["labels"]["grpo.dev/node-rank"] = "0"
    found = seen(cache_of(item))
    assert bool(found.pods or found.children) == belongs


@pytest.mark.parametrize(
    ("owner", "belongs"), [(UID, True), (EARLIER, False), (None, True)], ids=["ours", "an earlier job's", "kept"]
)
def test_claim_without_owner_is_the_jobs_of_its_label(owner, belongs):
    found = seen(cache_of(child("PersistentVolumeClaim", "sums-checkpoints", owner=owner)))
    assert bool(found.children) == belongs


def test_children_of_other_jobs_are_not_seen():
    elsewhere = child("ConfigMap", "sums-config")
    elsewhere["metadata"]["namespace"] = "other"
    assert seen(cache_of(child("ConfigMap", "x-config", job="x"), elsewhere)).children == {}


@pytest.mark.parametrize("labels", [None, {}, {"app": "x"}])
def test_object_without_our_label_is_no_jobs(labels):
    item = child("ConfigMap", "x", owner=None)
    item["metadata"]["labels"] = labels
    assert key_of(item) is None
    assert Cache().put_child("ConfigMap", item) is None
    assert Cache().drop_child("ConfigMap", item) is None


@pytest.mark.parametrize("labels", [{}, {"grpo.dev/job-name": "other"}])
def test_owner_tells_the_job_though_somebody_edits_labels(labels):
    item = child("Pod", "sums-0")
    item["metadata"]["labels"] = labels
    assert key_of(item) == KEY


def test_late_event_does_not_replace_a_newer_object():
    cache = cache_of(versioned(child("Pod", "sums-0"), 12))
    late = versioned(child("Pod", "sums-0"), 9)  # as text, 9 comes after 12
    late["status"] = {"phase": "Pending"}
    assert cache.put_child("Pod", late) is None
    assert "status" not in cache.children(KEY)["Pod", "sums-0"]
    cache.put_child("Pod", versioned(late, 13))
    assert cache.children(KEY)["Pod", "sums-0"]["status"] == {"phase": "Pending"}


@pytest.mark.parametrize(("version", "news"), [(12, False), (11, False), (13, True)])
def test_what_is_known_already_is_no_news(version, news):
    """The watch brings what a write's answer has brought. To plan for it once more was half of all plans."""
    cache = cache_of(versioned(child("Pod", "sums-0"), 12), job=versioned(raw_job(), 12))
    assert cache.put_child("Pod", versioned(child("Pod", "sums-0"), version)) == (KEY if news else None)
    assert cache.put_job(versioned(raw_job(), version)) == (KEY if news else None)
    assert cache.put_child("Pod", versioned(child("Pod", "sums-1"), 1)) == KEY


def test_late_event_does_not_replace_a_newer_status_of_the_job():
    cache = cache_of(job=versioned(raw_job(status={"state": "Running"}), 20))
    cache.put_job(versioned(raw_job(), 19))
    assert cache.job(KEY)["status"] == {"state": "Running"}
    cache.put_job(versioned(raw_job(status={"state": "Succeeded"}), 21))
    assert cache.job(KEY)["status"] == {"state": "Succeeded"}


def test_namesake_made_after_replaces_the_earlier_one():
    cache = cache_of(versioned(child("Pod", "sums-0", uid="old"), 12))
    cache.put_child("Pod", versioned(child("Pod", "sums-0", uid="new"), 15))
    assert cache.children(KEY)["Pod", "sums-0"]["metadata"]["uid"] == "new"


def test_late_event_of_an_earlier_namesake_does_not_replace_the_new_one():
    """A write's answer goes in before the watch has told all of the earlier pod. Versions compare across one kind."""
    cache = cache_of(versioned(child("Pod", "sums-0", uid="new"), 15))
    cache.put_child("Pod", versioned(child("Pod", "sums-0", uid="old"), 12))
    assert cache.children(KEY)["Pod", "sums-0"]["metadata"]["uid"] == "new"


def test_late_deletion_of_an_earlier_namesake_leaves_the_new_one():
    cache = cache_of(versioned(child("Pod", "sums-0", uid="new"), 15))
    assert cache.drop_child("Pod", versioned(child("Pod", "sums-0", uid="old"), 16)) == KEY
    assert cache.children(KEY)["Pod", "sums-0"]["metadata"]["uid"] == "new"
    cache.drop_child("Pod", child("Pod", "sums-0", uid="new"))
    assert cache.children(KEY) == {}


def test_deletion_of_what_was_never_seen_is_nothing():
    cache = cache_of()
    assert cache.drop_child("Pod", child("Pod", "sums-0")) == KEY
    cache.drop_job({"metadata": {"namespace": KEY[0], "name": "other", "uid": UID}})
    assert cache.job(KEY) is not None


def test_late_deletion_of_an_earlier_job_leaves_its_namesake():
    cache = cache_of()
    cache.drop_job({"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "earlier"}})
    assert cache.job(KEY) is not None
    cache.drop_job({"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": UID}})
    assert cache.job(KEY) is None


def test_version_that_is_no_number_is_taken_as_new():
    cache = cache_of(versioned(child("Pod", "sums-0"), 12))
    cache.put_child("Pod", {**versioned(child("Pod", "sums-0"), "abc"), "status": {"phase": "Running"}})
    assert cache.children(KEY)["Pod", "sums-0"]["status"] == {"phase": "Running"}


def test_what_a_fresh_list_does_not_show_has_vanished():
    cache = cache_of(child("Pod", "sums-0", uid="a"), child("Pod", "sums-1", uid="b"), child("Service", "sums"))
    assert [item["metadata"]["uid"] for item in cache.vanished("Pod", {"a"})] == ["b"]
    assert cache.vanished("GRPOJob", {UID}) == []
    assert [job["metadata"]["uid"] for job in cache.vanished("GRPOJob", set())] == [UID]


def test_what_is_handed_out_does_not_change_with_the_cache():
    cache = cache_of(child("Pod", "sums-0"))
    children, jobs = cache.children(KEY), cache.jobs()
    cache.drop_child("Pod", child("Pod", "sums-0"))
    cache.drop_job({"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": UID}})
    assert list(children) == [("Pod", "sums-0")]
    assert [key for key, _ in jobs] == [KEY]


def test_cache_keeps_what_is_read_and_no_more():
    """A thousand jobs' environments, rewards and field managers were a hundred MB."""
    job = raw_job()
    made = plan(Observed(job=job, default_image="image"), NOW).create
    managers = [{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]
    cache = Cache()
    cache.put_job({**job, "metadata": {**job["metadata"], "managedFields": managers}})
    for item in made:
        cache.put_child(item["kind"], {**item, "metadata": {**item["metadata"], "managedFields": managers}})
    held = cache.children(KEY)
    assert cache.job(KEY) == job
    assert {name for _, name in held} == {item["metadata"]["name"] for item in made}
    assert "managedFields" not in json.dumps([cache.job(KEY), *held.values()])
    whole = next(item for item in made if item["kind"] == "Pod")
    slim = held["Pod", whole["metadata"]["name"]]
    assert "env" in whole["spec"]["containers"][0]
    assert "env" not in slim["spec"]["containers"][0]
    assert requests_of(slim["spec"]) == requests_of(whole["spec"])
    assert slim["spec"]["volumes"] == whole["spec"]["volumes"]
    assert [one["image"] for one in slim["spec"]["containers"]] == ["image"]
    assert "data" not in held["ConfigMap", "sums-config"]
