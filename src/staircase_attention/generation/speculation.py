"""Self-speculation: the first passes draft tokens, all passes verify them in one call of the model.

Drafts go on from the model's own state: they find all that its tokens left, at any pass, and are
taken back before they are verified.

A draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)), where p is what the model
itself would draw from; else the token is drawn from max(p - q, 0), rescaled. So tokens have the
distribution p, and at temperature 0 they are those of plain decoding (Leviathan et al. 2023). What
happens to a token depends on those before it and on its three draws alone: neither the number of
drafts nor the other rows matter.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from staircase_attention.checks import check_integer, input_error
from staircase_attention.generation import sampling
from staircase_attention.generation.stepper import Model, device_of
from staircase_attention.models import SequenceModel

if TYPE_CHECKING:
    from staircase_attention.generation.stream import TokenStream


class Speculation:
    """How far drafts go ahead, and how many were accepted so far."""

    def __init__(self, model: Model, num_passes: int, num_tokens: int) -> None:
        check_integer("draft_passes", num_passes, minimum=1, example=2)
        check_integer("draft_tokens", num_tokens, minimum=1, example=4)
        if not isinstance(model, SequenceModel):
            rule = "drafts are for schedules with num_passes"
            raise input_error(rule, type(model).__name__, "leave draft_passes out")
        # Refuses a schedule that has no such number.
        model.schedule.with_passes(num_passes)
        self.num_tokens = num_tokens
        self.num_drafted, self.num_accepted = 0, 0

    def round(self, stream: "TokenStream", most: int | None) -> list[tuple[Tensor, Tensor]]:
        """Tokens of all rows and their log-probabilities, one after another, `most` at most.

        All rows make as many as the one that makes the fewest. The stepper is then ahead of the
        stream by all drafts but the last, until it settles.
        """
        config, rows, stepper = stream.sampling, stream.rows, stream.stepper
        device = device_of(stepper.model)
        # A decoder has a program for each number of tokens: halves keep them few.
        number, room = self.num_tokens, stepper.room
        while room is not None and number > room:
            number //= 2
        # All draws of the round at once, [purposes, places, rows]: nothing waits for the host.
        purposes = () if config.temperature == 0 else ("", "accept", "rest")
        counts = range(stream.num_made, stream.num_made + number)
        draw = partial(sampling.uniform, seed=config.seed)
        drawn = [
            [[draw(row=row, count=count, purpose=why) for row in rows] for count in counts]
            for why in purposes
        ]
        draws = torch.tensor(drawn, dtype=torch.float64).to(device)
        fed, proposed = [stream.pending.to(device)], []
        recent: Sequence[Sequence[int]] = stream.recent
        recents: list[Sequence[int]] = []
        for place in range(number):
            recents += recent
            if config.temperature == 0 and place == number - 1:
                # Nothing follows it: what all passes say is the token.
                break
            logits = stepper.ahead(fed[-1][:, None], drafts=True)[:, -1]
            if config.temperature == 0:
                fed.append(sampling.likeliest(config, logits, recent))
            else:
                proposed.append(sampling.scores_to_draw(config, logits, recent))
                # Damaged weights leave nothing to pick; the logits of all passes are checked.
                found = sampling.pick(proposed[-1], draws[0, place])
                fed.append(found.clamp_max_(logits.shape[-1] - 1))
            if config.repetition_penalty != 1:
                new = zip(recent, fed[-1].tolist(), strict=True)
                recent = [[*row, token] for row, token in new]
        stepper.settle(0)
        # Places are rows from here on: [places * rows, ...].
        logits = stepper.ahead(torch.stack(fed[:number], 1)).transpose(0, 1).flatten(0, 1)
        if config.temperature == 0:
            tokens = sampling.likeliest(config, logits, recents)
            is_accepted = tokens == torch.cat([*fed[1:], tokens[-len(rows) :]])
        else:
            wanted = sampling.scores_to_draw(config, logits, recents).softmax(-1)
            given = torch.cat(proposed).softmax(-1)
            drafts = torch.cat(fed[1:])
            tokens, is_accepted = verified(drafts, given, wanted, draws[1:].flatten(1))
        tokens = sampling.usable(tokens, logits)
        # One copy to the host per round.
        parts = [tokens.double(), is_accepted.double(), sampling.logprobs_of(tokens, logits)]
        facts = torch.stack(parts).cpu()
        sampling.check_tokens(facts[0].tolist(), [*rows] * number)
        tokens, accepted, logprobs = torch.unflatten(facts, 1, (number, -1))
        # Up to the first place at which a row's draft is not accepted.
        is_whole = [*accepted.bool().all(1).tolist(), False]
        count = min(is_whole.index(False) + 1, number, most or number)
        num_drafts = min(count, len(fed) - 1)
        self.num_drafted += num_drafts * len(rows)
        self.num_accepted += int(accepted[:num_drafts].sum())
        return list(zip(tokens[:count].long(), logprobs[:count], strict=True))


def verified(
    drafts: Int[Tensor, " rows"],
    given: Float[Tensor, "rows vocab"],
    wanted: Float[Tensor, "rows vocab"],
    draws: Float[Tensor, "2 rows"],
) -> tuple[Int[Tensor, " rows"], Bool[Tensor, " rows"]]:
    """Tokens with the distribution `wanted`, by drafts that have `given`; which are the drafts."""
    share = (wanted / given).gather(-1, drafts[:, None])[:, 0]
    is_accepted = draws[0] < share
    rest = (wanted - given).clamp_min(0)
    # Where both are the same but for rounding there is no rest.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, wanted)
    return torch.where(is_accepted, drafts, sampling.pick(rest.log(), draws[1])), is_accepted
