"""Self-speculation: a few passes draft tokens, all passes verify them in one call of the model.

A draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)), where p is what the model
itself would draw from; else the token is drawn from max(p - q, 0), rescaled. So tokens have the
distribution p, and at temperature 0 they are those of plain decoding (Leviathan et al. 2023). What
happens to a token depends on those before it and on its three draws alone: neither the number of
drafts nor the other rows matter.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from staircase_attention.checks import check_integer, input_error
from staircase_attention.generation.sampling import pick, scores_to_draw, uniform
from staircase_attention.generation.stepper import Stepper
from staircase_attention.models import SequenceModel, State, at_depth

if TYPE_CHECKING:
    from staircase_attention.generation.stream import TokenStream


class Speculation:
    """The same weights in fewer passes, a state of their own, and how far they go ahead."""

    def __init__(self, stepper: Stepper, *, num_passes: int, num_tokens: int) -> None:
        check_integer("draft_passes", num_passes, minimum=1, example=2)
        check_integer("draft_tokens", num_tokens, minimum=1, example=4)
        model, state = stepper.model, stepper.state
        if not isinstance(model, SequenceModel) or not isinstance(state, State):
            rule = "drafts are for schedules with num_passes"
            raise input_error(rule, type(model).__name__, "leave draft_passes out")
        drafting = model.with_schedule(model.schedule.with_passes(num_passes))
        self.num_tokens = num_tokens
        self.drafts = Stepper(drafting, at_depth(drafting, state), slack=num_tokens)
        self.num_drafted, self.num_accepted = 0, 0

    def round(self, stream: "TokenStream", most: int | None) -> list[tuple[Tensor, Tensor]]:
        """Tokens of all rows and their log-probabilities, one after another, `most` at most.

        All rows make as many as the one that makes the fewest. Both steppers are then ahead of the
        stream by all drafts but the last, until they settle.
        """
        config, rows = stream.sampling, stream.rows
        limits = (self.num_tokens, most, self.drafts.room, stream.stepper.room)

        def draws(place: int, purpose: str = "") -> Tensor:
            count = stream.num_made + place
            found = [
                uniform(seed=config.seed, row=row, count=count, purpose=purpose) for row in rows
            ]
            return torch.tensor(found, dtype=torch.float64)

        fed, proposed = [stream.pending], []
        recent = [list(row) for row in stream.recent]
        for place in range(min(limit for limit in limits if limit is not None)):
            logits = self.drafts.ahead(fed[-1][:, None])
            proposed.append(scores_to_draw(config, logits[:, -1], recent, rows=rows))
            fed.append(pick(proposed[-1], draws(place).to(logits.device)).cpu())
            for row, token in zip(recent, fed[-1].tolist(), strict=True):
                row.append(token)
        verified = stream.stepper.ahead(torch.stack(fed[:-1], dim=1))
        recent, made = [list(row) for row in stream.recent], []
        for place, (draft, scores) in enumerate(zip(fed[1:], proposed, strict=True)):
            logits = verified[:, place].double()
            given = scores.softmax(-1)
            wanted = scores_to_draw(config, logits, recent, rows=rows).softmax(-1)
            drawn = draft.to(logits.device)[:, None]
            share = (wanted.gather(-1, drawn) / given.gather(-1, drawn))[:, 0].cpu()
            is_accepted = draws(place, "accept") < share
            rest = (wanted - given).clamp_min(0)
            # Where both are the same but for rounding there is no rest.
            rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, wanted)
            other = pick(rest.log(), draws(place, "rest").to(logits.device)).cpu()
            tokens = torch.where(is_accepted, draft, other)
            logprobs = logits.log_softmax(-1).cpu().gather(-1, tokens[:, None])[:, 0]
            made.append((tokens, logprobs))
            for row, token in zip(recent, tokens.tolist(), strict=True):
                row.append(token)
            self.num_drafted += len(rows)
            self.num_accepted += int(is_accepted.sum())
            if not is_accepted.all():
                break
        return made
