"""One run: jobs, faults for a while, and then what must hold of everything that happened."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ruamel.yaml import YAML

from grpo_api import names
from grpo_api.crd import crd
from grpo_operator import apply, left_behind
from local_cluster.control_plane import COMPONENTS, ControlPlane
from tests.apiserver.chaos.api import FLAGS, Api, Object, Record
from tests.apiserver.chaos.audit import POLICY, USER, Audit
from tests.apiserver.chaos.faults import JOBS_PATH, Faults
from tests.apiserver.chaos.history import Job
from tests.apiserver.chaos.judge import MANAGED_BY, MISFIT, Judge
from tests.apiserver.chaos.kubelet import HOSTNAME, Kubelet, ended, last_words
from tests.apiserver.operator_process import Operator, impatient

ROOT = Path(__file__).parents[3]
JOBS = 50
NODES = 4
MEAN_PAUSE_SECONDS = 0.3
STILL_SECONDS, WAIT_SECONDS = 120.0, 400.0
"""How long nothing may change in what is waited for, and how long that may take in all. A lost node's pods are given up
after some 30 s, and a pause before an attempt lasts 30 s or so."""
QUIET_SECONDS = 6.0
GRACE_SECONDS = 3
"""Of pods; 30 s otherwise."""
FORCE_AFTER_SECONDS = 8.0
"""In place of `apply.FORCE_AFTER_SECONDS`, that a lost node's pods are given up within a short run, and of
`left_behind.WAIT_SECONDS`: at a restart of the API server, the garbage collector does miss that jobs are deleted."""
assert min(apply.FORCE_AFTER_SECONDS, left_behind.WAIT_SECONDS) > FORCE_AFTER_SECONDS


class Chaos:
    """`run` raises AssertionError with every rule that was broken, and the operators' logs lie in `directory`."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self.say, self.chance = say, random.Random(seed)
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (policy := directory / "audit.yaml").write_text(json.dumps(POLICY))
        log = directory / "audit.log"
        audit = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
        self.plane = ControlPlane(directory, extra={**FLAGS, "kube-apiserver": [*FLAGS["kube-apiserver"], *audit]})
        self.judge, self.audit = Judge(), Audit(log)
        self.api = Api(self.plane)
        self.operators = [Operator(self.plane, directory / f"operator-{number}.log") for number in range(2)]
        self._template = YAML(typ="safe").load((ROOT / "examples" / "arithmetic.yaml").read_text())
        self._begin = time.monotonic()

    def run(self, seconds: float) -> None:
        """`seconds` of faults; starting and settling come on top."""
        try:
            self._start()
            self._strike(seconds)
            self._settle()
            self._finish()
        except BaseException:
            if hasattr(self, "record"):
                (self.directory / "objects.json").write_text(json.dumps(self._ours(), indent=1))
            raise
        finally:
            for operator in self.operators:
                operator.kill()
            if hasattr(self, "kubelet"):
                self.kubelet.stop()
            self.plane.stop()

    def _tell(self, text: str) -> None:
        self.say(f"{time.monotonic() - self._begin:6.1f} s  {text}")

    def _start(self) -> None:
        self.plane.start()
        self.api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd())
        self.record = Record(self.plane, self.judge.see)
        self.record.start()
        self.kubelet = Kubelet(self.api, self.record, [f"node-{number}" for number in range(NODES)], self.chance)
        self.kubelet.start()
        self.faults = Faults(self.api, self.record, self.judge, self.kubelet, self.chance, self._manifest)
        while self.api.request("GET", JOBS_PATH)[0] != 200:
            time.sleep(0.1)
        self._keep_alive()
        self._fill()
        self._make_misfit()
        self._tell(f"{JOBS} jobs are made")
        self._wait("half of the jobs run", lambda: len(self._running()) >= JOBS / 2 or f"{len(self._running())}")

    def _fill(self) -> None:
        """As many live jobs as ever; names come back, as those of people's jobs do."""
        live = self.faults.jobs(lambda job: not job.ended)
        over = self.faults.jobs(lambda job: job.ended)
        if len(over) > JOBS / 2:
            self.faults.delete_job(over[0])
        for name in self.chance.sample(self.faults.free_names(), max(0, JOBS - len(live))):
            self.api.request("POST", JOBS_PATH, self._manifest(name))

    def _manifest(self, name: str) -> Object:
        made: Object = json.loads(json.dumps(self._template))
        made["metadata"] = {"name": name, "namespace": "default"}
        made["spec"] |= {
            "checkpoint": {},
            "metrics": {"port": self.kubelet.heads.port},
            "runPolicy": {
                "maxRestarts": self.chance.choice([0, 1, 2, 2]),
                "cleanPodPolicy": self.chance.choice(["Running", "Running", "All"]),
                **self.chance.choice([{}] * 8 + [{"activeDeadlineSeconds": 20}, {"ttlSecondsAfterFinished": 5}]),
            },
            "template": {"podOverlay": {"spec": {"terminationGracePeriodSeconds": GRACE_SECONDS}}},
            "gangScheduling": {"backend": self.chance.choice(["auto", "auto", "none"]), "scheduleTimeoutSeconds": 15},
        }
        return made

    def _make_misfit(self) -> None:
        """One node may take its pods, and no more than one of them."""
        made = self._manifest(MISFIT)
        of = {"matchLabels": {names.LABEL_JOB_NAME: MISFIT}}
        apart = {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": of, "topologyKey": HOSTNAME}]}
        where = {"nodeSelector": {HOSTNAME: self.kubelet.nodes[0]}, "affinity": {"podAntiAffinity": apart}}
        made["spec"]["template"]["podOverlay"]["spec"] |= where
        made["spec"]["gangScheduling"]["backend"] = "none"
        made["spec"]["runPolicy"].pop("activeDeadlineSeconds", None)
        self.api.request("POST", JOBS_PATH, made)

    def _misfit(self) -> Job:
        with self.record.lock:
            return next(job for job in self.judge.jobs.values() if job.name == MISFIT)

    def _running(self) -> list[str]:
        return [job.name for job in self.faults.jobs(lambda job: job.status.get("state") == "Running")]

    def _strike(self, seconds: float) -> None:
        """Faults of jobs at random times; of machines at set ones, so that a short run has each of them."""
        begin = time.monotonic()
        period = min(seconds, 100.0)
        acts = (
            *((0.05, self._freeze_leader), (0.1, self.faults.node_lost), (0.5, self._thaw)),
            *((0.55, self.faults.node_returns), (0.6, self._restart_api_server), (0.7, self._slow_etcd)),
            *((0.8, self._kill_leader),),
        )
        machines = [((n + part) * period, act) for n in range(int(seconds / period)) for part, act in acts]
        machines.sort(key=lambda item: item[0])
        next_tell = begin
        while (now := time.monotonic()) < begin + seconds:
            if machines and now > begin + machines[0][0]:
                act = machines.pop(0)[1]
                act()
                self._tell(act.__name__.strip("_"))
                self.faults.done[act.__name__.strip("_")] += 1
            self.faults.strike()
            self._go_on()
            if now > next_tell:
                next_tell = now + 30
                self._tell(f"{sum(self.faults.done.values())} faults, {len(self._running())} jobs run")
            time.sleep(min(2.0, self.chance.expovariate(1 / MEAN_PAUSE_SECONDS)))

        def missing() -> bool | str:
            self._go_on()
            return not (left := self.faults.strike_missing()) or str(left)

        self._wait("every kind of fault has struck", missing)

    def _go_on(self) -> None:
        self._fill()
        self._keep_alive()
        self._check()

    def _leader(self) -> Operator:
        lease = self.api.request("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/grpo-operator")[1]
        holder = lease["spec"]["holderIdentity"]
        return next((one for one in self.operators if one.identity == holder), self.operators[0])

    def _kill_leader(self) -> None:
        """The other must wait for the Lease to run out."""
        self._leader().kill()

    def _freeze_leader(self) -> None:
        """Until its Lease is the other's: it then wakes up in the middle of its work."""
        self._leader().freeze(True)

    def _thaw(self) -> None:
        for operator in self.operators:
            operator.freeze(False)

    def _restart_api_server(self) -> None:
        self.plane.kill("kube-apiserver")
        time.sleep(self.chance.uniform(0, 4))
        self.plane.start_component("kube-apiserver")
        self.plane.wait_ready(60)

    def _slow_etcd(self) -> None:
        """It stands still most of the time."""
        etcd = self.plane.processes.record("etcd")
        assert etcd is not None
        for _ in range(5):
            os.kill(etcd.pid, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(etcd.pid, signal.SIGCONT)
            time.sleep(0.2)

    def _keep_alive(self) -> None:
        """As a Deployment and a kubelet do: what ends is started again.

        The scheduler ends itself where it finds its cache wrong, which a restart of the API server can bring about.
        """
        for number, operator in enumerate(self.operators):
            if not operator.alive():
                user = f"{USER}{number}"
                path = self.directory / f"{user}.kubeconfig"
                if not path.exists():
                    self.plane.authority.kubeconfig(path, user, f"/O=system:masters/CN={user}", self.plane.url)
                operator.program = impatient(FORCE_AFTER_SECONDS)
                self.audit.started[user].append(time.time())
                operator.start(KUBECONFIG=str(path))
        for component in COMPONENTS:
            if not self.plane.processes.alive(component):
                self._tell(f"{component} has ended by itself")
                self.plane.start_component(component)

    def _check(self) -> None:
        self.audit.read()
        with self.record.lock:
            broken = [*self.judge.broken, *self.judge.overdue(self.audit.led), *self.audit.broken]
        assert not broken, "rules broken:\n" + "\n".join(broken)
        assert self.record.error is None, repr(self.record.error)
        assert not self.kubelet.errors, repr(self.kubelet.errors)

    def _wait(self, what: str, done: Callable[[], bool | str], *, operators: bool = True) -> None:
        """`done` returns True, or why not. As long as that changes, things move on, as slow as the machine may be."""
        told, begin = "", time.monotonic()
        changed = begin
        while (why := done()) is not True:
            if operators:
                self._keep_alive()
            self._check()
            now = time.monotonic()
            if why != told:
                told, changed = str(why), now
            still, in_all = now - changed, now - begin
            given_up = still > STILL_SECONDS or in_all > WAIT_SECONDS
            assert not given_up, f"not after {in_all:.0f} s, the last {still:.0f} s of them as now: {what}:\n{why}"
            time.sleep(0.2)
        self._tell(what)

    def _ours(self) -> list[Object]:
        return [item for kind in Record.KINDS for item in self.record.objects(kind)]

    def _as_implied(self) -> bool | str:
        with self.record.lock:
            told = [*self.judge.unfinished(), *self.judge.orphans(self._ours()), *self._damaged()]
        return "\n".join(told) or True

    def _damaged(self) -> list[str]:
        """Live jobs whose Service is not there or does not lead to their pods, or whose job file is missing."""
        services = {item["metadata"]["name"]: item for item in self.record.objects("Service")}
        files = {item["metadata"]["name"] for item in self.record.objects("ConfigMap")}
        told = []
        for job in self.faults.jobs(lambda job: job.status.get("state") == "Running"):
            spec = services.get(job.name, {}).get("spec", {})
            selects = spec.get("selector") == {names.LABEL_JOB_NAME: job.name}
            if not (selects and spec.get("publishNotReadyAddresses")) or f"{job.name}-config" not in files:
                told.append(f"{job.name}: its Service or ConfigMap was not restored")
        return told

    def _give_up_node(self) -> None:
        """A node that never answers again: its pods are deleted by Kubernetes, and given up by the operator."""
        self.kubelet.dead.clear()
        lost = self.chance.choice(self.kubelet.nodes[1:])

        def there() -> list[Job]:
            on = lambda job: any(pod["spec"].get("nodeName") == lost for pod in job.pods.values())  # noqa: E731
            return self.faults.jobs(lambda job: not job.ended and on(job))

        self._wait(f"jobs have pods on {lost}", lambda: len(there()) > 2 or str(there()))
        replaced, deleted = there()[:2]
        self.kubelet.dead.add(lost)
        self.faults.replace_job(replaced)  # what people do then
        self.faults.delete_job(deleted)

        def given_up() -> bool | str:
            with self.record.lock:
                left = [
                    pod["metadata"]["name"]
                    for pod in self.record.objects("Pod")
                    if pod["spec"].get("nodeName") == lost and not self.judge.left_to_kubernetes(pod)
                ]
            return not left or f"{lost}: {left}"

        self._wait("the pods of a lost node are given up", given_up)
        told = [entry["cause"] for entry in self._misfit().status.get("restarts") or []]
        assert "ScheduleTimeout" in told, f"half a gang has kept its node: {self._misfit().status}"
        self.faults.delete_job(self._misfit())

    def _forced(self) -> list[str]:
        """Pods that the operator has deleted without grace, and had no reason to."""
        due = lambda uid: self.judge.going.get(uid, float("inf")) + FORCE_AFTER_SECONDS  # noqa: E731
        return [f"{uid} was given up too soon" for at, uid in self.audit.without_grace if at < due(uid)]

    def _wait_quiet(self) -> None:
        """Nothing is written though nothing happens; the last news of a start may still be on their way."""
        seen, since = -1, time.monotonic()

        def quiet() -> bool | str:
            nonlocal seen, since
            if self.audit.writes != seen:
                seen, since = self.audit.writes, time.monotonic()
            return time.monotonic() - since > QUIET_SECONDS or "writes go on"

        self._wait("nothing is written any more", quiet)

    def _settle(self) -> None:
        """No more faults: every job must come to the state that its history implies, and then nothing is written."""
        self._tell(f"faults: {dict(sorted(self.faults.done.items()))}")
        self._thaw()
        self._give_up_node()
        # At a restart of the API server, Kubernetes' garbage collector can miss that a job was deleted. What the
        # operator made for it, the operator then deletes, but not what has lost our label. A collector that starts anew
        # finds that.
        self.plane.kill("kube-controller-manager")
        self.plane.start_component("kube-controller-manager")
        self.kubelet.dead.clear()
        self.kubelet.heads.modes.clear()
        self.faults.foreign_objects_go()
        for _ in range(5):
            self.faults.resumed()
        for _ in range(2):
            self.faults.suspended()
        # Among many faults, a job that these ended may have been deleted before anybody looked.
        for last in (self.faults.users_fault, self.faults.runs_no_trainer):
            self._wait(f"{last.__name__} once more", lambda last=last: last() or "no pod runs")
        self._wait("every job is in the state that its history implies", self._as_implied)
        self._wait_quiet()
        assert not (told := self._forced()), told
        assert {"RewardError", "TrainerNotRun"} <= self.judge.ends.keys(), dict(self.judge.ends)
        states = Counter("deleted" if job.deleted else job.status["state"] for job in self.judge.jobs.values())
        self._tell(f"{len(self.judge.jobs)} jobs: {dict(states)}; {self.audit.writes} writes")
        self._tell(f"restarts: {dict(self.judge.restarts)}; ends: {dict(self.judge.ends)}")

    def _finish(self) -> None:
        """The jobs that run succeed; then all are deleted with no operator there, and nothing is left."""
        for job in self.faults.jobs(lambda job: job.status.get("state") == "Running"):
            head = next(pod for pod in job.pods.values() if pod["metadata"]["name"].endswith("-0"))
            self.kubelet.end(head, ended(0, "Completed", last_words(0, "Completed")))
        self._wait("jobs that ran have succeeded and given everything back", self._as_implied)
        for operator in self.operators:
            operator.kill()
        for job in self.faults.jobs(lambda job: True):
            self.judge.will_delete(job.manifest["metadata"]["uid"])
        self.api.request("DELETE", JOBS_PATH)
        self._wait_gone()

    def _wait_gone(self) -> None:
        def gone() -> bool | str:
            left = [
                f"{item['kind']} {item['metadata']['name']}"
                for item in self._ours()
                if item["kind"] == "GRPOJob" or MANAGED_BY in (item["metadata"].get("labels") or {})
            ]
            return not left or f"left behind: {left}"

        self._wait("deleted with no operator there: nothing is left", gone, operators=False)
