"""A small project for tests of jobs on hosts: its programs import a module of the project and the
package `shoaltest` of the test's index."""

from __future__ import annotations

import json
import shlex
from typing import Any

from tests.ops.package_index import PORT, PackageIndex
from tests.simcloud.hosts import Host

# Prints for each of N nodes what the code and the package there are.
EVERYWHERE = """
import json, sys, ray, shoaltest
from ray.util.placement_group import placement_group
ray.init(logging_level="ERROR")
nodes = int(sys.argv[1])
spread = placement_group([{"CPU": 1}] * nodes, strategy="STRICT_SPREAD")
ray.get(spread.ready())

@ray.remote(num_cpus=0.1)
def values():
    import helper, shoaltest
    return ray.util.get_node_ip_address(), helper.VALUE, shoaltest.VALUE

def on(index):
    return values.options(placement_group=spread, placement_group_bundle_index=index)

print("result:", json.dumps(sorted(ray.get([on(index).remote() for index in range(nodes)]))))
"""

# One run of a sweep. With --log, it adds a line there, and waits until its node has a file
# /tmp/open, unless x is 1.
RUN = """
import argparse, json, os, socket, time
import shoaltest
from helper import VALUE
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=int)
parser.add_argument("--log")
arguments = parser.parse_args()
if arguments.log:
    with open(arguments.log, "a") as log:
        log.write(f"{arguments.x}\\n")
    while arguments.x > 1 and not os.path.exists("/tmp/open"):
        time.sleep(0.1)
open("model.txt", "w").write(socket.gethostname())
print(json.dumps({"loss": arguments.x * VALUE * shoaltest.VALUE}))
"""


def requirements(index: PackageIndex, *lines: str) -> str:
    """A requirements file for the packages of the index."""
    address = index.host.address
    options = [f"--index-url http://{address}:{PORT}", f"--trusted-host {address}"]
    return "".join(f"{line}\n" for line in (*options, *lines))


async def write_file(laptop: Host, path: str, text: str) -> None:
    name = shlex.quote(path)
    command = f"mkdir -p $(dirname ~/{name}) && cat > ~/{name}"
    (await laptop.run(command, stdin=text)).require(f"writing {path}")


async def write_project(laptop: Host, index: PackageIndex) -> None:
    """A directory ~/code with these programs, where `helper.VALUE` is 2."""
    files = {
        "everywhere.py": EVERYWHERE,
        "run.py": RUN,
        "helper.py": "VALUE = 2\n",
        "requirements.txt": requirements(index, "shoaltest"),
    }
    for name, text in files.items():
        await write_file(laptop, f"code/{name}", text)


def result(output: str) -> Any:
    """What a program printed as its result."""
    (line,) = [line for line in output.splitlines() if line.startswith("result: ")]
    return json.loads(line.removeprefix("result: "))
