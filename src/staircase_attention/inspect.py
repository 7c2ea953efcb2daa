"""What a model computes on its way: of any pass, layer and token, without changing its output.

A call is watched step by step. Nothing is computed again but attention weights and the logits of
earlier passes, where they are asked for.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.attention.reference import attend
from staircase_attention.checks import input_error
from staircase_attention.layers import Trip
from staircase_attention.layers.keys_values import join
from staircase_attention.models import SequenceModel, State
from staircase_attention.models.executor import Executor
from staircase_attention.models.state import Stream
from staircase_attention.schedules import OUTSIDE, Cell, Order, Step

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

# Columns of a picture beside each other; more begin a new line.
BAND = 32
# Tokens in a figure.
MOST_DRAWN = 512
# A probability whose colour needs white letters.
DARK = 0.6
# A pass by its number, counted from 1, or layers outside of the recurrence; for keys, the cache.
Pass = int | Literal["prelude", "coda", "cached"]


class Seen(NamedTuple):
    """A cell at one layer, and what came of its step."""

    stream: Stream
    step: Step
    cell: Cell
    place: int
    """Of the layer among the step's."""
    view: View
    trip: Trip

    @property
    def first_key(self) -> int:
        """Where the oldest key stands, counted from the first token of the call."""
        return self.step.tokens.start - self.view.first_query - self.stream.position


def inspect(
    model: SequenceModel,
    tokens: Int[Tensor, "batch time"],
    state: State | None = None,
    *,
    order: Order = "window",
) -> "Inspection":
    """Call a model and keep what it computes.

    >>> from staircase_attention import CoreConfig, Ladder
    >>> core = CoreConfig(width=16, num_layers=2, num_heads=2)
    >>> model = SequenceModel(vocab_size=10, core=core, schedule=Ladder(num_passes=3, span=8))
    >>> seen = inspect(model, torch.zeros(1, 7, dtype=torch.int64))
    >>> seen.hidden(2, layer=0).shape, seen.attention(3, layer=1).shape
    (torch.Size([1, 7, 16]), torch.Size([1, 2, 7, 7]))
    >>> torch.equal(seen.logits_after(3), seen.logits)
    True
    """
    seen = Inspection(model, tokens.shape[1])
    seen.logits, seen.state = model(tokens, state, order=order, watch=seen.watch)
    return seen


class Inspection:
    """What one call computed, for all its tokens.

    Passes count from 1; `prelude` and `coda` are passes, too. Layers count from 0, as in
    `model.core.layers`, or from the end: -1 is the last of the pass.
    """

    logits: Float[Tensor, "batch time output"]
    state: State

    def __init__(self, model: SequenceModel, num_tokens: int) -> None:
        self.model, self.num_tokens = model, num_tokens
        self.cells: dict[tuple[Pass, int], list[Seen]] = {}
        """By pass and layer."""
        self.streams: dict[tuple[int, ...], Stream] = {}
        """By batch rows; as they were before the call."""

    def watch(self, stream: Stream, step: Step, view: View, trip: Trip) -> None:
        """Keep what came of a step."""
        self.streams[stream.rows] = stream
        num_layers, num_prelude, _ = self.model.config.depth
        for (place, layer), cell in product(enumerate(step.layers), step.cells):
            at: tuple[Pass, int] = cell.pass_number, layer
            if step.bank == OUTSIDE:
                number = layer - num_layers
                is_coda = number >= num_prelude
                at = ("coda", number - num_prelude) if is_coda else ("prelude", number)
            for key in (at, ("cached", layer)) if cell.cached else (at,):
                seen = Seen(stream, step, cell, place, view, trip)
                self.cells.setdefault(key, []).append(seen)

    @property
    def num_passes(self) -> int:
        """How many passes a token makes."""
        return max(at for at, _ in self.cells if isinstance(at, int))

    @property
    def path(self) -> list[tuple[Pass, int]]:
        """The pass and layer of everything that a token goes through, in order."""
        return [at for at in self.cells if at[0] != "cached"]

    def inputs(self, at: Pass, layer: int = 0) -> Float[Tensor, "batch time width"]:
        """What a layer takes in; for a later pass, with what was injected."""
        return self._gather(at, layer, lambda seen: seen.trip.levels[seen.place])

    def hidden(self, at: Pass, layer: int = -1) -> Float[Tensor, "batch time width"]:
        """What a layer gives."""
        return self._gather(at, layer, lambda seen: seen.trip.levels[seen.place + 1])

    def keys(self, at: Pass, layer: int = 0) -> Float[Tensor, "batch heads time size"]:
        """What tokens offer to queries of a layer: on a pass, or, once `cached`, ever after.

        They carry no positions. A token that does not see itself has cached keys only.
        """

        def own(seen: Seen) -> Tensor:
            return join(seen.trip.contexts[seen.place]).keys[..., -len(seen.step.tokens) :, :]

        def cached(seen: Seen) -> Tensor:
            levels = seen.trip.levels[: 1 if seen.cell.cached == "input" else None]
            frozen = self.model.core.freeze(levels)
            return frozen[seen.place % len(frozen)].keys

        if isinstance(at, int) and not self.model.core.attends_self:
            raise input_error("these models have cached keys only", f"pass {at}", "use 'cached'")
        return self._gather(at, layer, cached if at == "cached" else own)

    def attention(self, at: Pass, layer: int = 0) -> Float[Tensor, "batch heads time keys"]:
        """The weights of the keys at `key_places`: zero for those not seen; before dropout."""
        core, key_places = self.model.core, self.key_places
        positions = core.positions
        if self.model.memory_shapes or positions is None:
            rule = "attention weights are those of built-in layers"
            raise input_error(rule, "custom blocks", "use forward hooks")

        def weights(seen: Seen) -> Tensor:
            level, context = seen.trip.levels[seen.place], seen.trip.contexts[seen.place]
            shape = (len(level), core.config.num_heads, level.shape[1], len(key_places))
            if not context:
                return level.new_zeros(shape)
            own = core.typed_layers[seen.step.layers[seen.place]]
            keys = join(context).keys.to(level.dtype)
            queries = own.attention.query(own.attention_norm(level))
            # Attention to the rows of the identity gives the weights themselves.
            rows = torch.eye(keys.shape[2], dtype=level.dtype, device=level.device)
            found = attend(
                *own.attention.placed(queries, keys, seen.view, positions),
                rows.expand(*keys.shape[:2], -1, -1),
                table=positions.table,
                view=seen.view,
                dropout=0.0,
            )
            places = seen.view.key_places + (seen.first_key - key_places.start)
            return found.new_zeros(shape).index_copy(-1, places, found)

        return self._gather(at, layer, weights)

    @property
    def key_places(self) -> range:
        """Where keys stand, counted from the call's first token; those of the state, below 0."""
        every = (seen for cells in self.cells.values() for seen in cells if seen.view.num_keys)
        return range(min((seen.first_key for seen in every), default=0), self.num_tokens)

    def logits_after(self, pass_number: int) -> Float[Tensor, "batch time output"]:
        """What the model would have said, had this been the last pass of all tokens in the call."""
        logits: Tensor = self.model.output(self.hidden_after(pass_number))
        return logits

    def hidden_after(self, pass_number: int) -> Float[Tensor, "batch time width"]:
        """What the output projection would then have turned into logits."""
        hidden, streams = self.hidden(pass_number), self.streams.values()
        if self.model.config.num_coda_layers:
            hidden = self._by_row([self._through_coda(one, hidden) for one in streams])
        normed: Tensor = self.model.output_norm(hidden)
        return normed

    def _through_coda(self, stream: Stream, hidden: Tensor) -> Tensor:
        # An index is not for captured updates, which have one stream.
        rows = hidden if len(self.streams) == 1 else hidden[list(stream.rows)]
        executor = Executor(self.model, stream, rows)
        *_, coda = executor.phases("window")
        return executor.run(rows, coda)

    def _by_row(self, parts: Sequence[Tensor]) -> Tensor:
        """What all streams have, as one batch."""
        rows = [row for rows in self.streams for row in rows]
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))[np.argsort(rows)]

    def _gather(self, at: Pass, layer: int, read: Callable[[Seen], Tensor]) -> Tensor:
        """What `read` finds in a step, [rows, ..., tokens, size], for all tokens of the call."""
        number = layer if layer >= 0 else layer + sum(other == at for other, _ in self.cells)
        if (at, number) not in self.cells:
            known = ", ".join(f"{one} (0 to {last})" for one, last in dict([*self.cells]).items())
            rule = f"passes, each with its layers, are {known}"
            raise input_error(rule, f"layer {layer} of pass {at}", "use one of them")
        found: dict[tuple[int, ...], list[Tensor]] = {}
        # In either order of steps, the cells of a pass are in order of time.
        for seen in self.cells[at, number]:
            tokens, first = seen.cell.tokens, seen.step.tokens.start
            part = read(seen).narrow(-2, tokens.start - first, len(tokens))
            found.setdefault(seen.stream.rows, []).append(part)
        return self._by_row([torch.cat(own, dim=-2) for own in found.values()])


class Place(NamedTuple):
    """A token, the right answer there if it has one, and what the model would say after each pass.

    Of every pass: the probability of the answer, and the likeliest answers with theirs.
    """

    token: str
    answer: str | None
    probabilities: list[float | None]
    likeliest: list[list[tuple[str, float]]]


def lens(
    logits: Sequence[Float[Tensor, "batch time output"]],
    tokens: Sequence[str],
    answers: Sequence[int | None],
    names: Sequence[str],
) -> list[Place]:
    """The logit lens, from the logits after each pass.

    Of the first batch row, with the three likeliest answers by name.
    """
    chances = torch.stack([one[0].softmax(-1) for one in logits], dim=1)
    most = chances.topk(min(3, chances.shape[-1]))
    places = []
    for at, (token, answer) in enumerate(zip(tokens, answers, strict=True)):
        right = [None if answer is None else one[answer].item() for one in chances[at]]
        pairs = zip(most.indices[at].tolist(), most.values[at].tolist(), strict=True)
        likeliest = [[(names[one], p) for one, p in zip(*pair, strict=True)] for pair in pairs]
        places.append(Place(token, None if answer is None else names[answer], right, likeliest))
    return places


def lens_table(places: Sequence[Place]) -> "Table":
    """The likeliest answer after each pass, green where it is right; last, the mean losses."""
    from rich.table import Table
    from rich.text import Text

    names = (f"pass {number}" for number, _ in enumerate(places[0].likeliest, 1))
    table = Table("", "token", "answer", *names, box=None, pad_edge=False)
    for number, (token, answer, _, likeliest) in enumerate(places):
        cells = [
            Text(f"{word} {chance:.0%}", "bold green" if word == answer else "")
            for [(word, chance), *_] in likeliest
        ]
        table.add_row(str(number), Text(token), Text(answer or ""), *cells)
    rows = [one.probabilities for one in places if one.answer is not None]
    columns = zip(*rows, strict=True)
    losses = [fmean(-math.log(max(one or 0.0, 1e-30)) for one in column) for column in columns]
    table.add_row("", "", "loss", *(f"{loss:.3f}" for loss in losses))
    return table


def lens_figure(places: Sequence[Place], *, title: str) -> "Figure":
    """Tokens to the right, with their answers below; passes upwards; the likeliest answers."""
    from matplotlib.figure import Figure

    if len(places) > MOST_DRAWN:
        received, remedy = f"{len(places):,}", "take a shorter text, or leave the figure out"
        raise input_error(f"a figure has at most {MOST_DRAWN} tokens", received, remedy)
    num_passes = len(places[0].likeliest)
    bands = [places[start : start + BAND] for start in range(0, len(places), BAND)]
    longest = max(5, *(len(word or "") for one in places for word in one[:2]))
    # At least as wide as the title.
    size = (
        max(7.0, 2.5 + 0.1 * longest * len(bands[0])),
        0.8 + len(bands) * (0.6 + 0.3 * num_passes),
    )
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(bands), squeeze=False)[:, 0]
    for axes, band in zip(grid, bands, strict=True):
        # Without an answer there is none; nan is drawn as white.
        chances = np.array([place.probabilities for place in band], dtype=float).T
        picture = axes.imshow(chances, origin="lower", aspect="auto", cmap="YlGn", vmin=0, vmax=1)
        for at, place in enumerate(band):
            for number, [(word, _), *_] in enumerate(place.likeliest):
                colour = "white" if chances[number, at] > DARK else "#1a1a1a"
                style = {"ha": "center", "va": "center", "fontsize": 9, "color": colour}
                axes.text(at, number, word, style, parse_math=False)
        # A dollar sign is a token, not the beginning of a formula.
        labels = [f"{one.token}\n{one.answer or ''}" for one in band]
        axes.set_xticks(range(len(band)), labels, parse_math=False)
        axes.set_yticks(range(num_passes), [f"pass {number + 1}" for number in range(num_passes)])
        axes.set_xlim(-0.5, len(bands[0]) - 0.5)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(picture, ax=grid[:1], label="P(answer)")
    figure.suptitle(f"{title}: likeliest after each pass; below, token and answer", fontsize=11)
    return figure
