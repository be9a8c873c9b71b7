"""A run on two machines (here two Ray nodes), both lost on the way, one after the other; a third joins. Run by a test."""

import os
import sys
import warnings
from pathlib import Path


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    from tests.support.digits import run
    from tiltproof import RayWorkers
    from tiltproof.distributed import ray_workers

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    machines = [cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)]
    start, begun = ray_workers._WorkerPool.start, []

    def start_and_lose(crew, hand, task, *what):
        start(crew, hand, task, *what)
        begun.append(task)
        if len(begun) in (4, 7):
            cluster.remove_node(machines.pop(), allow_graceful=False)
        if len(begun) == 7:
            cluster.add_node(num_cpus=1)

    ray_workers._WorkerPool.start = start_and_lose
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        run(Path(sys.argv[1]) / "shared", workers=RayWorkers(cluster.address))
    lost = [str(notice.message) for notice in notices if "was lost" in str(notice.message)]
    print(len(lost), "batches were under way on lost machines")  # noqa: T201
    assert lost
    cluster.shutdown()


if __name__ == "__main__":
    main()
