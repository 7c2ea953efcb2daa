"""`staircase estimate`: memory, time and cost of a run before it is paid for.

An update is a list of kernels, which follow from the timetable. The time of a kernel is that of its
operations or of its bytes, whichever is longer, and a latency. Between two updates the device waits
for the host. `docs/scaling.md` compares estimates with measurements.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from staircase_attention.checks import check_integer, check_number, input_error
from staircase_attention.models.cost import Cost, StepSize, measure_cost
from staircase_attention.tasks import load_task
from staircase_attention.training import FamilyModel, Recipe, TaskChoice
from staircase_attention.training.dataset import Dataset
from staircase_attention.training.learner import MANY_OUTPUTS, NumSymbols, precision_of
from staircase_attention.training.recipe import PassesConfig

# Rows below which the engine joins the inputs of several steps for the gradient of a weight.
ENOUGH_ROWS = 4096
# Rows and columns of a tile of a product, and what starting and ending one takes, in inputs.
TILE, TILE_INPUTS = 128, 32
NUM_PROCESSORS = 132
# Queries and keys that one tile of the attention kernels holds.
ONE_TILE = 64
# By how much fewer queries than that make operations slower: (ONE_TILE / queries) to this power.
FEW_QUERIES = 0.75
# Numbers per row below which the backward pass of a norm becomes no faster.
NORM_ROW = 512
BFLOAT16 = 2
PARALLEL = ("ddp", "fsdp", "hsdp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A GPU, and the links between several. Rates are per second, sizes in bytes."""

    name: str = "NVIDIA H200"
    memory: float = 139.8 * 2**30
    # Of a large matrix product and of a copy, as measured. That in float32 was not, nor any link.
    flops: float = 790e12
    float32_flops: float = 52e12
    bandwidth: float = 4.2e12
    # Each way: to other GPUs of the node, and from a GPU to other nodes (400 Gb/s); what a
    # collective reaches of both, and its latency per doubling of the number of GPUs.
    nvlink: float = 450e9
    network: float = 50e9
    link_share: float = 0.8
    hop: float = 20e-6
    # From one update to the next: results to the host, a batch to the device, the graph's launch.
    between: float = 0.8e-3
    # Of a kernel, by the host, where updates are not captured. Not measured.
    launch: float = 10e-6
    # Fitted to stored measurements by benchmarks/estimate_errors.py: the latency of a kernel in a
    # CUDA graph; of the bandwidth, what kernels reach; of the peak, what
    # attention reaches; the factor by which drawing its dropout slows it down; copies of the
    # carried state; and temporaries of the backward, in bytes per number of the widest step's
    # hidden states.
    latency: float = 3.82e-6
    bandwidth_share: float = 0.763
    attention_share: float = 0.168
    attention_dropout: float = 1.76
    state_copies: float = 3.08
    scratch: float = 44.8

    def parts(self, kernel: "Kernel", *, peak: float) -> dict[str, float]:
        """Seconds of a kernel's operations, of its bytes, and of its start."""
        factor = self.attention_dropout if kernel.has_dropout else 1
        peak *= self.attention_share if kernel.kind == "attention" else 1
        return {
            "operations": factor * kernel.flops / peak,
            "memory traffic": factor * kernel.num_bytes / (self.bandwidth * self.bandwidth_share),
            "latency": factor * self.latency,
        }


class Kernel(NamedTuple):
    """Kernels of one kind that are alike, and the operations and bytes of each."""

    kind: str
    number: float
    flops: float
    num_bytes: float
    has_dropout: bool = False
    """Whether attention draws what it drops."""


def num_symbols(recipe: Recipe) -> NumSymbols:
    """The symbols of a recipe's task; for text the paper's, so that no corpus is needed."""
    choice = recipe.task
    if isinstance(choice, TaskChoice):
        task = load_task(choice.reference, **choice.options)
        return NumSymbols(num_inputs=task.num_inputs, num_outputs=task.num_outputs)
    size = 256 if "enwik8" in choice.folder else 8008
    return NumSymbols(num_inputs=size, num_outputs=size)


def carries_state(recipe: Recipe) -> bool:
    """Whether an update continues from the state of the one before."""
    return isinstance(recipe.task, TaskChoice) or recipe.task.form == "stream"


def lane_cost(recipe: Recipe, symbols: Dataset | NumSymbols) -> Cost:
    """What one lane of an update of the family costs."""
    model = recipe.model
    assert isinstance(model, FamilyModel)
    return measure_cost(
        vocab_size=symbols.num_inputs,
        core=model.core,
        schedule=model.schedule,
        output_size=symbols.num_outputs,
        start=None if carries_state(recipe) else 0,
        segment=recipe.training.segment_length,
    )


def estimate(
    recipe: Recipe,
    symbols: NumSymbols | None = None,
    *,
    num_gpus: int = 1,
    num_nodes: int = 1,
    price: float = 0.0,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """What a recipe takes on each GPU with the fast engine, for `training.parallel` in PARALLEL.

    Lanes are shared out among GPUs. Weights are gathered, if they are sharded, and gradients summed
    once per update, before and after all else. `price` is that of a GPU per hour.
    """
    check_number("price", price, minimum=0, example=3)
    machine, work = machine or Machine(), Work(recipe, symbols, num_gpus, num_nodes)
    memory, num_parameters = work.memory(machine), work.cost.num_parameters
    # By what takes the time, and by what bounds each kernel.
    seconds: defaultdict[str, float] = defaultdict(float)
    bounds: defaultdict[str, float] = defaultdict(float)
    peak = machine.flops if work.size == BFLOAT16 else machine.float32_flops
    for kernel in work.kernels():
        parts = machine.parts(kernel, peak=peak)
        operations, traffic, latency = parts.values()
        taken = kernel.number * (max(operations, traffic) + latency)
        seconds[kernel.kind] += taken
        bounds[max(parts, key=parts.__getitem__)] += taken
    host = machine.between
    if work.num_sharing > 1:
        # Such updates are not captured: the host may need longer to launch kernels than they take.
        launches = machine.launch * sum(kernel.number for kernel in work.kernels())
        host = max(host, launches - sum(seconds.values()))
    seconds["host"] = bounds["host"] = host
    if num_gpus > 1:
        seconds["collectives"] = bounds["links"] = work.collectives(machine, num_gpus, num_nodes)
        memory["buckets of gradients"] = 4.0 * num_parameters
    update, training = sum(seconds.values()), recipe.training
    gpu_hours = num_gpus * update * training.num_updates / 3600
    flops = 3 * work.cost.flops * work.num_lanes * work.num_parts
    return {
        "num_parameters": num_parameters,
        "memory_bytes": sum(memory.values()),
        "memory": memory,
        "update_seconds": update,
        "seconds": dict(seconds),
        "bounds": dict(bounds),
        "share_of_peak": flops / update / peak,
        "tokens_per_second": training.num_lanes * training.segment_length / update,
        "hours": gpu_hours / num_gpus,
        "gpu_hours": gpu_hours,
        "cost": price * gpu_hours,
        "assumed": asdict(machine) | {"num_gpus": num_gpus, "num_nodes": num_nodes},
    }


class Work:
    """What one GPU does in an update: `num_lanes` lanes, as often as there are micro-batches."""

    def __init__(
        self, recipe: Recipe, symbols: NumSymbols | None, num_gpus: int = 1, num_nodes: int = 1
    ) -> None:
        self.training, self.symbols = recipe.training, symbols or num_symbols(recipe)
        model, self.num_parts = recipe.model, self.training.num_micro_batches
        check_integer("gpus", num_gpus, minimum=1, example=8)
        check_integer("nodes", num_nodes, minimum=1, example=1)
        if num_gpus % num_nodes:
            raise input_error("nodes must divide gpus", f"{num_gpus} on {num_nodes}", "change one")
        least = num_gpus * self.num_parts
        if self.training.num_lanes % least:
            rule = f"training.num_lanes must be a multiple of {least}: whole lanes in all GPUs"
            remedy = f"use for example {least * -(-self.training.num_lanes // least)}"
            raise input_error(rule, self.training.num_lanes, remedy)
        is_fast = self.training.engine == "fast" and self.training.parallel in PARALLEL
        # Other numbers of passes, or more losses, cost other than the schedule says.
        is_fast &= self.training.passes == PassesConfig()
        if not isinstance(model, FamilyModel) or not is_fast or not model.core.is_papers:
            rule = (
                "estimates are for models with the paper's core, training.engine=fast, "
                f"no training.passes and training.parallel in {', '.join(PARALLEL)}"
            )
            raise input_error(rule, recipe.name, "time it with benchmarks/bench.py")
        self.num_lanes = self.training.num_lanes // least
        sharing = {"ddp": 1, "fsdp": num_gpus, "hsdp": num_gpus // num_nodes}
        self.num_sharing = sharing[self.training.parallel]
        """GPUs that share one copy of the float32 weights, gradients and moments."""
        self.core, self.schedule = model.core, model.schedule
        # Bytes of a number in products.
        self.size = precision_of(recipe).itemsize
        self.cost = lane_cost(recipe, self.symbols)
        # Queries, and keys and values unless all layers share those of the past.
        self.projected = (3 if model.schedule.attends_self else 1) * model.core.width
        self.num_pairs = 1 if model.schedule.shares_keys_values else model.core.num_layers
        self.state = self.num_lanes * self.cost.state_numbers * self.size

    def kernels(self) -> Iterator[Kernel]:
        """All kernels of an update."""
        rows, outputs = self.num_lanes * self.cost.segment, self.symbols.num_outputs
        logits = rows * outputs * (self.size if outputs >= MANY_OUTPUTS else 4)
        # States are handed over through clones; then embedding, logits and loss.
        part = [
            Kernel("elementwise", 4, 0, self.state),
            Kernel("elementwise", 6, 0, rows * self.core.width * 8),
            self._product(rows, self.core.width, outputs, 3),
            Kernel("elementwise", 5, 0, logits),
        ]
        num_tracked = 0
        for step in self.cost.steps:
            part += self._step(step, num_tracked)
            num_tracked += step.num_cached
        for kernel in part:
            yield kernel._replace(number=kernel.number * self.num_parts)
        # Adam reads four numbers per weight and writes three; clipping and casts take the rest.
        yield Kernel("optimiser", 10, 0, 5.4 * self.cost.num_parameters / self.num_sharing)
        if self.training.optimizer.kind == "muon":
            # Five steps of three products, of matrices stacked by shape; stacking, momentum, the
            # change of the weights and the choice whether to change them move 170 bytes per weight.
            width, longer = self.core.width, self.core.inner_width / self.core.width
            matrices = ((4 * self.core.num_layers, 1), (2 * self.core.num_layers, longer))
            for number, ratio in matrices:
                unit = number * (2 + 4 * ratio) * width**2 / 3
                yield Kernel("optimiser", 15, unit * width, 2 * unit)
                yield Kernel("optimiser", 18, 0, 170 / 18 * number * ratio * width**2)

    def _product(self, rows: int, inputs: int, outputs: int, count: float) -> Kernel:
        # Where there are few tiles they are cut smaller, at some loss.
        waves = -(-rows // TILE) * -(-outputs // TILE) / NUM_PROCESSORS
        flops = 2.0 * rows * (inputs + TILE_INPUTS) * outputs / min(1.0, waves**0.5)
        moved = rows * (inputs + outputs) + inputs * outputs
        return Kernel("products", count, flops, self.size * moved)

    def _weight_gradient(self, rows: int, inputs: int, outputs: int) -> Iterator[Kernel]:
        # The sum is in float32, read and written. Few rows wait for others and are joined.
        share, rows = min(1.0, rows / ENOUGH_ROWS), max(rows, ENOUGH_ROWS)
        moved = self.size * rows * (inputs + outputs)
        yield Kernel("products", share, 2.0 * rows * inputs * outputs, moved + 8 * inputs * outputs)
        if share < 1:
            yield Kernel("elementwise", 2 * share, 0, moved)

    def _step(self, step: StepSize, num_tracked: int) -> Iterator[Kernel]:
        width, inner, size = self.core.width, self.core.inner_width, self.size
        rows, num_forward = self.num_lanes * step.num_queries, 1 + self.training.recompute
        # A norm reads the sum and an addend, and writes the sum and the norm; so backwards. ReLU's
        # gate is inside a product, which is slower for it.
        layer = [
            Kernel("elementwise", 2 * num_forward, 0, rows * width * (8 + 2 * size)),
            Kernel("elementwise", 2, 0, rows * max(width, NORM_ROW) * (12 + 2 * size)),
            Kernel("elementwise", 1, 0, 2 * rows * inner * size),
        ]
        if self.core.dropout:
            layer.append(Kernel("elementwise", num_forward, 0, 2 * rows * inner * size))
        shapes = [(width, inner), (inner, width)]
        if step.num_keys:
            shapes += [(width, self.projected), (width, width)]
            layer += self._attention(step, num_tracked, num_forward)
        for shape in shapes:
            # Forward, and the gradient of the inputs.
            layer.append(self._product(rows, *shape, num_forward + 1))
            layer += self._weight_gradient(rows, *shape)
        for kernel in layer:
            yield kernel._replace(number=kernel.number * step.num_layers)
        # Queries are joined, and cut again; backwards too.
        yield Kernel("elementwise", 4, 0, rows * width * 8)
        rows = self.num_lanes * step.num_cached
        if rows and self.schedule.mixes_layers:
            yield Kernel("elementwise", 4, 0, rows * width * 4 * (self.core.num_layers + 1))
        for _ in range(self.num_pairs if rows else 0):
            # Norm, keys and values of cached tokens, and their copies to a buffer and back.
            yield self._product(rows, width, 2 * width, 2)
            yield from self._weight_gradient(rows, width, 2 * width)
            yield Kernel("elementwise", 6, 0, rows * width * 8)

    def _attention(self, step: StepSize, num_tracked: int, num_forward: int) -> Iterator[Kernel]:
        """Of one layer; `num_tracked` tokens of the past take gradients, which are added to."""
        rows, has_own = self.num_lanes * step.num_queries, self.schedule.attends_self
        past = self.num_lanes * (step.num_keys - has_own * step.num_queries)
        added = 4 * self.num_lanes * num_tracked
        # Keys that a query sees, on average, with those in the same tile.
        first = step.num_distances - step.num_queries
        span = self.schedule.attention_span or step.num_distances
        visible = sum(min(span, first + place + 1) for place in range(step.num_queries))
        seen = min(step.num_keys, visible / step.num_queries + ONE_TILE / 2)
        # count, products of rows and keys, vectors and scores that are read or written.
        kernels = [
            # Scores by position, written; then attention. Backwards the same scores; keys and
            # values; queries by position, and the table; queries by key.
            (num_forward, 1, rows, 1),
            (num_forward, 2, 4 * rows + 2 * past, 1),
            (1, 1, 3 * rows, 1),
            (1, 4, 6 * rows + 2 * past + added, 2),
            (2, 1, rows, 1),
            (1, 1, 3 * rows + past, 1),
        ]
        # Operations of a tile with few queries take nearly as long.
        slower = max(1.0, ONE_TILE / step.num_queries) ** FEW_QUERIES
        if step.num_queries == 1 or max(step.num_queries, step.num_keys) <= ONE_TILE:
            seen, slower = step.num_keys, 1.0
            forward = (num_forward, 3, 4 * rows + 2 * past, 0)
            kernels = [forward, (1, 8, 8 * rows + 2 * past + added, 0)]
        for count, products, vectors, scores in kernels:
            moved = vectors * self.core.width + scores * self.core.num_heads * rows * seen
            flops = 2 * products * self.core.width * rows * seen * slower
            has_dropout = self.core.weight_dropout > 0
            yield Kernel("attention", count, flops, self.size * moved, has_dropout)

    def collectives(self, machine: Machine, num_gpus: int, num_nodes: int) -> float:
        """Seconds in which several GPUs exchange weights and gradients."""
        is_sharded, num_parameters = self.num_sharing > 1, self.cost.num_parameters
        is_hybrid = is_sharded and self.training.parallel == "hsdp"
        # An all-gather or a reduce-scatter sends all but one's own part; an all-reduce is both.
        per_weight = self.size + 4.0 if is_sharded else 8.0
        if is_sharded and self.training.optimizer.kind == "muon":
            # The momentum of whole matrices.
            per_weight += 4
        sharing = self.num_sharing if is_sharded else num_gpus
        # A ring within the node; between nodes, all links of a node side by side.
        is_inside = is_hybrid or num_nodes == 1
        outside = math.inf if is_inside else machine.network * sharing / num_nodes
        link = min(machine.nvlink, outside) * machine.link_share
        moved = per_weight * num_parameters * (sharing - 1) / sharing
        taken = moved / link + machine.hop * math.log2(sharing)
        if is_hybrid and num_nodes > 1:
            # Each part of the gradients is then summed over the nodes.
            part = 8 * num_parameters / sharing * (num_nodes - 1) / num_nodes
            taken += part / (machine.network * machine.link_share)
            taken += machine.hop * math.log2(num_nodes)
        return taken

    def memory(self, machine: Machine) -> dict[str, float]:
        """Bytes that the tensors of one GPU take at most."""
        core, width, size, steps = self.core, self.core.width, self.size, self.cost.steps
        widest = self.num_lanes * max(step.num_queries for step in steps)
        rows = self.num_lanes * sum(step.num_queries * step.num_layers for step in steps)
        # Sums in float32; norms, attention's and the inner numbers for products; statistics.
        whole = 8 * width + size * (3 * width + core.inner_width + self.projected)
        whole += 16 + 4 * core.num_heads
        activations = rows * whole
        if self.training.recompute:
            activations = rows * (4 * width + 8) + widest * whole
        if cached := self.num_lanes * sum(step.num_cached for step in steps):
            # A buffer for old and new keys and values, gradients of the new, and their inputs.
            num_mixed = core.num_layers + 1 if self.schedule.mixes_layers else 0
            per_token = (5 * self.num_pairs * size + 4 + 4 * num_mixed) * width
            activations += cached * per_token + self.state
        # Weights, gradients and two moments in float32 (Muon has one), and weights for products.
        per_weight = (12 if self.training.optimizer.kind == "muon" else 16) / self.num_sharing
        per_weight += size if size == BFLOAT16 or self.num_sharing > 1 else 0
        # Gradients of gathered weights, before they are summed and cut.
        per_weight += size if self.num_sharing > 1 else 0
        outputs = self.symbols.num_outputs
        logits = self.num_lanes * self.cost.segment * outputs * (8 + size)
        scores = max(step.num_queries * step.num_keys for step in steps) * size * core.num_heads
        temporaries = machine.scratch * widest * width + self.num_lanes * scores
        return {
            "weights and optimiser": per_weight * self.cost.num_parameters,
            "activations": activations,
            "state of the lanes": machine.state_copies * self.num_parts * self.state,
            "temporaries": temporaries + (2**26 if outputs >= MANY_OUTPUTS else logits),
        }
