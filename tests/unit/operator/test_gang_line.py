"""The line of `gated`: who goes when, and what the others are told."""

import random
from dataclasses import replace

import pytest

from grpo_operator.gang.cluster import HOSTNAME, MILLI, Cluster, Needs, Node, Term, Use
from grpo_operator.gang.line import PATIENCE_SECONDS, WaitingGang, decide
from tests.unit.operator.gang_simulation import LIMIT, compare, make_sequence

GPU = "nvidia.com/gpu"
NOW = 1_000_000.0


def node(name, gpus=8, **more):
    labels = {HOSTNAME: name, **more.pop("labels", {})}
    return Node(name, labels, {GPU: gpus * MILLI, "pods": 110 * MILLI, "cpu": 64 * MILLI}, **more)


def gang(name, pods=1, gpus=8, **more):
    needs = Needs({GPU: gpus * MILLI, "pods": MILLI, **more.pop("requests", {})}, **more.pop("needs", {}))
    return WaitingGang(("team", name), pods, needs, since=more.pop("since", name), **more)


def use(on, gpus=8, **more):
    return Use(on, {GPU: gpus * MILLI, "pods": MILLI}, **more)


def released(nodes, gangs, uses=(), now=NOW):
    made = decide(Cluster(tuple(nodes), tuple(uses)), list(gangs), now)
    return {key[1]: [place.name for place in places] for key, places in made.release.items()}


def told(nodes, gangs, uses=(), now=NOW):
    made = decide(Cluster(tuple(nodes), tuple(uses)), list(gangs), now)
    return {key[1]: (str(reason), message) for key, (reason, message) in made.told.items()}


TWO = [node("a"), node("b")]


def test_all_or_nothing():
    assert released(TWO, [gang("x", pods=2)]) == {"x": ["a", "b"]}
    assert released(TWO, [gang("x", pods=2)], [use("a", 1)]) == {}
    assert released(TWO, [gang("x", pods=4, gpus=4)]) == {"x": ["a", "a", "b", "b"]}


def test_two_that_fit_alone_and_not_together_go_one_after_the_other():
    assert released(TWO, [gang("x", pods=2), gang("y", pods=2)]) == {"x": ["a", "b"]}
    assert released(TWO, [gang("y", pods=2)], [use("a"), use("b")]) == {}


def test_order_is_priority_then_time_of_joining():
    line = [gang("late", pods=2, since="2"), gang("early", pods=2, since="1")]
    assert list(released(TWO, line)) == ["early"]
    assert list(released(TWO, [*line, gang("urgent", pods=2, since="3", priority=1)])) == ["urgent"]


def test_smaller_gang_goes_first_until_the_head_has_lost_patience():
    """Its bound counts from then on: what runs by then may end, and nothing new takes the room."""
    line, busy = [gang("head", pods=2), gang("small", gpus=1)], [use("a", started=NOW - 10)]
    made = decide(Cluster(tuple(TWO), tuple(busy)), line, NOW)
    assert made.heads == {("team", "head"): NOW + PATIENCE_SECONDS}
    assert [key[1] for key in made.release] == ["small"]
    waits = [replace(line[0], keeps_from=NOW), line[1]]
    assert released(TWO, waits, busy, now=NOW - 1) == {"small": ["b"]}
    assert released(TWO, waits, busy, now=NOW) == {}
    assert released([*TWO, node("c", 4)], waits, busy, now=NOW) == {"small": ["c"]}, "room that the head needs not"


def test_room_is_kept_where_only_pods_of_before_are_in_the_way():
    """`a` would need less, but its pod came after; else the head could be passed over for ever."""
    head = gang("head", keeps_from=NOW - 100)
    busy = [use("a", 4, started=NOW - 50), use("b", 7, started=NOW - 200)]
    assert released(TWO, [head, gang("small", gpus=1)], busy) == {"small": ["a"]}
    new = decide(Cluster((TWO[0],), tuple(busy)), [head], NOW)
    assert new.heads == {head.key: NOW}, "node b is gone: room is kept on what is left, at once"


def test_head_is_not_passed_over_by_a_gang_of_its_own_shape():
    assert list(released([node("a", 16)], [gang("x"), gang("y"), gang("z")])) == ["x", "y"]


def test_each_pool_of_nodes_has_its_own_head():
    nodes = [node("a", labels={"pool": "a"}), node("b", labels={"pool": "b"})]

    def bound(name, pool, gpus, **more):
        return gang(name, gpus=gpus, needs={"node_selector": {"pool": pool}}, keeps_from=NOW - 1, **more)

    line = [bound("a1", "a", 8), bound("b1", "b", 8), bound("a2", "a", 1), bound("b2", "b", 1)]
    assert released(nodes, line, [use("a", 1), use("b", 1)]) == {}


def test_gang_larger_than_the_cluster_holds_nobody_up_and_is_told_so():
    line = [gang("giant", pods=3, keeps_from=NOW - 1), gang("small")]
    assert list(released(TWO, line)) == ["small"]
    reason, message = told(TWO, line)["giant"]
    assert reason == "LargerThanCluster"
    assert "needs 3 x 8 nvidia.com/gpu" in message
    assert "room for 2 in all" in message


def test_pods_that_never_end_are_not_waited_for():
    """A Deployment's pod on each node: a gang that needs all nodes whole would keep them idle for ever."""
    always = [use("a", 1, ends=False), use("b", 1, ends=False)]
    assert told(TWO, [gang("x", pods=2)], always)["x"][0] == "LargerThanCluster"
    assert told(TWO, [gang("x", pods=2)], [use("a", 1)])["x"][0] == "WaitingForCapacity"


def test_what_is_missing_and_who_is_ahead_is_told():
    rack = [node("a", labels={"rack": "1"}), node("b", labels={"rack": "1"}), node("c", labels={"rack": "2"})]
    line = [gang(name, pods=2, topology_key="rack") for name in "xyz"]
    told_ = told(rack, line, [use("a")])
    assert told_["z"][1] == "needs 2 x 8 nvidia.com/gpu in one rack; there is room for 1 now; 2 gangs ahead"
    starved = [gang("x", pods=2, requests={"cpu": 60 * MILLI})]
    assert "short of cpu" in told(TWO, starved, [Use("a", {"cpu": 10 * MILLI})])["x"][1]


@pytest.mark.parametrize(("required", "there"), [(True, {}), (False, {"x": ["a", "c"]})])
def test_topology_is_required_or_preferred(required, there):
    apart = [node("a", labels={"rack": "1"}), node("b", labels={"rack": "1"}), node("c", labels={"rack": "2"})]
    wish = gang("x", pods=2, topology_key="rack", required=required)
    assert released(apart, [wish]) == {"x": ["a", "b"]}
    assert released(apart, [wish], [use("b")]) == there
    assert released([node("a"), node("b")], [wish]) == ({} if required else {"x": ["a", "b"]}), "no node has the label"


def test_gang_of_which_part_is_released_comes_first_and_stays_in_its_domain():
    rack = [node("a", labels={"rack": "1"}), node("b", labels={"rack": "1"}), node("c", labels={"rack": "2"})]
    half = gang("half", topology_key="rack", domain="2", begun=True, since="9")
    assert released(rack, [gang("x", priority=5), half]) == {"half": ["c"], "x": ["a"]}
    assert released(rack, [replace(half, domain="1"), gang("x", pods=2)], [use("a"), use("b")]) == {}
    busy = [use("a"), use("b", 4), use("c")]
    assert released(rack, [replace(half, domain="1"), gang("x", gpus=4)], busy) == {}, "the half's room is kept at once"


def test_lower_priority_gives_way_to_a_gang_that_preempts():
    busy = [use("a"), use("b", priority=7)]
    assert released(TWO, [gang("x", priority=5)], busy) == {"x": ["a"]}
    assert released(TWO, [gang("x", priority=5, preempts=False)], busy) == {}
    assert released(TWO, [gang("x", priority=0)], busy) == {}
    assert released(TWO, [gang("x", pods=2, priority=5)], busy) == {}, "whole or not at all"
    assert released(TWO, [gang("x", priority=5)], [use("a", movable=False), use("b", priority=7)]) == {}


@pytest.mark.parametrize(
    ("of_node", "of_gang", "taken"),
    [
        ({"open": False}, {}, False),
        ({"taints": (("gpu", "yes", "NoSchedule"),)}, {}, False),
        ({"taints": (("gpu", "yes", "NoSchedule"),)}, {"tolerations": ({"key": "gpu", "operator": "Exists"},)}, True),
        ({"taints": (("gpu", "yes", "NoExecute"),)}, {"tolerations": ({"key": "gpu", "value": "no"},)}, False),
        ({"labels": {"kind": "h100"}}, {"node_selector": {"kind": "h100"}}, True),
        ({"labels": {"kind": "a100"}}, {"node_selector": {"kind": "h100"}}, False),
        (
            {"labels": {"kind": "a100"}},
            {"node_terms": ({"matchExpressions": [{"key": "kind", "operator": "In", "values": ["a100"]}]},)},
            True,
        ),
        ({}, {"node_terms": ({"matchExpressions": [{"key": "kind", "operator": "Exists"}]},)}, False),
        ({}, {"node_terms": ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]},)}, True),
    ],
)
def test_nodes_that_would_not_take_the_pods_do_not_count(of_node, of_gang, taken):
    assert bool(released([node("a", **of_node)], [gang("x", needs=of_gang)])) is taken


def test_pods_that_keep_apart_get_nodes_of_their_own():
    apart = (Term(HOSTNAME, {"matchLabels": {"app": "x"}}, frozenset({"team"})),)
    needs = {"apart": apart, "namespace": "team", "labels": {"app": "x"}}
    assert released(TWO, [gang("x", pods=2, gpus=1, needs=needs)]) == {"x": ["a", "b"]}
    other = replace(use("a", 1), namespace="team", labels={"app": "x"})
    assert released(TWO, [gang("x", pods=1, gpus=1, needs=needs)], [other]) == {"x": ["b"]}
    together = {"together": apart, "namespace": "team", "labels": {"app": "y"}}
    assert released(TWO, [gang("y", gpus=1, needs=together)], [other]) == {"y": ["a"]}


def test_random_sequences_keep_the_promises():
    """No deadlock, no one passed over beyond the bound, no node overfull; `make simulate-gangs` runs 10,000."""
    results = [result for seed in range(150) if (result := compare(make_sequence(random.Random(seed))))]
    assert len(results) > 140
    assert [told for result in results for told in result.broken] == []
    assert sum(result.idle for result in results) <= (1 + LIMIT) * sum(result.oracle for result in results)
