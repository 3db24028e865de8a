"""Wait for the end of a run, print its verdict, and fail if the nodes were not accepted."""

import json
import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path

IDENTITY = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Ends of a JobSet and of a Job; the first two mean that the nodes were accepted.
ENDS = ("Completed", "Complete", "Failed")
#: Tries until an error counts, in turns of this many seconds: rights of a new Role come late.
TRIES, SECONDS = 12, 5


def get(path):
    """Return the answer of the API server."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    trust = ssl.create_default_context(cafile=str(IDENTITY / "ca.crt"))
    token = (IDENTITY / "token").read_text(encoding="ascii").strip()
    no_proxy, https = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    request = urllib.request.Request(server + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.build_opener(no_proxy, https).open(request, timeout=20) as answer:
        return json.load(answer)


def end_of(status):
    """Return how a JobSet or Job has ended; empty if it has not."""
    true = {c["type"] for c in status.get("conditions", ()) if c.get("status") == "True"}
    return next((end for end in ENDS if end in true), "")


def main():
    """Return the exit status."""
    failures = 0
    while True:
        try:
            end = end_of(get(os.environ["RUN"]).get("status", {}))
            pods = get(os.environ["PODS"])["items"] if end else []
            failures = 0
        except (OSError, ValueError) as error:
            end, failures = "", failures + 1
            if failures == TRIES:
                return f"the run cannot be read: {error}"
        if end:
            break
        time.sleep(SECONDS)
    for pod in pods:
        for container in pod["status"].get("containerStatuses", ()):
            last = container["state"].get("terminated")
            if container["name"] == "accept" and last:
                print(last.get("message", "").strip())
    print(f"the run is {end}")
    return int(end == "Failed")


if __name__ == "__main__":
    sys.exit(main())
