"""Self-speculation: a few passes draft tokens, all passes verify them in one call of the model.

A draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)), where p is what the model
itself would draw from; else the token is drawn from max(p - q, 0), rescaled. So tokens have the
distribution p, and at temperature 0 they are those of plain decoding (Leviathan et al. 2023). What
happens to a token depends on those before it and on its three draws alone: neither the number of
drafts nor the other rows matter. Going back is keeping the old state.
"""

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from staircase_attention.checks import check_integer, input_error
from staircase_attention.generation.sampling import logprobs_of, pick, scores_to_draw, uniform
from staircase_attention.generation.stepper import ModelState, feed
from staircase_attention.layers import KeysValues, latest
from staircase_attention.layers.keys_values import places_among
from staircase_attention.models import SequenceModel, State, at_depth
from staircase_attention.models.executor import compact
from staircase_attention.models.state import Stream
from staircase_attention.schedules import Ledger, overlap

if TYPE_CHECKING:
    from staircase_attention.generation.stream import TokenStream

# Tokens with their log-probabilities; the state of the drafts, and the model's.
Round: TypeAlias = tuple[list[tuple[Tensor, Tensor]], State, State]


class Speculation:
    """The same weights in fewer passes, and how far they go ahead."""

    def __init__(
        self, model: object, state: ModelState, *, num_passes: int, num_tokens: int
    ) -> None:
        check_integer("draft_passes", num_passes, minimum=1, example=2)
        check_integer("draft_tokens", num_tokens, minimum=1, example=4)
        if not isinstance(model, SequenceModel) or not isinstance(state, State):
            rule = "drafts are for schedules with num_passes"
            raise input_error(rule, type(model).__name__, "leave draft_passes out")
        self.model = model.with_schedule(model.schedule.with_passes(num_passes))
        self.num_tokens = num_tokens
        self.state = at_depth(self.model, state)
        self.num_drafted, self.num_accepted = 0, 0

    def round(self, stream: "TokenStream", most: int | None) -> Round:
        """Tokens of all rows, one after another, `most` at most, and both states after them.

        All rows make as many as the one that makes the fewest.
        """
        config, rows, model = stream.sampling, stream.rows, stream.stepper.model
        number = min(self.num_tokens, most or self.num_tokens)
        before = stream.stepper.state
        assert isinstance(model, SequenceModel)
        assert isinstance(before, State)

        def draws(place: int, purpose: str = "") -> Tensor:
            count = stream.num_made + place
            return torch.tensor(
                [uniform(seed=config.seed, row=row, count=count, purpose=purpose) for row in rows],
                dtype=torch.float64,
            )

        fed, states, proposed = [stream.pending], [self.state], []
        recent = [list(row) for row in stream.recent]
        for place in range(number):
            logits, state = feed(self.model, fed[-1][:, None], states[-1])
            assert isinstance(state, State)
            states.append(state)
            proposed.append(scores_to_draw(config, logits[:, -1], recent, rows=rows))
            fed.append(pick(proposed[-1], draws(place).to(proposed[-1].device)).cpu())
            for row, token in zip(recent, fed[-1].tolist(), strict=True):
                row.append(token)
        tokens = torch.stack(fed[:-1], dim=1)
        logits, after = feed(model, tokens, before)
        assert isinstance(after, State)
        made = []
        recent = [row[: len(row) - number] for row in recent]
        for place, draft in enumerate(fed[1:]):
            scores = scores_to_draw(config, logits[:, place], recent, rows=rows)
            wanted, given = scores.softmax(-1), proposed[place].softmax(-1)
            of_draft = draft.to(wanted.device)[:, None]
            share = (wanted.gather(-1, of_draft) / given.gather(-1, of_draft))[:, 0].cpu()
            is_accepted = draws(place, "accept") < share
            rest = (wanted - given).clamp_min(0)
            # Where both are the same but for rounding there is no rest.
            rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, wanted)
            other = pick(rest.log(), draws(place, "rest").to(rest.device)).cpu()
            chosen = torch.where(is_accepted, draft, other)
            made.append((chosen, logprobs_of(logits[:, place].double(), chosen)))
            for row, token in zip(recent, chosen.tolist(), strict=True):
                row.append(token)
            self.num_drafted += len(rows)
            self.num_accepted += int(is_accepted.sum())
            if not is_accepted.all():
                break
        return made, states[len(made)], earlier(model, before, after, tokens[:, : len(made)])


def earlier(
    model: SequenceModel, before: State, after: State, tokens: Int[Tensor, "rows time"]
) -> State:
    """The state after the first tokens of those that lead from one state to another."""
    if tokens.shape[1] == after.lengths[0] - before.lengths[0]:
        return after
    pairs = zip(before.streams, after.streams, strict=True)
    streams = [_cut(model, old, new, tokens.shape[1]) for old, new in pairs]
    found = [stream for stream in streams if stream is not None]
    if len(found) < len(streams):
        state = feed(model, tokens, before)[1]
        assert isinstance(state, State)
        return state
    return replace(after, streams=tuple(found))


def _cut(model: SequenceModel, old: Stream, new: Stream, num_tokens: int) -> Stream | None:
    """A stream after some of the latest tokens, from what both hold; None: too much is gone."""
    stop = old.position + num_tokens
    held = {key: bank.num_tokens for key, bank in old.banks.items()}
    ledger = Ledger(banks=dict(held), cached=old.cached)
    phases = model.schedule.phases(
        range(old.position, stop), depth=model.config.depth, order="window"
    )
    if old.cached and any(old.starts):
        # The cache may lack what came before all rows began, which a ledger does not know.
        return None
    for _ in ledger.follow(chain.from_iterable(phases)):
        pass
    banks: dict[tuple[int, int], KeysValues] = {}
    for key, count in ledger.banks.items():
        # A bank of neighbours in time ends where its stream stands.
        num_new = new.banks[key].num_tokens - (new.position - stop) if key in new.banks else 0
        if num_new < min(count, num_tokens):
            return None
        parts = [new.banks[key].part(0, num_new)]
        if count > num_new:
            # Tokens that the new bank has dropped since.
            parts.insert(0, old.banks[key].part(0, held[key] - num_new + num_tokens))
        banks[key] = latest(parts, count)
    if overlap(ledger.cached, new.cached) != ledger.cached:
        return None
    places = places_among(new.cached, ledger.cached)
    cache = tuple(part.parts(places) for part in new.cache)
    cut = replace(new, position=stop, banks=banks, cache=cache, cached=ledger.cached)
    return cut.map(compact)
