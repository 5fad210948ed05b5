#!/usr/bin/env python3
"""Unmodified Flink on a godel, for the cases flink-application and flink-session of jobs.py.

    flink.py prepare DIR         bring Flink to DIR/flink (231 MB, once) and compile FlinkSum; `clients.py prepare DIR` was there before

Flink comes from the package apache-flink-libraries of PyPI, whose flink-dist has the client of YARN. Hadoop's classes are those of pyspark, for
the client and, by `yarn.application.classpath`, for what runs in containers.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile

import clients as hadoop

PACKAGE = "apache-flink-libraries==1.20.1"
HERE = pathlib.Path(__file__).resolve().parent
HADOOP = ["hadoop-client-api-3.3.4.jar", "hadoop-client-runtime-3.3.4.jar", "commons-logging-1.1.3.jar"]
WITHIN_S = 600
ANSWER = "keys 100 sum 200010000"
SESSION = "org.apache.flink.yarn.cli.FlinkYarnSessionCli"
OPENS = ["java.lang", "java.lang.reflect", "java.net", "java.io", "java.text", "java.time", "java.util", "java.util.concurrent",
         "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.net.util"]


def prepare(directory):
    """Brings Flink to a directory; what is there already stays."""
    lib = directory / "flink" / "lib"
    if not lib.is_dir():
        (directory / "flink").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", scratch, PACKAGE]
            subprocess.run(pip, check=True)
            unpacked = pathlib.Path(scratch) / "lib"
            unpacked.mkdir()
            with tarfile.open(next(pathlib.Path(scratch).glob("*.tar.gz"))) as archive:
                for member in archive:
                    path = pathlib.PurePosixPath(member.name)
                    if member.isfile() and path.suffix == ".jar" and path.parts[1:3] == ("deps", "lib"):
                        (unpacked / path.name).write_bytes(archive.extractfile(member).read())
            unpacked.rename(lib)
    classes = directory / "flink" / "classes"
    classes.mkdir(exist_ok=True)
    subprocess.run(["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(classes), str(HERE / "FlinkSum.java")], check=True)
    subprocess.run(["jar", "cf", str(directory / "flink" / "sum.jar"), "-C", str(classes), "."], check=True)


class Flink:
    """Flink's client with a configuration for the adapter of a `Jobs`."""

    def __init__(self, jobs, directory):
        self.jobs, self.lib, self.program = jobs, directory / "flink" / "lib", directory / "flink" / "sum.jar"
        if not self.lib.is_dir():
            raise FileNotFoundError(f"there is no Flink in {directory}: run `flink.py prepare` first")
        self.hadoop = [str(jobs.jars / name) for name in HADOOP if (jobs.jars / name).exists()]
        self.hadoop_conf = jobs.scratch / "flink-hadoop"
        properties = re.findall("<name>(.*?)</name><value>(.*?)</value>", (jobs.configuration / "yarn-site.xml").read_text())
        if not self.hadoop_conf.is_dir():
            hadoop.write_configuration(self.hadoop_conf, dict(properties) | {"yarn.application.classpath": ",".join([str(self.hadoop_conf), *self.hadoop])})
            # Flink reads this file where a process has none of its own.
            (self.hadoop_conf / "log4j2.properties").unlink()
        self.conf = jobs.scratch / "flink-conf"
        self.conf.mkdir(exist_ok=True)
        opens = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENS)
        values = {
            "env.java.opts.all": opens, "jobmanager.memory.process.size": "1024m", "taskmanager.memory.process.size": "1024m",
            "taskmanager.numberOfTaskSlots": "1", "parallelism.default": "2", "yarn.application.queue": "default",
            "yarn.staging-directory": f"file://{jobs.scratch}", "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "5", "restart-strategy.fixed-delay.delay": "1s",
            # A killed process is noticed by its connections, and by this at the latest.
            "heartbeat.timeout": "20000", "heartbeat.interval": "3000",
        }
        (self.conf / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
        for name in ["log4j.properties", "log4j-console.properties", "log4j-session.properties"]:
            (self.conf / name).write_text("rootLogger.level = INFO\nrootLogger.appenderRef.out.ref = out\nappender.out.name = out\n"
                                          "appender.out.type = CONSOLE\nappender.out.layout.type = PatternLayout\n"
                                          "appender.out.layout.pattern = %d{HH:mm:ss} %-5p %c{1} %m%n\n")

    def run(self, main, *args, stdin=None):
        """Runs a class of Flink; its exit code and what it has written."""
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENS]
        path = ":".join([str(self.conf), f"{self.lib}/*", *self.hadoop, str(self.hadoop_conf)])
        command = ["java", "-Xmx512m", *opens, f"-Dlog4j.configurationFile=file:{self.conf}/log4j.properties", "-cp", path, main, *args]
        env = os.environ | {"HADOOP_USER_NAME": hadoop.USER, "HADOOP_CONF_DIR": str(self.hadoop_conf), "FLINK_CONF_DIR": str(self.conf),
                            "FLINK_LIB_DIR": str(self.lib)}
        try:
            done = subprocess.run(command, env=env, input=stdin, stdin=None if stdin else subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=WITHIN_S)
            return done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            return None, (late.stdout or b"").decode(errors="replace") if isinstance(late.stdout, (bytes, type(None))) else late.stdout

    def job(self, verb, name, pause_ms, *options):
        """Arguments that run the program; the file of its answer."""
        answer = self.jobs.scratch / f"{name}.txt"
        return [verb, *options, "-c", "FlinkSum", str(self.program), str(answer), str(pause_ms)], answer


def judge(jobs, name, outcome, answers, application):
    """Whether the client went well, the answers are right and the application has succeeded."""
    said = [answer.read_text().strip() if answer.exists() else "nothing" for answer in answers]
    ended = next((one for one in jobs.godel.applications() if one["id"] == application), {})
    wrong = [] if outcome[0] == 0 else [f"exit code {outcome[0]}\n" + "\n".join(outcome[1].splitlines()[-60:])]
    wrong += [f"says {one}" for one in said if one != ANSWER]
    if ended.get("final_status") != "SUCCEEDED":
        wrong.append(f"ended as {ended}")
    jobs.judge(name, "; ".join(wrong))


def new_application(jobs, known, until):
    """The application that was submitted last."""
    def found():
        new = [one["id"] for one in jobs.godel.applications() if one["id"] not in known]
        return new[0] if new else None
    return until("application", found)


def application(jobs, directory, until, in_background):
    """A batch job in application mode, of which a TaskManager is killed."""
    flink = Flink(jobs, directory)
    known = {one["id"] for one in jobs.godel.applications()}
    args, answer = flink.job("run-application", "flink-application", 1_000, "-t", "yarn-application")
    finish = in_background(lambda: flink.run("org.apache.flink.client.cli.CliFrontend", *args))
    name = new_application(jobs, known, until)
    workers = until("TaskManagers", lambda: (found := managers(jobs, name)) and len(found) >= 2 and found)
    os.kill(workers[-1], signal.SIGKILL)
    outcome = finish()
    until("end of the application", lambda: is_over(jobs, name))
    judge(jobs, "flink-application", outcome, [answer], name)


def session(jobs, directory, until, in_background):
    """A session cluster that takes two jobs one after the other; a TaskManager is killed in the second."""
    flink = Flink(jobs, directory)
    known = {one["id"] for one in jobs.godel.applications()}
    outcome = flink.run(SESSION, "-d", "-nm", "session")
    name = new_application(jobs, known, until)
    answers = []
    for number, pause_ms in enumerate([0, 1_000], 1):
        args, answer = flink.job("run", f"flink-session-{number}", pause_ms, "-t", "yarn-session", f"-Dyarn.application.id={name}")
        answers.append(answer)
        finish = in_background(lambda args=args: flink.run("org.apache.flink.client.cli.CliFrontend", *args))
        if pause_ms:
            workers = until("TaskManagers", lambda: (found := managers(jobs, name)) and len(found) >= 2 and found)
            os.kill(workers[-1], signal.SIGKILL)
        ran = finish()
        outcome = outcome if outcome[0] != 0 else ran
    stopped = flink.run(SESSION, "-id", name, stdin="stop\n")
    outcome = outcome if outcome[0] != 0 else stopped
    until("end of the application", lambda: is_over(jobs, name))
    judge(jobs, "flink-session", outcome, answers, name)


def managers(jobs, name):
    """Processes of the TaskManagers of an application: its containers but for the master."""
    return [pid for container, pid in jobs.containers(name) if not container.endswith("_000001")]


def is_over(jobs, name):
    """Whether an application has ended."""
    return any(one["id"] == name and one["state"] in ["FINISHED", "FAILED", "KILLED"] for one in jobs.godel.applications())


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "prepare":
        sys.exit(__doc__)
    prepare(pathlib.Path(sys.argv[2]).resolve())
