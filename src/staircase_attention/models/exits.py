"""Exits: a token leaves the recurrence of a Ladder as soon as a rule says so.

Later passes find of it, in every layer, the keys and values of what it was when it left; the state
is an ordinary one. The rule sees nothing but the token: it leaves after the same pass in any batch,
and however its stream is cut. Tokens that stay are gathered: norms, products and feed-forward are
computed for them alone, attention for the rows in which some are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from staircase_attention.attention import View
from staircase_attention.checks import check_choice, check_number, input_error
from staircase_attention.layers import Core, KeysValues, Trip
from staircase_attention.layers.keys_values import join
from staircase_attention.models.sequence_model import SequenceModel

# `confidence`: the largest probability is above the threshold. `change`: the pass changed the
# hidden vector by less than the threshold, relative to its length.
Rule = Literal["confidence", "change"]


def with_exits(model: SequenceModel, rule: Rule, threshold: float) -> SequenceModel:
    """The same weights with exits; `model.backend` counts tokens and passes.

    >>> from staircase_attention import CoreConfig, Ladder
    >>> core = CoreConfig(width=16, num_layers=2, num_heads=2)
    >>> model = SequenceModel(vocab_size=10, core=core, schedule=Ladder(num_passes=4, span=8))
    >>> quick = with_exits(model, "confidence", 0.0)
    >>> _ = quick(torch.zeros(2, 7, dtype=torch.int64))
    >>> quick.backend.num_passes / quick.backend.num_tokens
    1.0
    """
    check_choice("an exit rule", rule, get_args(Rule))
    highest = {"maximum": 1.0} if rule == "confidence" else {}
    check_number(rule, threshold, minimum=0, **highest, example=0.9)
    schedule = getattr(model, "schedule", "an LSTM")
    is_ladder = getattr(schedule, "name", "") in ("ladder", "universal-transformer")
    if not is_ladder or getattr(schedule, "order", "ABAB") != "ABAB":
        raise input_error("exits are for Ladders in the order ABAB", schedule, "leave it out")
    if model.memory_shapes:
        raise input_error("exits are for built-in layers", "custom blocks", "leave them out")
    if rule == "confidence" and (num := model.config.num_coda_layers):
        received = f"num_coda_layers={num}"
        raise input_error("confidence needs a core without a coda", received, "use the rule change")
    copy = model.with_schedule(model.schedule)
    copy.backend = ExitBackend(copy, rule, threshold)
    return copy


@dataclass(slots=True)
class ExitBackend:
    """Runs the plain core for the tokens that a rule lets stay."""

    model: SequenceModel
    rule: Rule
    threshold: float
    num_tokens: int = 0
    """Tokens so far,"""
    num_passes: int = 0
    """and the passes that they made."""

    def runner(
        self, core: Core, embedded: Float[Tensor, "rows time width"], *, recompute: bool
    ) -> "ExitRunner":
        """What takes these tokens through the core."""
        del embedded, recompute
        return ExitRunner(core, self)

    def leave(
        self, before: Float[Tensor, "tokens width"], after: Float[Tensor, "tokens width"]
    ) -> Bool[Tensor, " tokens"]:
        """Which tokens are done, given what they were before and after a pass."""
        if self.rule == "change":
            sizes = torch.stack([after - before, after]).float().square().sum(-1).sqrt()
            return sizes[0] < self.threshold * sizes[1]
        logits: Tensor = self.model.output(self.model.output_norm(after))
        return logits.float().softmax(-1).amax(-1) > self.threshold


class ExitRunner:
    """A core for one stream: it is called pass by pass, with one run of tokens after another."""

    def __init__(self, core: Core, exits: ExitBackend) -> None:
        if core is not exits.model.core:
            rule = "exits are of one schedule"
            raise input_error(rule, "another one", "call with_exits after with_schedule")
        self.core, self.exits = core, exits
        self.freeze, self.new_cache = core.freeze, core.new_cache
        self.num_passes = getattr(exits.model.schedule, "num_passes", 1)
        self.made = 0
        """Passes of the present run of tokens."""

    def __call__(
        self,
        hidden: Float[Tensor, "rows queries width"],
        /,
        *,
        layers: range,
        past: Sequence[Sequence[KeysValues]],
        view: View,
    ) -> Trip:
        """One pass of the tokens that stay."""
        if layers.start >= self.core.config.num_layers:
            outside: Trip = self.core(hidden, layers=layers, past=past, view=view)
            return outside
        flat = hidden.flatten(0, 1)
        if self.made == 0:
            # After their last pass, and what others find of them by layer: [tokens, groups, size].
            self.done, self.left = flat, dict[int, KeysValues]()
            self.stay = torch.arange(len(flat), device=flat.device)
            self.gone = self.stay[:0]
            """Tokens that left after the pass before."""
            self.exits.num_tokens += len(flat)
        rows, places = torch.unique(self.stay // hidden.shape[1], return_inverse=True)
        # Where a token stands among the rows that are left.
        places = places * hidden.shape[1] + self.stay % hidden.shape[1]
        if len(rows) < len(hidden) and view.first_visible is not None:
            view = replace(view, first_visible=view.first_visible[rows])
        moving, contexts, shape = flat[self.stay], [], hidden.shape[:2]
        seen_again, changed = flat[self.gone], torch.cat([self.stay, self.gone])
        for number, pieces in zip(layers, past, strict=True):
            layer = self.core.typed_layers[number]
            attention = layer.attention
            normed = layer.attention_norm(torch.cat([moving, seen_again]))
            new = attention.keys_values(normed[None]).map(lambda part: part[0].transpose(0, 1))
            normed = normed[: len(moving)]
            if number in self.left:
                pairs = zip(self.left[number], new, strict=True)
                new = KeysValues(*(old.index_copy(0, changed, one) for old, one in pairs))
            self.left[number] = new
            own = new.map(lambda part: torch.unflatten(part, 0, shape).transpose(1, 2))
            context = join([*pieces, own])
            contexts.append([context])
            if not len(moving):
                continue
            seen = context if len(rows) == len(hidden) else context.map(lambda part: part[rows])
            own_queries = attention.query(normed)
            queries = own_queries.new_zeros(len(rows) * shape[1], normed.shape[1])
            queries = queries.index_copy(0, places, own_queries)
            queries = torch.unflatten(queries, 0, (len(rows), shape[1]))
            found = attention(
                queries, seen, view=view, positions=self.core.positions, projects=False
            )
            moving = moving + attention.output(found.flatten(0, 1)[places])
            moving = moving + layer.feed_forward(layer.feed_forward_norm(moving))
        before = self.done[self.stay]
        self.done = self.done.index_copy(0, self.stay, moving)
        self.exits.num_passes += len(self.stay)
        self.made = (self.made + 1) % self.num_passes
        if self.made:
            leaves = self.exits.leave(before, moving)
            self.gone, self.stay = self.stay[leaves], self.stay[~leaves]
        return Trip([hidden, self.done.view_as(hidden)], contexts)
