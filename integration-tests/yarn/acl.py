"""Access lists of YARN, asked on every face: who may submit to a queue, and who may end an application."""

import json
import subprocess
import urllib.error
import urllib.request

import clients as hadoop

STRANGER = "mallory"


def write_rules(directory):
    """The folder that `yarn.conf_dir` names: one user may submit, nobody is an administrator but `boss`."""
    hadoop.write_configuration(directory, {"yarn.acl.enable": "true", "yarn.admin.acl": "boss"})
    prefix = "yarn.scheduler.capacity.root"
    values = {f"{prefix}.queues": "default", f"{prefix}.default.capacity": 100, f"{prefix}.acl_submit_applications": " ",
              f"{prefix}.acl_administer_queue": " ", f"{prefix}.default.acl_submit_applications": hadoop.USER,
              f"{prefix}.default.acl_administer_queue": " "}
    lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in values.items()]
    (directory / "capacity-scheduler.xml").write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")


def call(method, address, user, body):
    """A call of the REST API: status and what the exception says."""
    request = urllib.request.Request(f"{address}?user.name={user}", json.dumps(body).encode(), {"Content-Type": "application/json"},
                                     method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())["RemoteException"]["message"]


def wrong(jobs, application):
    """What a stranger may do to an application that is not its own, though it may not; empty: nothing."""
    forbidden = f"User {STRANGER} cannot perform operation MODIFY_APP on {application}"
    found = []
    code, said = jobs.clients.run(hadoop.CLI + "ApplicationCLI", "application", "-kill", application, configuration=jobs.configuration,
                                  environment={"HADOOP_USER_NAME": STRANGER})
    if code == 0 or forbidden not in said or "AccessControlException" not in said:
        found.append(f"Hadoop RPC says {code}: {said}")
    rest = f"http://127.0.0.1:{jobs.godel.faces[jobs.godel.leader()]['rest']}/ws/v1/cluster/apps"
    status, said = call("PUT", f"{rest}/{application}/state", STRANGER, {"state": "KILLED"})
    if status != 403 or forbidden not in said:
        found.append(f"REST says {status}: {said}")
    status, said = call("POST", rest, STRANGER, {
        "application-id": application.rsplit("_", 1)[0] + "_9999", "application-name": "theft", "queue": "default",
        "am-container-spec": {"commands": {"command": "true"}}, "resource": {"memory": 256, "vCores": 1}})
    if status != 400 or f"User {STRANGER} does not have permission to submit" not in said:
        found.append(f"a submission over REST is answered with {status}: {said}")
    done = subprocess.run([jobs.godel.binary, "yarn", "app", "kill", application, "--user", STRANGER], env=jobs.godel.environment(),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.returncode == 0 or forbidden not in done.stdout:
        found.append(f"gRPC says {done.returncode}: {done.stdout}")
    return "; ".join(found)
