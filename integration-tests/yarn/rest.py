#!/usr/bin/env python3
"""Plays the calls of the Python package yarn-api-client against the REST API of a YARN adapter.

The package is installed into a folder of its own, which is deleted at the end. The adapter needs a queue `default`; an application without
a managed master is submitted and killed. Exit code 0 only if every call is answered as a ResourceManager answers it.
"""

import argparse
import http.client
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

PACKAGES = ["yarn-api-client==1.0.3"]
ELSEWHERE = "godel does not do this by YARN's API"
N_TRIES = 100
# One reads a file of the client's machine; the others give `headers` to requests twice and fail before anything is sent.
NOT_PLAYED = {"cluster_node_container_memory", "cluster_renew_delegation_token", "cluster_cancel_delegation_token"}


def main(address):
    try:
        urllib.request.urlopen(f"{address}/ws/v1/cluster/info", timeout=10).close()
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"rest.py: no ResourceManager answers at {address}: {error}")
    folder = tempfile.mkdtemp(prefix="yarn-api-client-")
    try:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--target", folder]
        subprocess.run(pip + PACKAGES, check=True)
        sys.path.insert(0, folder)
        return play(address)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def play(address):
    from yarn_api_client.auth import SimpleAuth
    from yarn_api_client.errors import APIError
    from yarn_api_client.resource_manager import ResourceManager

    played = []

    def call(name, /, *args, **kwargs):
        answer = getattr(rm, name)(*args, **kwargs)
        played.append(name)
        return answer.data if hasattr(answer, "data") else answer

    def refused(words, name, /, *args, **kwargs):
        try:
            getattr(rm, name)(*args, **kwargs)
        except APIError as error:
            assert words in str(error), f"{name}: {error}"
            played.append(name)
            return
        raise AssertionError(f"{name} was not refused")

    rm = ResourceManager([address], auth=SimpleAuth("ann"))
    assert rm.get_active_endpoint() == address
    played.append("get_active_endpoint")
    user = rm.request("/ws/v1/cluster/userinfo").data["clusterUserInfo"]
    assert user["requestedUser"] == "ann", user

    info = call("cluster_information")["clusterInfo"]
    assert info["state"] == "STARTED" and info["haState"] == "ACTIVE", info
    metrics = call("cluster_metrics")["clusterMetrics"]
    assert metrics["totalMB"] >= metrics["allocatedMB"] >= 0, metrics
    assert call("cluster_scheduler")["scheduler"]["schedulerInfo"]["queueName"] == "root"
    queue = call("cluster_scheduler_queue", "default")
    assert queue["type"] == "capacitySchedulerLeafQueueInfo", queue
    partition = call("cluster_queue_partition", queue, "")
    assert partition["partitionName"] == "", partition
    assert call("cluster_scheduler_queue_availability", partition, 101.0) is True
    for node in (call("cluster_nodes")["nodes"] or {}).get("node", []):
        assert call("cluster_node", node["id"])["node"]["id"] == node["id"]
    call("scheduler_activities")

    # Submitted, changed and killed.
    new = call("cluster_new_application")
    app_id = new["application-id"]
    assert new["maximum-resource-capability"]["memory"] > 0, new
    submission = {
        "application-id": app_id,
        "application-name": "rest",
        "application-type": "REST",
        "queue": "default",
        "unmanaged-AM": True,
        "application-tags": {"tag": ["Conformance"]},
    }
    assert call("cluster_submit_application", submission) == {}
    app = call("cluster_application", app_id)["app"]
    assert (app["user"], app["name"], app["applicationTags"]) == ("ann", "rest", "conformance"), app
    assert app["unmanagedApplication"] is True and app["finalStatus"] == "UNDEFINED", app
    assert call("cluster_application_state", app_id)["state"] in ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
    listed = call(
        "cluster_applications",
        states=["ACCEPTED", "SUBMITTED", "NEW_SAVING", "NEW"],
        user="ann",
        queue="default",
        limit="10",
        started_time_begin="0",
        application_types=["rest"],
        application_tags=["conformance"],
        name="rest",
        de_selects=["resourceRequests"],
    )["apps"]["app"]
    assert app_id in [app["id"] for app in listed], listed
    assert not call("cluster_applications", final_status="SUCCEEDED", user="nobody-at-all")["apps"]
    statistics = call("cluster_application_statistics", application_types=["rest"])["appStatInfo"]["statItem"]
    assert sum(item["count"] for item in statistics) >= 1, statistics
    call("application_activities", app_id)
    assert call("cluster_get_application_queue", app_id)["queue"].split(".")[-1] == "default"
    moved = call("cluster_change_application_queue", app_id, "default")
    assert moved["queue"].split(".")[-1] == "default", moved
    assert call("cluster_get_application_priority", app_id)["priority"] == 0
    assert call("cluster_change_application_priority", app_id, 0)["priority"] == 0
    timeouts = call("cluster_application_timeouts", app_id)["timeouts"]["timeout"]
    assert timeouts[0]["expiryTime"] == "UNLIMITED", timeouts
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000+0000", time.gmtime(time.time() + 3600))
    changed = call("cluster_update_application_timeout", app_id, "LIFETIME", at)["timeout"]
    assert changed["expiryTime"] == at and 3500 < changed["remainingTimeInSeconds"] <= 3600, changed
    assert call("cluster_application_timeout", app_id, "LIFETIME")["timeout"]["type"] == "LIFETIME"
    for _ in range(N_TRIES):
        if call("cluster_application_kill", app_id)["state"] == "KILLED":
            break
        time.sleep(0.1)
    assert call("cluster_application_state", app_id)["state"] == "KILLED"
    assert call("cluster_application", app_id)["app"]["finishedTime"] > 0

    # Attempts and containers of whatever there is.
    for app in call("cluster_applications")["apps"]["app"]:
        attempts = call("cluster_application_attempts", app["id"])["appAttempts"] or {}
        for attempt in attempts.get("appAttempt", []):
            known = (app["id"], attempt["appAttemptId"])
            assert call("cluster_application_attempt_info", *known)["appAttemptId"] == known[1]
            containers = call("cluster_application_attempt_containers", *known).get("container", [])
            for container in containers if isinstance(containers, list) else [containers]:
                one = call("cluster_application_attempt_container_info", *known, container["containerId"])
                assert one["containerId"] == container["containerId"], one

    # Errors, and what godel has other ways for.
    refused("NotFoundException", "cluster_application", "application_1_0001")
    refused("BadRequestException", "cluster_application", "application_x")
    refused("NotFoundException", "cluster_node", "nowhere:1")
    refused("Unknown queue", "cluster_applications", queue="no-such-queue")
    refused(ELSEWHERE, "cluster_node_update_resource", "nowhere:1", {})
    refused(ELSEWHERE, "cluster_reservations")
    refused(ELSEWHERE, "cluster_new_reservation")
    refused(ELSEWHERE, "cluster_submit_reservation", {})
    refused(ELSEWHERE, "cluster_update_reservation", {})
    refused(ELSEWHERE, "cluster_delete_reservation", "reservation_1_1")
    refused(ELSEWHERE, "cluster_new_delegation_token", "ann")
    refused(ELSEWHERE, "cluster_scheduler_conf_mutation")
    refused(ELSEWHERE, "cluster_modify_scheduler_conf_mutation", {})
    refused(ELSEWHERE, "cluster_container_signal", "container_1_0001_01_000001", "GRACEFUL_SHUTDOWN")

    public = {name for name in dir(ResourceManager) if name.startswith(("cluster_", "scheduler_", "application_"))}
    missing = public - set(played) - NOT_PLAYED
    assert not missing, f"not played: {sorted(missing)}"
    print(f"{len(played)} calls of {len(set(played))} methods of yarn-api-client passed at {address}")
    return 0


def address_of(text):
    try:
        url = urllib.parse.urlsplit(text)
    except ValueError:
        url = None
    if not url or url.scheme != "http" or not url.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as http://127.0.0.1:8088")
    return text.rstrip("/")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="ADDRESS", type=address_of, help="the REST API (yarn.rest_address), as http://127.0.0.1:8088")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(arguments().address))
