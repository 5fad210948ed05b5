#!/usr/bin/env python3
"""Hadoop's own clients against the Hadoop RPC faces of a godel.

    clients.py prepare DIR                 bring the clients to DIR (317 MB, once) and compile the programs beside this file
    clients.py run --clients DIR ...       call the faces at the given addresses with them, and compare what they say
    clients.py spark --clients DIR ...     run Spark on the faces: client mode, then cluster mode with two executors and a shuffle

The clients come from the package pyspark of PyPI, whose jars have the classes behind `yarn`, `yarn rmadmin` and Spark. `run` submits an application
whose master runs here; it starts nothing on nodes. `spark` needs a whole godel whose agents start containers of YARN, with queue `default`.
"""

import argparse
import getpass
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "pyspark==3.5.3"
HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = ["UnmanagedMaster", "SparkShuffle"]
WITHIN_S = 120
CLI = "org.apache.hadoop.yarn.client.cli."
USER = "anna"
# What Spark's own launcher adds for Java 17.
OPENS = [
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic",
]


def prepare(directory):
    """Brings the clients to a directory; what is there already stays."""
    jars = directory / "jars"
    if not jars.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            archives = list(directory.glob("pyspark-*.tar.gz"))
            if not archives:
                pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", scratch, PACKAGE]
                subprocess.run(pip, check=True)
                archives = list(pathlib.Path(scratch).glob("pyspark-*.tar.gz"))
            unpacked = pathlib.Path(scratch) / "jars"
            unpacked.mkdir()
            with tarfile.open(archives[0]) as archive:
                for member in archive:
                    path = pathlib.PurePosixPath(member.name)
                    if member.isfile() and path.suffix == ".jar" and path.parts[1:3] == ("deps", "jars"):
                        (unpacked / path.name).write_bytes(archive.extractfile(member).read())
            unpacked.rename(jars)
    classes = directory / "classes"
    classes.mkdir(exist_ok=True)
    sources = [str(HERE / f"{name}.java") for name in PROGRAMS]
    subprocess.run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *sources], check=True)
    subprocess.run(["jar", "cf", str(directory / "programs.jar"), "-C", str(classes), "."], check=True)


def write_configuration(directory, properties):
    """Writes the files that HADOOP_CONF_DIR names."""
    directory.mkdir()
    core = {"fs.defaultFS": "file:///", "hadoop.security.authentication": "simple"}
    for name, values in [("core-site.xml", core), ("yarn-site.xml", properties)]:
        lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in values.items()]
        (directory / name).write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")
    (directory / "log4j2.properties").write_text("rootLogger.level = error\n")


class Clients:
    """Hadoop's clients with a configuration for the faces."""

    def __init__(self, args, scratch):
        self.jars = args.clients / "jars"
        self.programs = args.clients / "programs.jar"
        self.n_failed = 0
        patience = {
            "yarn.resourcemanager.connect.max-wait.ms": 10_000,
            "yarn.resourcemanager.connect.retry-interval.ms": 500,
            "yarn.client.failover-sleep-base-ms": 100,
            "yarn.client.failover-sleep-max-ms": 200,
        }
        at = {"address": args.client, "scheduler.address": args.scheduler, "admin.address": args.admin}
        self.plain = scratch / "plain"
        write_configuration(self.plain, patience | {f"yarn.resourcemanager.{name}": value for name, value in at.items()})
        # The first of two is not there.
        pair = {"yarn.resourcemanager.ha.enabled": "true", "yarn.resourcemanager.ha.rm-ids": "rm1,rm2",
                "yarn.resourcemanager.cluster-id": "godel"}
        for name, value in at.items():
            pair[f"yarn.resourcemanager.{name}.rm1"] = "127.0.0.1:1"
            pair[f"yarn.resourcemanager.{name}.rm2"] = value
        for rm in ["rm1", "rm2"]:
            pair[f"yarn.resourcemanager.webapp.address.{rm}"] = "127.0.0.1:1"
        self.pair = scratch / "pair"
        write_configuration(self.pair, patience | pair)
        # Credentials with one token, which make a client negotiate.
        self.tokens = scratch / "tokens"
        self.tokens.write_bytes(b"HDTS\x00\x01\x01a\x02id\x02pw\x01K\x00\x00")

    def run(self, main, *args, configuration=None, options=(), within=WITHIN_S, environment=None):
        """Runs a class; its exit code and what it has written."""
        configuration = configuration or self.plain
        command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-Dlog4j2.level=error", *options,
                   "-cp", f"{configuration}:{self.programs}:{self.jars}/*", main, *args]
        env = os.environ | {"HADOOP_USER_NAME": USER, "HADOOP_CONF_DIR": str(configuration), "TERM": "dumb"}
        env |= environment or {}
        try:
            done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=within)
            return done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            return None, (late.stdout or b"").decode(errors="replace") if isinstance(late.stdout, (bytes, type(None))) else late.stdout

    def expect(self, name, main, *args, says=(), lacks=(), code=0, **how):
        """Runs a class and compares what it says with regular expressions."""
        got, said = self.run(main, *args, **how)
        missing = [words for words in says if not re.search(words, said)]
        unwanted = [words for words in lacks if re.search(words, said)]
        is_good = not missing and not unwanted and got == code
        print(f"{'ok    ' if is_good else 'FAILED'} {name}", flush=True)
        if not is_good:
            self.n_failed += 1
            print(f"  exit code {got}, expected {code}; missing {missing}; unwanted {unwanted}\n" + said, flush=True)
        return said

    def cli(self, command, *args, **how):
        """A command of `yarn`."""
        main = {"application": "ApplicationCLI", "app": "ApplicationCLI", "applicationattempt": "ApplicationCLI",
                "container": "ApplicationCLI", "node": "NodeCLI", "queue": "QueueCLI", "cluster": "ClusterCLI",
                "nodeattributes": "NodeAttributesCLI", "rmadmin": "RMAdminCLI"}[command]
        title = [command] if main == "ApplicationCLI" else []
        where = " (two addresses)" if how.get("configuration") == self.pair else ""
        return self.expect(f"yarn {' '.join([command, *args])}{where}", CLI + main, *title, *args, **how)


def run(clients, stand_in):
    """What every command says."""
    missing = "application_1_0099"
    clients.cli("application", "-list", says=[r"Total number of applications .*:\d+"])
    said = clients.expect(
        "a master that runs here", "UnmanagedMaster",
        says=[r"submitted application_\d+_\d+", r"registered in \S+ with at most \d+ MB",
              r"got 3 containers of 1024 MB, tokens for all: true", r"state RUNNING at http://localhost:1234/", r"ended 3 with -\d+",
              r"refused: .*greater than maximum allowed allocation. Requested resource type=\[memory-mb\]", r"over: FINISHED SUCCEEDED"])
    application = (re.findall(r"submitted (application_\d+_\d+)", said) or [missing])[0]
    attempt = application.replace("application", "appattempt") + "_000001"
    clients.cli("application", "-list", "-appStates", "ALL", says=[application, "unmanaged master", USER, "TEST", "FINISHED", "SUCCEEDED"])
    clients.cli("application", "-list", "-appStates", "FINISHED", "-appTypes", "TEST", says=[application])
    clients.cli("application", "-list", "-appStates", "KILLED", lacks=[application])
    clients.cli("application", "-list", "-appStates", "FINISHED", says=[application],
                environment={"HADOOP_TOKEN_FILE_LOCATION": str(clients.tokens)})
    clients.cli("application", "-status", application,
                says=[f"Application-Id : {application}", "State : FINISHED", "Final-State : SUCCEEDED", "AM Host : localhost",
                      "RPC Port : 1234", "Unmanaged Application : true", "LIFETIME", "Log Aggregation Status : DISABLED"])
    clients.cli("application", "-status", missing, says=[f"Application with id '{missing}' doesn't exist in RM"], code=255)
    clients.cli("application", "-kill", application, says=["has already finished"])
    clients.cli("application", "-kill", missing, says=["doesn't exist in RM"], code=255)
    clients.cli("applicationattempt", "-list", application, says=[attempt, "FINISHED"])
    clients.cli("applicationattempt", "-status", attempt, says=["AM Host : localhost", f"ApplicationAttempt-Id : {attempt}"])
    clients.cli("container", "-list", attempt, says=[r"Total number of containers :\d+"])
    clients.cli("container", "-status", application.replace("application", "container") + "_01_000099", says=["doesn't exist in RM"], code=255)
    clients.cli("node", "-list", says=[r"Total Nodes:\d+", "RUNNING"])
    said = clients.cli("node", "-list", "-all", says=[r"Total Nodes:[1-9]"])
    node = (re.findall(r"(\S+:\d+)\s+RUNNING", said) or ["none:1"])[0]
    clients.cli("node", "-status", node, says=[f"Node-Id : {node}", "Node-State : RUNNING", r"Memory-Capacity : \d+MB", r"CPU-Capacity : \d+ vcores"])
    clients.cli("queue", "-status", "default", says=["Queue Name : default", "State : RUNNING", r"Capacity : \d+", "Preemption : "])
    clients.cli("queue", "-status", "no.such.queue", says=["Cannot get queue from RM by queueName = no.such.queue"], code=255)
    labels = ["<fast:exclusivity=true>"] if stand_in else []
    port = "godel.dev/yarn-port"
    clients.cli("cluster", "--list-node-labels", says=["Node Labels: ", *labels])
    clients.cli("cluster", "--list-node-attributes", says=[port])
    clients.cli("nodeattributes", "-list", says=[port])
    clients.cli("nodeattributes", "-nodestoattributes", says=[port])
    clients.cli("nodeattributes", "-attributestonodes", "-attributes", port, says=[port])
    clients.cli("rmadmin", "-getGroups", getpass.getuser(), says=[rf"{getpass.getuser()} : \S+"])
    clients.cli("rmadmin", "-refreshUserToGroupsMappings")
    clients.cli("rmadmin", "-refreshQueues", says=["godel yarn import-queues"], code=255)
    if stand_in:
        clients.cli("rmadmin", "-refreshNodes", says=["yarn.exclude_file"], code=255)
    clients.cli("rmadmin", "-replaceLabelsOnNode", f"{node}=fast", says=["godel node label"], code=255)
    clients.cli("application", "-list", "-appStates", "ALL", configuration=clients.pair, says=[application])
    clients.expect("a master that runs here (two addresses)", "UnmanagedMaster", says=["over: FINISHED SUCCEEDED"], configuration=clients.pair)
    clients.cli("rmadmin", "-getServiceState", "rm2", configuration=clients.pair, says=["active"])
    clients.cli("rmadmin", "-checkHealth", "rm2", configuration=clients.pair)
    clients.cli("rmadmin", "-transitionToStandby", "rm2", configuration=clients.pair, code=255)
    said = clients.run(CLI + "TopCLI", "-rows", "20", "-cols", "120", "-delay", "1", within=20)[1]
    print("ok     yarn top" if "Queue(s)" in said else f"FAILED yarn top\n{said}", flush=True)
    clients.n_failed += "Queue(s)" not in said


def spark(clients, scratch, queue):
    """Spark in both modes."""
    opens = [option for package in OPENS for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
    opens += ["--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens", "java.base/sun.security.action=ALL-UNNAMED"]
    common = {
        "spark.yarn.jars": f"local:{clients.jars}/*", "spark.yarn.queue": queue, "spark.executor.instances": 2, "spark.executor.memory": "512m",
        "spark.driver.memory": "512m", "spark.yarn.am.memory": "512m", "spark.yarn.stagingDir": f"file://{scratch}", "spark.ui.enabled": "false",
        "spark.shuffle.service.enabled": "false", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    confs = [part for key, value in common.items() for part in ("--conf", f"{key}={value}")]
    for mode in ["client", "cluster"]:
        answer = scratch / f"{mode}.txt"
        submit = ["--master", "yarn", "--deploy-mode", mode, *confs, "--class", "SparkShuffle", str(clients.programs), str(answer)]
        clients.expect(f"Spark, {mode} mode", "org.apache.spark.deploy.SparkSubmit", *submit, options=["-Xmx1g", *opens], within=600)
        said = answer.read_text() if answer.exists() else "nothing"
        is_good = re.fullmatch(r"keys 100 sum 20000 pi 3\.1 executors 2\n", said)
        print(f"{'ok    ' if is_good else 'FAILED'} Spark, {mode} mode, says {said.strip()}", flush=True)
        clients.n_failed += not is_good
    clients.cli("application", "-list", "-appStates", "FINISHED", says=["SPARK", "SUCCEEDED"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("prepare").add_argument("directory", type=pathlib.Path)
    for verb in ["run", "spark"]:
        one = verbs.add_parser(verb)
        one.add_argument("--clients", type=pathlib.Path, required=True, help="where `prepare` has brought the clients")
        one.add_argument("--client", required=True, metavar="HOST:PORT", help="ApplicationClientProtocol")
        one.add_argument("--scheduler", required=True, metavar="HOST:PORT", help="ApplicationMasterProtocol")
        one.add_argument("--admin", required=True, metavar="HOST:PORT", help="ResourceManagerAdministrationProtocol")
        one.add_argument("--stand-in", action="store_true", help="the faces stand in front of a manager for tests")
        one.add_argument("--queue", default="default")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.directory.resolve())
        return
    args.clients = args.clients.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        # Containers run as users of their own.
        scratch.chmod(0o1777)
        clients = Clients(args, scratch)
        if args.verb == "run":
            run(clients, args.stand_in)
        else:
            spark(clients, scratch, args.queue)
    if clients.n_failed:
        sys.exit(f"{clients.n_failed} of the above failed")


if __name__ == "__main__":
    main()
