"""Trains PPO on CartPole with environment runners on several nodes.

shoal job submit --code . --requirements requirements.txt -- python train.py --env-runners 5
"""

from __future__ import annotations

import argparse

import ray
from ray.rllib.algorithms.ppo import PPOConfig


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-runners", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=2000, help="environment steps")
    options = parser.parse_args()
    ray.init()
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=options.env_runners)
        .training(train_batch_size_per_learner=options.batch_size, num_epochs=4)
    )
    algorithm = config.build_algo()
    for iteration in range(1, options.iterations + 1):
        result = algorithm.train()
        mean = result["env_runners"]["episode_return_mean"]
        print(f"iteration {iteration}: mean return {mean:.1f}", flush=True)
    nodes = set(algorithm.env_runner_group.foreach_env_runner(
        lambda runner: ray.get_runtime_context().get_node_id(), local_env_runner=False
    ))  # fmt: skip
    print(f"environment runners on {len(nodes)} nodes")
    algorithm.stop()


if __name__ == "__main__":
    main()
