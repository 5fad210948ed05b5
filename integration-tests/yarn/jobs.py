#!/usr/bin/env python3
"""Unmodified Spark on a godel that this script starts: real agents, the YARN adapter, and what goes wrong on purpose.

    jobs.py --godel target/debug/godel --clients DIR [CASE ...]      DIR is where `clients.py prepare` has brought the clients

Each case submits a job, harms it where its name says so, and compares the answer that the job has written. An online service shares the nodes
all the time. Every process is a child of this script and is stopped at its end. Nothing is decided by a time: limits only end what hangs.
"""

import argparse
import getpass
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

import acl
import clients as hadoop
import flink
import rest
import tokens

WITHIN_S = 600
ANSWER = "keys 100 sum 20000 pi 3.1 executors"


def free_ports(n):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def free_block(n):
    """The first of some ports in a row that nobody listens on."""
    while True:
        (first,) = free_ports(1)
        sockets = []
        try:
            for port in range(first, first + n):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return first
        except (OSError, OverflowError):
            continue
        finally:
            for one in sockets:
                one.close()


def until(what, ready, within=WITHIN_S):
    """Waits until `ready` gives something."""
    last = time.monotonic() + within
    while True:
        found = ready()
        if found:
            return found
        if time.monotonic() > last:
            raise TimeoutError(f"{what}: not so after {within} s")
        time.sleep(0.2)


def is_alive(pid):
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def in_background(what):
    """Runs something beside this thread; a function that waits for it and gives what it has given."""
    given = {}
    thread = threading.Thread(target=lambda: given.update(it=what()))
    thread.start()

    def finish():
        thread.join()
        return given["it"]

    return finish


def containers(application):
    """Processes of an application's containers, by container: (container, pid) of each Java process."""
    found = []
    mark = f"CONTAINER_ID=container_{application.removeprefix('application_')}_".encode()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "comm").read_text().strip() != "java":
                continue
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [(one.split(b"=", 1)[1].decode(), int(entry.name)) for one in variables if one.startswith(mark)]
    return sorted(found)


class Godel:
    """A control plane with real agents."""

    def __init__(self, binary, scratch, n_adapters):
        self.binary, self.scratch, self.children = binary, scratch, {}
        # State, dispatcher, binder, scheduler, YARN adapter and rescheduler.
        self.port, ports = free_block(6), free_ports(5 * n_adapters)
        self.address = f"https://127.0.0.1:{self.port}"
        self.faces = [dict(zip(["client", "master", "admin", "rest", "own"], ports[5 * i:5 * i + 5])) for i in range(n_adapters)]
        self.start("up", "up", "--memory", "--port", str(self.port), "--set", "state.server.metrics_listen=127.0.0.1:0")
        until("control plane", lambda: self.ask("status") is not None, 60)
        self.call("queue", "create", "default")
        # Containers run as whoever runs this.
        users = scratch / "users.yaml"
        users.write_text(f"agent: {{principal: yarn/*, users: [{{user: {getpass.getuser()}, administers: true}}]}}\n")
        for idx in range(n_adapters):
            self.adapter(idx)
        for name in ["n1", "n2"]:
            self.start(name, "agent", "--name", name, "--state-dir", str(scratch / name), "--advertise", "127.0.0.1",
                       *self.joining("agent", name, "node", "join-token"), "--config", str(users),
                       "--set", "agent.yarn.enabled=true", "--set", f"agent.yarn.listen=127.0.0.1:{free_ports(1)[0]}",
                       "--set", "agent.metrics_listen=127.0.0.1:0")
        until("nodes", lambda: len([n for n in self.ask("node", "list") or [] if n["status"] == "Ready"]) == 2, 120)

    def environment(self):
        """That of its own commands: they find the control plane by the context that it keeps."""
        rest = {name: value for name, value in os.environ.items() if name != "GODEL_ADDR"}
        return rest | {"GODEL_CONTEXTS": str(self.scratch / "contexts.yaml")}

    def joining(self, part, name, *verb):
        """Flags with which a process joins: at its first start with a token that the verb makes, later with what it has kept."""
        token = self.scratch / f"{name}.token"
        if not token.exists():
            # What to do with it is said on standard error.
            with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                subprocess.run([self.binary, *verb], env=self.environment(), stdin=subprocess.DEVNULL, stdout=file,
                               stderr=subprocess.DEVNULL, timeout=60, check=True)
        return ["--address", self.address, "--join-file", str(token), "--set", f"{part}.identity.dir={self.scratch / name}-identity"]

    def start(self, name, *args):
        log = open(self.scratch / f"{name}.log", "ab")
        self.children[name] = subprocess.Popen([self.binary, *args], env=self.environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def adapter(self, idx, *more):
        """Starts an adapter, or starts it again."""
        at = self.faces[idx]
        addresses = [part for face in ["client", "master", "admin", "rest"] for part in ("--set", f"yarn.{face}_address=127.0.0.1:{at[face]}")]
        name = f"yarn{idx}"
        self.start(name, "serve", "yarn", "--name", name, *self.joining("yarn", name, "join-token", "--role", "yarn"), "--listen", f"127.0.0.1:{at['own']}", "--metrics-listen", "127.0.0.1:0", *addresses, *more)

    def kill(self, name):
        child = self.children.pop(name)
        child.kill()
        child.wait()

    def call(self, *args):
        done = subprocess.run([self.binary, *args], env=self.environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"godel {' '.join(args)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def ask(self, *args):
        """What a command says as JSON; `None`: it has failed."""
        done = subprocess.run([self.binary, *args, "-o", "json"], env=self.environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def leader(self):
        """The adapter that answers."""
        def leads(idx):
            try:
                with socket.create_connection(("127.0.0.1", self.faces[idx]["rest"]), 1) as to:
                    to.sendall(b"GET /ws/v1/cluster/info HTTP/1.0\r\nHost: a\r\n\r\n")
                    return b'"ACTIVE"' in to.makefile("rb").read()
            except OSError:
                return False
        return until("leading adapter", lambda: [idx for idx in range(len(self.faces)) if f"yarn{idx}" in self.children and leads(idx)], 120)[0]

    def applications(self):
        return self.ask("yarn", "app", "list") or []

    def stop(self):
        for name in sorted(self.children, reverse=True):
            self.children[name].terminate()
        for child in self.children.values():
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()


class Jobs:
    """Spark jobs on a godel."""

    def __init__(self, godel, args, scratch):
        self.godel, self.scratch, self.jars, self.failed = godel, scratch, args.clients / "jars", []
        self.directory, self.containers = args.clients, containers
        at = [{"client": f"127.0.0.1:{one['client']}", "scheduler": f"127.0.0.1:{one['master']}", "admin": f"127.0.0.1:{one['admin']}"}
              for one in godel.faces]
        self.clients = hadoop.Clients(types.SimpleNamespace(clients=args.clients, **at[0]), scratch)
        self.configuration = self.clients.plain
        if len(at) == 2:
            pair = {"yarn.resourcemanager.ha.enabled": "true", "yarn.resourcemanager.ha.rm-ids": "rm1,rm2",
                    "yarn.resourcemanager.cluster-id": "godel", "yarn.client.failover-sleep-base-ms": 200,
                    "yarn.client.failover-sleep-max-ms": 2_000}
            for idx, addresses in enumerate(at, 1):
                pair[f"yarn.resourcemanager.address.rm{idx}"] = addresses["client"]
                pair[f"yarn.resourcemanager.scheduler.address.rm{idx}"] = addresses["scheduler"]
                pair[f"yarn.resourcemanager.admin.address.rm{idx}"] = addresses["admin"]
                pair[f"yarn.resourcemanager.webapp.address.rm{idx}"] = f"127.0.0.1:{godel.faces[idx - 1]['rest']}"
            self.configuration = scratch / "two"
            hadoop.write_configuration(self.configuration, pair)

    def submit(self, name, mode="cluster", pause_ms=0, conf=None, environment=None):
        """Starts spark-submit; a function that waits for it and judges."""
        opens = [option for package in hadoop.OPENS + ["sun.nio.ch", "sun.security.action"]
                 for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
        java = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in hadoop.OPENS + ["sun.nio.ch", "sun.security.action"])
        values = {
            "spark.yarn.jars": f"local:{self.jars}/*", "spark.yarn.queue": "default", "spark.executor.instances": 2,
            "spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.yarn.am.memory": "512m", "spark.ui.enabled": "false",
            "spark.yarn.stagingDir": f"file://{self.scratch}", "spark.shuffle.service.enabled": "false",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.driver.extraJavaOptions": java, "spark.executor.extraJavaOptions": java, "spark.yarn.am.extraJavaOptions": java,
        } | (conf or {})
        answer = self.scratch / f"{name}.txt"
        confs = [part for key, value in values.items() for part in ("--conf", f"{key}={value}")]
        known = {one["id"] for one in self.godel.applications()}
        outcome = {}

        def run():
            outcome["code"], outcome["said"] = self.clients.run(
                "org.apache.spark.deploy.SparkSubmit", "--master", "yarn", "--deploy-mode", mode, *confs, "--name", name, "--class",
                "SparkShuffle", str(self.clients.programs), str(answer), str(pause_ms),
                configuration=self.configuration, options=["-Xmx1g", *opens], within=WITHIN_S, environment=environment)

        thread = threading.Thread(target=run)
        thread.start()

        def finish(executors=r"2"):
            thread.join()
            said = answer.read_text() if answer.exists() else "nothing"
            good = outcome["code"] == 0 and said.startswith(ANSWER) and (executors is None or said.split()[-1] == executors)
            print(f"{'ok    ' if good else 'FAILED'} {name}: {said.strip()}", flush=True)
            if not good:
                self.failed.append(name)
                print(f"  exit code {outcome['code']}\n" + "\n".join((outcome["said"] or "").splitlines()[-60:]), flush=True)

        def application():
            new = [one for one in self.godel.applications() if one["id"] not in known]
            return new[0]["id"] if new else None

        return types.SimpleNamespace(finish=finish, id=lambda: until("application", application))

    def client(self):
        self.submit("client", mode="client").finish()

    def cluster(self):
        self.submit("cluster").finish()

    def dynamic(self):
        self.submit("dynamic", conf={
            "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.maxExecutors": 3, "spark.executor.instances": 1, "spark.dynamicAllocation.minExecutors": 1,
        }, pause_ms=500).finish(executors=None)

    def running(self, job, n, attempt=1):
        """Waits until an application has so many Java processes in an attempt; its containers."""
        name = job.id()
        mark = f"_{attempt:02}_"
        return until("containers", lambda: (found := [one for one in containers(name) if mark in one[0]]) and len({c for c, _ in found}) >= n and found)

    def executor_killed(self):
        job = self.submit("executor-killed", pause_ms=3_000)
        _, pid = self.running(job, 3)[-1]
        os.kill(pid, signal.SIGKILL)
        job.finish(executors=None)

    def master_killed(self):
        job = self.submit("master-killed", pause_ms=3_000)
        _, pid = self.running(job, 3)[0]
        os.kill(pid, signal.SIGKILL)
        self.running(job, 3, attempt=2)
        job.finish()

    def adapter_killed(self):
        job = self.submit("adapter-killed", pause_ms=3_000)
        self.running(job, 3)
        leader = self.godel.leader()
        self.godel.kill(f"yarn{leader}")
        if len(self.godel.faces) == 1:
            self.godel.adapter(leader)
        self.godel.leader()
        job.finish()
        if len(self.godel.faces) == 2:
            self.godel.adapter(leader)

    def preempted(self):
        """An online service of a higher priority takes the room of executors, which go on for `yarn.preemption_grace`; so does the job with the rest."""
        job = self.submit("preempted", pause_ms=3_000, conf={"spark.executor.memory": "1g"})
        processes = {int(container.rsplit("_", 1)[1]) - 1: pid for container, pid in self.running(job, 3)}
        name = "yarn/" + job.id().replace("_", "-")
        nodes = self.godel.ask("node", "list")
        free = max(node["allocatable"]["memory"] - node["allocated"].get("memory", 0) for node in nodes)
        unit = self.scratch / "online.yaml"
        unit.write_text(ONLINE.format(memory=(free + (600 << 20)) >> 20 << 20))
        self.godel.call("unit", "submit", "-f", str(unit))

        def evicted():
            shown = (self.godel.ask("unit", "describe", name) or {}).get("running_units", [])
            return [one["ordinal"] for one in shown if one["eviction"] == "preempted"]

        ended = [ordinal for ordinal in until("eviction", evicted) if not is_alive(processes.get(ordinal))]
        if ended:
            self.judge("preempted", f"no notice was given to ordinals {ended}")
        until("online service", lambda: (self.godel.ask("unit", "describe", "online") or {}).get("running") == 1)
        self.godel.call("unit", "cancel", "online")
        job.finish(executors=None)

    def judge(self, name, said):
        """Notes how a case went that is no job; `said` is empty if nothing is wrong."""
        print(f"{'FAILED' if said else 'ok    '} {name}{': ' + said if said else ''}", flush=True)
        if said:
            self.failed.append(name)

    def cli(self):
        """The commands of `yarn`, with what they say."""
        before = self.clients.n_failed
        hadoop.run(self.clients, False)
        n_failed = self.clients.n_failed - before
        self.judge("cli", f"{n_failed} of the above failed" if n_failed else "")

    def acl(self):
        """An application runs while a stranger is refused on every face, by an adapter with access lists."""
        rules = self.scratch / "rules"
        acl.write_rules(rules)
        for name in [name for name in self.godel.children if name.startswith("yarn")]:
            self.godel.kill(name)
        self.godel.adapter(0, "--set", f"yarn.conf_dir={rules}")
        self.godel.leader()
        job = self.submit("acl", pause_ms=3_000)
        self.running(job, 3)
        self.judge("acl: a stranger is refused", acl.wrong(self, job.id()))
        job.finish()
        self.godel.kill("yarn0")
        for idx in range(len(self.godel.faces)):
            self.godel.adapter(idx)
        self.godel.leader()

    def token(self):
        """A job with a token file belongs to the principal, and the file ends with the token."""
        token = tokens.Token(self)
        until("adapter that knows the principal", lambda: token.list()[0] == 0, 60)
        job = self.submit("token", pause_ms=3_000, environment=token.environment)
        self.running(job, 3)
        self.judge("token: the job is its principal's", token.wrong(job.id()))
        job.finish()
        until("end of the token", token.revoke(), 60)
        self.judge("token: REST after its end", "" if token.rest()[0] == 401 else f"{token.rest()}")

    def api_client(self):
        """The calls of the Python package yarn-api-client."""
        job = self.submit("api-client", pause_ms=3_000)
        self.running(job, 3)
        address = f"http://127.0.0.1:{self.godel.faces[self.godel.leader()]['rest']}"
        done = subprocess.run([sys.executable, "-B", rest.__file__, address], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=WITHIN_S)
        print(done.stdout.strip(), flush=True)
        self.judge("api-client", f"exit code {done.returncode}" if done.returncode else "")
        job.finish()

    def flink_application(self):
        flink.application(self, self.directory, until, in_background)

    def flink_session(self):
        flink.session(self, self.directory, until, in_background)


ONLINE = """name: online
queue: default
class: service
priority: 1000
replicas: 1
template:
  requests: {{cpu: 100m, memory: {memory}}}
  command: [sleep, "100000"]
"""

# Only if they are named: Flink is brought by `flink.py prepare`.
OTHER_CASES = ["flink-application", "flink-session"]
CASES = ["client", "cluster", "token", "dynamic", "executor-killed", "master-killed", "adapter-killed", "preempted", "cli", "api-client", "acl"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--godel", type=pathlib.Path, required=True, help="the binary")
    parser.add_argument("--clients", type=pathlib.Path, required=True, help="where `clients.py prepare` has brought the clients")
    parser.add_argument("--adapters", type=int, default=1, choices=[1, 2], help="how many adapters run; with two, clients know both")
    parser.add_argument("--keep", type=pathlib.Path, help="keep logs and answers in this new folder")
    parser.add_argument("cases", nargs="*", default=CASES, metavar="CASE",
                        help=f"default: all of {', '.join(CASES)}; with Flink: {', '.join(OTHER_CASES)}")
    args = parser.parse_args()
    args.clients, args.godel = args.clients.resolve(), args.godel.resolve()
    unknown = [case for case in args.cases if case not in CASES + OTHER_CASES]
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(CASES + OTHER_CASES)}")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        if args.keep:
            args.keep.mkdir(parents=True)
            scratch = args.keep.resolve()
        # Containers run as users of their own.
        scratch.chmod(0o1777)
        godel = Godel(str(args.godel), scratch, args.adapters)
        try:
            jobs = Jobs(godel, args, scratch)
            for case in args.cases:
                getattr(jobs, case.replace("-", "_"))()
            print(godel.call("audit"), flush=True)
            failed = jobs.failed
        finally:
            godel.stop()
    if failed:
        sys.exit(f"{', '.join(failed)} failed")


if __name__ == "__main__":
    main()
