"""`staircase estimate`: memory, time and cost of a run before it is paid for.

An update is a list of kernels, which follow from the timetable. The time of a kernel is that of its
operations or of its bytes, whichever is longer, and a latency. `docs/scaling.md` compares estimates
with measurements.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from staircase_attention.checks import check_integer, input_error
from staircase_attention.experiments.bench import Subject
from staircase_attention.models.cost import StepSize, measure_cost
from staircase_attention.training import FamilyModel
from staircase_attention.training.learner import MANY_OUTPUTS, precision_of

# Rows below which the engine joins the inputs of several steps for the gradient of a weight.
ENOUGH_ROWS = 4096
# Rows and columns of a tile of a product, and what starting and ending one takes, in inputs.
TILE, TILE_INPUTS = 128, 32
NUM_PROCESSORS = 132
# Queries and keys that one tile of the attention kernels holds.
ONE_TILE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A GPU, and the links between several. Rates are per second, sizes in bytes."""

    name: str = "NVIDIA H200"
    memory: float = 139.8 * 2**30
    flops: float = 790e12
    """Of a large matrix product in bfloat16, as measured."""
    float32_flops: float = 52e12
    """Of one in float32, without TF32; not measured here."""
    bandwidth: float = 4.2e12
    """Of its memory, as measured by a copy."""
    nvlink: float = 450e9
    """To other GPUs of the node, each way."""
    network: float = 50e9
    """From a GPU to other nodes, each way: 400 Gb/s."""
    link_share: float = 0.8
    """Of both, what a collective reaches."""
    hop: float = 20e-6
    """Latency of a collective per doubling of the number of GPUs."""
    # Fitted to half of the stored measurements by benchmarks/estimate_errors.py.
    latency: float = 3.3e-6
    """Of a kernel in a CUDA graph."""
    bandwidth_share: float = 0.66
    """Of the bandwidth, what kernels reach,"""
    product_bandwidth_share: float = 0.54
    """and matrix products."""
    attention_share: float = 0.18
    """Of the peak, what attention reaches."""
    state_copies: float = 3.7
    """Copies of the carried state: before, after, and on the way."""
    scratch: float = 45.0
    """Bytes per number of the widest step's hidden states, for temporaries of the backward."""

    def peak(self, num_bytes: int) -> float:
        """Operations per second in products of numbers of this size."""
        return self.flops if num_bytes == 2 else self.float32_flops  # noqa: PLR2004

    def parts(self, kernel: "Kernel", peak: float) -> dict[str, float]:
        """Seconds of a kernel's operations, of its bytes, and of its start."""
        is_product = kernel.kind == "products"
        share = self.product_bandwidth_share if is_product else self.bandwidth_share
        peak *= self.attention_share if kernel.kind == "attention" else 1.0
        return {
            "operations": kernel.flops / peak,
            "memory traffic": kernel.num_bytes / (self.bandwidth * share),
            "latency": self.latency,
        }

    def seconds(self, kernel: "Kernel", peak: float) -> float:
        """Operations and bytes at the same time, after the start."""
        operations, traffic, latency = self.parts(kernel, peak).values()
        return max(operations, traffic) + latency


@dataclass(frozen=True, slots=True)
class Kernel:
    """Kernels of one kind that are alike."""

    kind: str
    count: float
    flops: float
    num_bytes: float
    """Of each, as operations are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What a run will take, per GPU where there are several."""

    num_parameters: int
    memory: dict[str, float]
    """Bytes, by what they hold."""
    seconds: dict[str, float]
    """Of one update, by what takes them."""
    bounds: dict[str, float]
    """The same seconds, by what bounds each kernel."""
    flops_share: float
    """Operations of the model per second, as a share of the peak."""

    @property
    def num_bytes(self) -> float:
        """Memory at its peak."""
        return sum(self.memory.values())

    @property
    def update_seconds(self) -> float:
        """Of one update."""
        return sum(self.seconds.values())


def estimate(
    subject: Subject, *, num_gpus: int = 1, num_nodes: int = 1, machine: Machine | None = None
) -> Estimate:
    """What an update of a recipe takes, with the fast engine and captured updates.

    Lanes are shared out among GPUs, each of which holds the whole model. Gradients are summed over
    all GPUs once per update, after the backward pass.
    """
    machine, work = machine or Machine(), Work(subject, num_gpus)
    check_integer("nodes", num_nodes, minimum=1, example=1)
    if num_gpus % num_nodes:
        raise input_error("nodes must divide gpus", f"{num_gpus} on {num_nodes}", "change one")
    memory, peak = work.memory(machine), machine.peak(work.size)
    seconds, bounds = Counter[str](), Counter[str]()
    for kernel in work.kernels():
        parts = machine.parts(kernel, peak)
        bound = max(parts, key=parts.__getitem__)
        taken = kernel.count * machine.seconds(kernel, peak)
        seconds[kernel.kind] += taken
        bounds[bound] += taken
    num_parameters = work.cost.num_parameters
    if num_gpus > 1:
        # A ring within the node; between nodes, all links of a node side by side.
        outside = machine.network * num_gpus / num_nodes
        link = machine.nvlink if num_nodes == 1 else min(machine.nvlink, outside)
        moved = 2 * (num_gpus - 1) / num_gpus * 4 * num_parameters
        seconds["collectives"] = moved / (link * machine.link_share)
        seconds["collectives"] += machine.hop * math.log2(num_gpus)
        bounds["links"] = seconds["collectives"]
        memory["buckets of gradients"] = 4.0 * num_parameters
    flops = 3 * work.cost.flops * work.num_lanes * work.num_parts
    return Estimate(
        num_parameters=num_parameters,
        memory=memory,
        seconds=dict(seconds),
        bounds=dict(bounds),
        flops_share=flops / sum(seconds.values()) / peak,
    )


class Work:
    """What one GPU does in an update: `num_lanes` lanes, as often as there are micro-batches."""

    def __init__(self, subject: Subject, num_gpus: int = 1) -> None:
        self.training, self.symbols = subject.recipe.training, subject.symbols
        model, self.num_parts = subject.recipe.model, self.training.num_micro_batches
        check_integer("gpus", num_gpus, minimum=1, example=8)
        self.num_lanes, rest = divmod(self.training.num_lanes, num_gpus * self.num_parts)
        if rest:
            rule = f"training.num_lanes must be a multiple of {num_gpus * self.num_parts}, so that "
            rule += "all GPUs have whole micro-batches"
            remedy = f"use for example training.num_lanes={num_gpus * self.num_parts}"
            raise input_error(rule, self.training.num_lanes, remedy)
        is_relative = isinstance(model, FamilyModel) and model.core.positions == "relative"
        if not isinstance(model, FamilyModel) or not is_relative or self.training.engine != "fast":
            rule = "estimates are for the family with relative positions and training.engine=fast"
            raise input_error(rule, subject.recipe.name, "time it with staircase bench")
        self.core, self.schedule = model.core, model.schedule
        self.size = precision_of(subject.recipe).itemsize
        """Bytes of a number in products."""
        self.cost = measure_cost(
            vocab_size=subject.symbols.num_inputs,
            core=model.core,
            schedule=model.schedule,
            output_size=subject.symbols.num_outputs,
            start=None if subject.carries_state else 0,
            segment=self.training.segment_length,
        )

    def kernels(self) -> Iterator[Kernel]:
        """All kernels of an update."""
        num_tracked = 0
        for step in self.cost.steps:
            for kernel in self._step(step, num_tracked):
                yield replace(kernel, count=kernel.count * self.num_parts)
            num_tracked += step.num_cached
        # States are handed over by copies, through a clone.
        yield Kernel("elementwise", 4 * self.num_parts, 0, self._state())
        yield from self._outputs()
        yield from self._optimizer()

    def _state(self) -> float:
        """Bytes of the state of a micro-batch's lanes."""
        return float(self.num_lanes * self.cost.state_numbers * self.size)

    def _product(self, rows: int, inputs: int, outputs: int, count: float = 1.0) -> Kernel:
        moved = rows * (inputs + outputs) + inputs * outputs
        # Tiles fill the processors in waves; few tiles are cut smaller, at some loss. Filling and
        # emptying a tile takes as long as some more inputs.
        waves = -(-rows // TILE) * -(-outputs // TILE) / NUM_PROCESSORS
        used = min(1.0, waves**0.5)
        flops = 2.0 * rows * (inputs + TILE_INPUTS) * outputs / used
        return Kernel("products", count, flops, self.size * moved)

    def _weight_gradient(self, rows: int, inputs: int, outputs: int) -> Iterator[Kernel]:
        # The sum is in float32, read and written. Few rows wait for others and are joined.
        share = min(1.0, rows / ENOUGH_ROWS)
        rows = max(rows, ENOUGH_ROWS)
        moved = self.size * rows * (inputs + outputs)
        flops = 2.0 * rows * inputs * outputs
        yield Kernel("products", share, flops, moved + 8 * inputs * outputs)
        if share < 1:
            yield Kernel("elementwise", 2 * share, 0, moved)

    def _step(self, step: StepSize, num_tracked: int) -> Iterator[Kernel]:
        core, width, size = self.core, self.core.width, self.size
        rows = self.num_lanes * step.num_queries
        projections = (3 if self.schedule.attends_self else 1) * width
        shapes = [(width, core.inner_width), (core.inner_width, width)]
        if step.num_keys:
            shapes += [(width, projections), (width, width)]
        num_forward = 2 if self.training.recompute else 1
        layer: list[Kernel] = []
        for inputs, outputs in shapes:
            # Forward, and the gradient of the inputs.
            layer += [self._product(rows, inputs, outputs, num_forward + 1)]
            layer += self._weight_gradient(rows, inputs, outputs)
        # A norm reads the sum and an addend and writes both the sum and the norm; so backwards.
        layer += [
            Kernel("elementwise", 2 * num_forward, 0, rows * width * (8 + 2 * size)),
            Kernel("elementwise", 2, 0, rows * width * (12 + 2 * size)),
            # ReLU's gate, inside a product that is slower for it.
            Kernel("elementwise", 1, 0, 2 * rows * core.inner_width * size),
        ]
        if core.dropout:
            moved = 2 * rows * core.inner_width * size
            layer.append(Kernel("elementwise", num_forward, 0, moved))
        if step.num_keys:
            layer += self._attention(step, num_tracked, num_forward)
        for kernel in layer:
            yield replace(kernel, count=kernel.count * step.num_layers)
        # Queries are joined, and cut again; backwards too.
        yield Kernel("elementwise", 4, 0, rows * width * 8)
        if step.num_cached:
            yield from self._caching(self.num_lanes * step.num_cached)

    def _attention(self, step: StepSize, num_tracked: int, num_forward: int) -> Iterator[Kernel]:
        """Of one layer; `num_tracked` tokens of the past take gradients, which are added to."""
        core, has_own = self.core, self.schedule.attends_self
        rows = self.num_lanes * step.num_queries
        past = self.num_lanes * (step.num_keys - has_own * step.num_queries)
        tracked = self.num_lanes * num_tracked
        unit = self.size * core.width

        def kernel(products: int, vectors: float, scores: float, count: int = 1) -> Kernel:
            # Each product is rows times keys in sight; `vectors` and `scores` are read or written.
            flops = 2 * products * core.width * rows * seen
            moved = vectors * unit + scores * self.size * core.num_heads * rows * seen
            return Kernel("attention", count, flops, moved)

        if step.num_queries == 1 or max(step.num_queries, step.num_keys) <= ONE_TILE:
            # Everything in one kernel, forward and backward, without masked tiles to skip.
            seen = float(step.num_keys)
            yield kernel(3, 4 * rows + 2 * past, 0, num_forward)
            yield kernel(8, 8 * rows + 2 * past + 4 * tracked, 0)
            return
        seen = self._num_seen(step)
        # Scores by position, written; then attention.
        yield kernel(1, rows, 1, num_forward)
        yield kernel(2, 4 * rows + 2 * past, 1, num_forward)
        # Backwards the same scores; keys and values; queries by position and by key; the table.
        yield kernel(1, 3 * rows, 1)
        yield kernel(4, 6 * rows + 2 * past + 4 * tracked, 2)
        yield kernel(1, rows, 1, 2)
        yield kernel(1, 3 * rows + past, 1)

    def _num_seen(self, step: StepSize) -> float:
        """Keys in the tiles that a query sees, on average."""
        first = step.num_distances - step.num_queries
        span = self.schedule.attention_span or step.num_distances
        visible = sum(min(span, first + place + 1) for place in range(step.num_queries))
        return min(step.num_keys, visible / step.num_queries + ONE_TILE / 2)

    def _caching(self, rows: int) -> Iterator[Kernel]:
        """Norm, keys and values of cached tokens, and their copies to a buffer and back."""
        core = self.core
        num_pairs = 1 if self.schedule.shares_keys_values else core.num_layers
        if self.schedule.mixes_layers:
            yield Kernel("elementwise", 4, 0, rows * core.width * 4 * (core.num_layers + 1))
        for _ in range(num_pairs):
            yield self._product(rows, core.width, 2 * core.width, 2)
            yield from self._weight_gradient(rows, core.width, 2 * core.width)
            yield Kernel("elementwise", 6, 0, rows * core.width * 8)

    def _outputs(self) -> Iterator[Kernel]:
        """Embedding, logits and loss."""
        rows = self.num_lanes * self.cost.segment
        width, outputs = self.core.width, self.symbols.num_outputs
        yield self._product(rows, width, outputs, 3 * self.num_parts)
        is_fused = outputs >= MANY_OUTPUTS
        moved = rows * outputs * (self.size if is_fused else 4)
        yield Kernel("elementwise", 5 * self.num_parts, 0, moved)
        yield Kernel("elementwise", 6 * self.num_parts, 0, rows * width * 8)

    def _optimizer(self) -> Iterator[Kernel]:
        """Casts and sums of gradients, clipping, and the step."""
        count, width = self.cost.num_parameters, self.core.width
        # Adam reads four numbers per weight and writes three; clipping and casts take the rest.
        yield Kernel("optimiser", 10, 0, 5.4 * count)
        if self.training.optimizer.kind == "muon":
            # Five steps of three products, of matrices stacked by shape.
            layers = self.core.num_layers
            wide = self.core.inner_width / width
            for number, longer in ((4 * layers, 1.0), (2 * layers, wide)):
                flops = number * (2 + 4 * longer) * width**3
                moved = 2 * number * width**2 * (2 + 4 * longer)
                yield Kernel("optimiser", 5 * 3, flops / 3, moved / 3)
                yield Kernel("optimiser", 12, 0, 8 * number * longer * width**2)

    def memory(self, machine: Machine) -> dict[str, float]:
        """Bytes that the tensors of one GPU take at most."""
        core, width, size = self.core, self.core.width, self.size
        rows = [self.num_lanes * step.num_queries for step in self.cost.steps]
        projections = (3 if self.schedule.attends_self else 1) * width
        statistics = 16 + 4 * core.num_heads
        whole = 8 * width + size * (3 * width + core.inner_width + projections) + statistics
        kept = 4 * width + 8 if self.training.recompute else whole
        layers = [step.num_layers for step in self.cost.steps]
        activations = kept * sum(a * b for a, b in zip(rows, layers, strict=True))
        if self.training.recompute:
            activations += whole * max(rows)
        segment = self.num_lanes * self.cost.segment
        cached = sum(step.num_cached for step in self.cost.steps)
        if cached:
            # A buffer for old and new keys and values, gradients of the new, and their inputs.
            num_pairs = 1 if self.schedule.shares_keys_values else core.num_layers
            num_mixed = core.num_layers + 1 if self.schedule.mixes_layers else 0
            per_token = (5 * num_pairs * size + 4 + 4 * num_mixed) * width
            activations += self.num_lanes * cached * per_token + self._state()
        # Weights, gradients and two moments in float32 (Muon has one), and weights for products.
        num_moments = 1 if self.training.optimizer.kind == "muon" else 2
        per_weight = 4 * (2 + num_moments) + (size if size < 4 else 0)  # noqa: PLR2004
        outputs = self.symbols.num_outputs
        logits = 64 * 2**20 if outputs >= MANY_OUTPUTS else segment * outputs * (8 + size)
        scores = max(step.num_queries * step.num_keys for step in self.cost.steps)
        scores *= self.num_lanes * core.num_heads * size
        return {
            "weights and optimiser": float(per_weight * self.cost.num_parameters),
            "activations": float(activations),
            "state of the lanes": machine.state_copies * self.num_parts * self._state(),
            "temporaries": machine.scratch * max(rows) * width + logits + scores,
        }
