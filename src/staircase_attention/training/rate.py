"""The learning rate at every update."""

import math

from staircase_attention.training.recipe import OptimizerConfig


def learning_rate(config: OptimizerConfig, update: int, num_updates: int) -> float:
    """The rate at an update, counted from 0: warm-up, then constant, linear or cosine.

    >>> config = OptimizerConfig(learning_rate=1.0, warm_up=4, decay="linear")
    >>> [learning_rate(config, update, num_updates=8) for update in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if update < config.warm_up:
        return config.learning_rate * (update + 1) / config.warm_up
    done = (update - config.warm_up) / max(1, num_updates - config.warm_up)
    shape = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * done)),
    }[config.decay]
    floor = 0.0 if config.decay == "constant" else config.final_fraction
    return config.learning_rate * (floor + (1.0 - floor) * shape)
