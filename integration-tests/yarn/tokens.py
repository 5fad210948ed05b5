"""A token file of a principal: a job that unmodified clients submit with it is the principal's, and the file ends with the token."""

import json
import urllib.error
import urllib.request

import clients as hadoop

PRINCIPAL = "tia"


class Token:
    """A principal's token as Hadoop's clients and as REST show it."""

    def __init__(self, jobs):
        self.jobs = jobs
        self.file, plain = jobs.scratch / "tia.hadoop", jobs.scratch / "tia.token"
        addresses = ",".join(f"127.0.0.1:{at['client']}" for at in jobs.godel.faces)
        jobs.godel.call("token", "create", PRINCIPAL, "--queue", "default", "--yarn", str(self.file), "--file", str(plain),
                        "--yarn-address", addresses)
        self.text = plain.read_text().splitlines()[0]
        self.environment = {"HADOOP_TOKEN_FILE_LOCATION": str(self.file)}

    def list(self):
        """What `yarn application -list` says with the file: exit code and text."""
        return self.jobs.clients.run(hadoop.CLI + "ApplicationCLI", "application", "-list", configuration=self.jobs.configuration,
                                     environment=self.environment)

    def rest(self):
        """What the REST API says of who calls: status and name."""
        at = f"http://127.0.0.1:{self.jobs.godel.faces[self.jobs.godel.leader()]['rest']}/ws/v1/cluster/userinfo"
        request = urllib.request.Request(at, headers={"Authorization": f"Bearer {self.text}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())["clusterUserInfo"]["requestedUser"]
        except urllib.error.HTTPError as refused:
            return refused.code, ""

    def wrong(self, application):
        """What is wrong while the job runs; empty: nothing."""
        found = []
        unit = self.jobs.godel.ask("unit", "describe", "yarn/" + application.replace("_", "-")) or {}
        if unit.get("owner") != PRINCIPAL:
            found.append(f"its unit is owned by {unit.get('owner')}")
        if self.rest() != (200, PRINCIPAL):
            found.append(f"REST says {self.rest()}")
        # Who only says so is somebody else.
        code, said = self.jobs.clients.run(hadoop.CLI + "ApplicationCLI", "application", "-kill", application,
                                           configuration=self.jobs.configuration, environment={"HADOOP_USER_NAME": PRINCIPAL})
        if code == 0 or f"yarn-simple:{PRINCIPAL} has not proved its name" not in said:
            found.append(f"a client without the token ends it: {code}: {said}")
        return "; ".join(found)

    def revoke(self):
        """Revokes the token; what still counts after that; empty: nothing."""
        for one in self.jobs.godel.ask("token", "list", PRINCIPAL):
            self.jobs.godel.call("token", "revoke", one["id"])

        def ended():
            code, said = self.list()
            return code != 0 and "was revoked" in said

        return ended
