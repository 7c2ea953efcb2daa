"""A slow reference for every model of the family, written straight from the equations.

The sections named are those of the paper "Staircase Attention for Recurrent Processing of
Sequences". Nothing here is meant to be fast: plain loops over steps, layers, tokens, heads and
pairs of tokens, one vector at a time, and keys and values computed again at every step. Only the
batch is a tensor dimension: a hidden state is a tensor (batch, width).

Letters in the docstrings: C tokens in a chunk, N passes (or chunks in a cached window), M passes
before a state is frozen, L layers, S the span, d the head size; H_i^n is chunk i after n passes
through the core.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

NORM_EPSILON = 1e-5
ROTARY_BASE = 10000.0


class Attended(NamedTuple):
    """What one token offers to a query: where it stands, its key and its value (batch, width)."""

    position: int
    key: Tensor
    value: Tensor


def rotate(vector: Tensor, position: int) -> Tensor:
    """Turn the pair (x_j, x_{j+d/2}) of one head's vector by position · 10000^(-2j/d), each j."""
    head_size = vector.shape[-1]
    half = head_size // 2
    angles = [position * ROTARY_BASE ** (-2 * j / head_size) for j in range(half)]
    cosine = vector.new_tensor([math.cos(angle) for angle in angles])
    sine = vector.new_tensor([math.sin(angle) for angle in angles])
    first, second = vector[:, :half], vector[:, half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


@dataclass(frozen=True)
class Oracle:
    """The parts of a decoder-only Transformer (section 3.1), applied to one token at a time."""

    parameters: Mapping[str, Tensor]
    core: Any
    num_cut: int = 0
    trace: dict[tuple[Any, ...], list[Tensor]] = field(default_factory=dict)
    """By name, layer and position: what was computed at each pass, in order."""

    def note(self, value: Tensor, *place: Any) -> Tensor:
        self.trace.setdefault(place, []).append(value)
        return value

    def cut(self, states: dict[int, Tensor], passes: Mapping[int, int]) -> dict[int, Tensor]:
        """No gradient through what a token is in one of its first passes."""
        is_cut = {t: passes[t] <= self.num_cut for t in states}
        return {t: state.detach() if is_cut[t] else state for t, state in states.items()}

    def linear(self, name: str, vector: Tensor) -> Tensor:
        """Linear map: x Wᵀ + b, without b where there is none."""
        product = vector @ self.parameters[f"{name}.weight"].T
        bias = self.parameters.get(f"{name}.bias")
        return product if bias is None else product + bias

    def norm(self, name: str, vector: Tensor) -> Tensor:
        """LayerNorm: (x - mean) / sqrt(variance + 1e-5), scaled and shifted; RMSNorm: no mean."""
        mean = vector.mean(dim=-1, keepdim=True) if self.core.norm == "layer" else 0.0
        centred = vector - mean
        variance = (centred * centred).mean(dim=-1, keepdim=True)
        scaled = centred / torch.sqrt(variance + NORM_EPSILON) * self.parameters[f"{name}.weight"]
        bias = self.parameters.get(f"{name}.bias")
        return scaled if bias is None else scaled + bias

    def name(self, layer: int) -> str:
        """Parameters of the layers that recur, then of the prelude's, then of the coda's."""
        for kind in ("layers", "prelude", "coda"):
            number = getattr(self.core, f"num_{kind}" + "_layers" * (kind != "layers"))
            if layer < number:
                return f"core.{kind}.{layer}"
            layer -= number
        raise ValueError(f"no layer {layer}")

    def embed(self, tokens: Tensor) -> list[Tensor]:
        """h_t = f_in(x_t) for every t."""
        table = self.parameters["embedding.weight"]
        return [table[tokens[:, token]] for token in range(tokens.shape[1])]

    def read_out(self, hidden: Tensor) -> Tensor:
        """y_t = f_out(h̄_t): the last norm, then the output layer."""
        return self.linear("output", self.norm("output_norm", hidden))

    def rows(self, head: int) -> slice:
        """The rows of a query, key or value that belong to one head."""
        head_size = self.core.width // self.core.num_heads
        return slice(head * head_size, (head + 1) * head_size)

    def placed(self, name: str, vector: Tensor, position: int) -> Tensor:
        """A query or key: each head normed, then turned by its position, where that is asked."""
        heads = []
        for head in range(vector.shape[-1] * self.core.num_heads // self.core.width):
            part = vector[:, self.rows(head)]
            part = self.norm(name, part) if self.core.qk_norm else part
            heads.append(part if self.core.positions == "relative" else rotate(part, position))
        return torch.cat(heads, dim=-1)

    def attended(self, layer: int, position: int, hidden: Tensor) -> Attended:
        """A state as one layer sees it: through that layer's own norm, key and value."""
        name = self.name(layer)
        normed = self.norm(f"{name}.attention_norm", hidden)
        key = self.linear(f"{name}.attention.key", normed)
        value = self.linear(f"{name}.attention.value", normed)
        return Attended(position, self.placed(f"{name}.attention.key_norm", key, position), value)

    def attended_shared(self, position: int, hidden: Tensor) -> Attended:
        """A state as all layers see it where keys and values are shared (Feedback Transformer)."""
        normed = self.norm("core.memory.norm", hidden)
        key = self.linear("core.memory.key", normed)
        value = self.linear("core.memory.value", normed)
        return Attended(position, self.placed("core.memory.key_norm", key, position), value)

    def score(self, query: Tensor, key: Tensor, distance: int) -> Tensor:
        """One head's score of one pair, (batch,), for placed vectors (batch, d).

        Relative (Shaw et al.): (q_t · k_s + q_t · r[min(t - s, last)]) / sqrt(d).
        Rotary: q_t · k_s / sqrt(d), where q_t was turned by t and k_s by s.
        """
        product = (query * key).sum(dim=-1)
        if self.core.positions == "relative":
            table = self.parameters["core.positions.table"]
            product = product + (query * table[min(distance, table.shape[0] - 1)]).sum(dim=-1)
        return product / math.sqrt(query.shape[-1])

    def attend_head(
        self, layer: int, head: int, query: Tensor, position: int, attended: list[Attended]
    ) -> Tensor:
        """Σ_s softmax_s(score(t, s)) v_s for one head, over everything in `attended`."""
        rows = self.rows(head)
        # Heads that are neighbours share a head of keys and values.
        shared = self.rows(head // (self.core.num_heads // self.core.key_value_heads))
        scores = [
            self.score(query[:, rows], other.key[:, shared], position - other.position)
            for other in attended
        ]
        weights = torch.stack(scores, dim=-1).softmax(dim=-1).unbind(dim=-1)
        at = {other.position: weight for other, weight in zip(attended, weights, strict=True)}
        zero = torch.zeros_like(weights[0])
        seen = torch.stack([at.get(other, zero) for other in range(position + 1)], dim=-1)
        self.note(seen, "weights", layer, position, head)
        mixed = torch.zeros_like(query[:, rows])
        for weight, other in zip(weights, attended, strict=True):
            mixed = mixed + weight[:, None] * other.value[:, shared]
        return mixed

    def attention(
        self, layer: int, position: int, hidden: Tensor, attended: list[Attended]
    ) -> Tensor:
        """All heads side by side, then the output projection; zero where nothing is attended to."""
        if not attended:
            return torch.zeros_like(hidden)
        name = f"{self.name(layer)}.attention"
        normed = self.norm(f"{name}_norm", hidden)
        query = self.placed(f"{name}.query_norm", self.linear(f"{name}.query", normed), position)
        heads = [
            self.attend_head(layer, head, query, position, attended)
            for head in range(self.core.num_heads)
        ]
        for other in attended:
            if other.position == position:
                self.note(other.key, "key", layer, position)
        return self.linear(f"{name}.output", torch.cat(heads, dim=-1))

    def feed_forward(self, name: str, normed: Tensor) -> Tensor:
        """W_2 relu(W_1 x + b_1) + b_2, with gelu instead, or with silu(W_0 x + b_0) as a factor."""
        inner = self.linear(f"{name}.expand", normed)
        if self.core.feed_forward == "swiglu":
            gate = self.linear(f"{name}.gate", normed)
            inner = gate / (1 + torch.exp(-gate)) * inner
        elif self.core.feed_forward == "gelu":
            inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        else:
            inner = torch.relu(inner)
        return self.linear(f"{name}.contract", inner)

    def layer(self, layer: int, position: int, hidden: Tensor, attended: list[Attended]) -> Tensor:
        """One pre-norm layer: h + Attention(norm(h)), then + FeedForward(norm(.))."""
        name = f"{self.name(layer)}.feed_forward"
        middle = hidden + self.attention(layer, position, hidden, attended)
        after = middle + self.feed_forward(name, self.norm(f"{name}_norm", middle))
        return self.note(after, "hidden", layer, position)

    def inject(self, hidden: Tensor, entered: Tensor) -> Tensor:
        """What a pass takes in: h, h + e, norm(h) + e, or (1 - g) h + g e, g = σ(W h + b)."""
        if self.core.injection == "none":
            return hidden
        if self.core.injection == "add":
            return hidden + entered
        if self.core.injection == "normed":
            return self.norm("core.state_norm", hidden) + entered
        gate = torch.sigmoid(self.linear("core.gate", hidden))
        return (1 - gate) * hidden + gate * entered

    def layer_over(
        self, layer: int, states: Mapping[int, Tensor], visible: Mapping[int, Iterable[int]]
    ) -> dict[int, Tensor]:
        """One layer for each token t in `visible`, attending to the states of visible[t]."""
        offered = {u: self.attended(layer, u, state) for u, state in states.items()}
        return {
            t: self.layer(layer, t, states[t], [offered[u] for u in seen])
            for t, seen in visible.items()
        }


def outside(oracle: Oracle, states: list[Tensor], layers: range, span: int) -> list[Tensor]:
    """Prelude and coda: layers that each token goes through once, seeing tokens t-S+1..t."""
    visible = {t: range(max(0, t - span + 1), t + 1) for t in range(len(states))}
    found = dict(enumerate(states))
    for layer in layers:
        found = oracle.layer_over(layer, found, visible)
    return [found[token] for token in range(len(states))]


def reach(schedule: Any) -> int:
    """S outside of the recurrence: the window of the schedule, 512 or one chunk where it grows."""
    match type(schedule).__name__:
        case "Staircase":
            return schedule.chunk_size * schedule.num_passes
        case "CachedStaircase" | "AlternateCached":
            return schedule.chunk_size * schedule.num_window_chunks
        case "GlobalCachedStaircase":
            return max(512, schedule.chunk_size * schedule.num_passes)
        case "FeedbackTransformer":
            return schedule.span + 1
        case "MemoryNetwork":
            return schedule.span
    return schedule.span if schedule.span_includes_self else schedule.span + 1


def staircase(
    oracle: Oracle, embeddings: list[Tensor], chunk_size: int, num_passes: int
) -> list[Tensor]:
    """Section 3.2.1, equation 3: H_{s-N+1}^N, ..., H_s^1 = Core(H_{s-N+1}^{N-1}, ..., H_s^0).

    Step s puts the existing chunks among s-N+1..s through the core together; a token sees the
    window's tokens up to itself, at their inputs to the same layer of the same step.
    """
    chunk = [token // chunk_size for token in range(len(embeddings))]
    hidden = {(token, 0): embedding for token, embedding in enumerate(embeddings)}
    for step in range(chunk[-1] + num_passes):
        window = [t for t in range(len(chunk)) if step - num_passes + 1 <= chunk[t] <= step]
        visible = {t: [u for u in window if u <= t] for t in window}
        states = {
            t: oracle.inject(hidden[t, step - chunk[t]], embeddings[t])
            if step > chunk[t]
            else embeddings[t]
            for t in window
        }
        for layer in range(oracle.core.num_layers):
            states = oracle.layer_over(layer, states, visible)
            states = oracle.cut(states, {t: step - chunk[t] + 1 for t in window})
        hidden |= {(t, step - chunk[t] + 1): states[t] for t in window}
    return [hidden[token, num_passes] for token in range(len(embeddings))]


def cached_staircase(
    oracle: Oracle,
    embeddings: list[Tensor],
    chunk_size: int,
    num_window_chunks: float,
    num_passes: int,
) -> list[Tensor]:
    """Sections 3.2.2 and 3.2.3 (N infinite): H_i^n = H_i^M for n > M, as keys and values only.

    A chunk is a query for its first M steps, and for one step where M = 0, when its output is H^1
    but later chunks see the frozen H^0. Frozen states enter every layer the same.
    """
    num_query_steps = max(num_passes, 1)
    chunk = [token // chunk_size for token in range(len(embeddings))]
    hidden = {(token, 0): embedding for token, embedding in enumerate(embeddings)}
    for step in range(chunk[-1] + num_query_steps):
        window = [t for t in range(len(chunk)) if step - num_window_chunks + 1 <= chunk[t] <= step]
        queries = [t for t in window if step - chunk[t] < num_query_steps]
        visible = {t: [u for u in window if u <= t] for t in queries}
        frozen = {t: hidden[t, num_passes] for t in window if t not in queries}
        moving = {
            t: oracle.inject(hidden[t, step - chunk[t]], embeddings[t])
            if step > chunk[t]
            else embeddings[t]
            for t in queries
        }
        for layer in range(oracle.core.num_layers):
            moving = oracle.layer_over(layer, frozen | moving, visible)
            moving = oracle.cut(moving, {t: step - chunk[t] + 1 for t in queries})
        hidden |= {(t, step - chunk[t] + 1): moving[t] for t in queries}
    return [hidden[token, num_query_steps] for token in range(len(embeddings))]


def ladder(
    oracle: Oracle, embeddings: list[Tensor], num_passes: int, span: int, order: str
) -> list[Tensor]:
    """Section 3.2.4: all tokens at once, N times through the core (ABAB) or each layer (AABB).

    In each application of a layer token t sees tokens t-S+1..t at that application's inputs. A pass
    that begins again, over the core or over the layer, sees the embeddings where they are injected.
    """
    layers = range(oracle.core.num_layers)
    applications = {
        "ABAB": [(layer, n > 0 and layer == 0) for n in range(num_passes) for layer in layers],
        "AABB": [(layer, n > 0) for layer in layers for n in range(num_passes)],
    }[order]
    visible = {t: range(max(0, t - span + 1), t + 1) for t in range(len(embeddings))}
    states = dict(enumerate(embeddings))
    for number, (layer, begins_again) in enumerate(applications):
        if begins_again:
            states = {t: oracle.inject(state, embeddings[t]) for t, state in states.items()}
        states = oracle.layer_over(layer, states, visible)
        # ABAB, which alone is ever cut.
        states = oracle.cut(states, dict.fromkeys(states, number // len(layers) + 1))
    return [states[token] for token in range(len(embeddings))]


def parallel_loop(
    oracle: Oracle, embeddings: list[Tensor], num_passes: int, span: int
) -> list[Tensor]:
    """Token by token: pass n takes in pass n-1 of the token before, 0 at first, and the token."""
    keys: dict[tuple[int, int], dict[int, Attended]] = {}
    before = [torch.zeros_like(embeddings[0])] * num_passes
    outputs = []
    for t, embedding in enumerate(embeddings):
        after = []
        for n in range(1, num_passes + 1):
            if n == 1:
                state = embedding
            elif oracle.core.injection == "none":
                state = before[n - 2] + embedding
            else:
                state = oracle.inject(before[n - 2], embedding)
            for layer in range(oracle.core.num_layers):
                offered = keys.setdefault((n, layer), {})
                offered[t] = oracle.attended(layer, t, state)
                seen = [offered[u] for u in range(max(0, t - span + 1), t + 1)]
                state = oracle.layer(layer, t, state, seen)
            after.append(state.detach() if n <= oracle.num_cut else state)
        before = after
        outputs.append(after[-1])
    return outputs


def memory_network(oracle: Oracle, embeddings: list[Tensor], span: int) -> list[Tensor]:
    """Section 3.3, Memory Networks: one pass; of tokens t-S+1..t-1 only the embeddings are seen."""
    outputs = []
    for token in range(len(embeddings)):
        visible = range(max(0, token - span + 1), token + 1)
        states = {other: embeddings[other] for other in visible}
        for layer in range(oracle.core.num_layers):
            states |= oracle.layer_over(layer, states, {token: visible})
        outputs.append(states[token])
    return outputs


def feedback_memory(oracle: Oracle, layer_states: list[Tensor], memory: str) -> Tensor:
    """m_t = Σ_l softmax(w)_l x_t^l over l = 0..L ("mix"), or x_t^L ("top")."""
    if memory == "top":
        return layer_states[-1]
    weights = oracle.parameters["core.memory.mix.logits"].softmax(dim=0)
    mixed = torch.zeros_like(layer_states[0])
    for weight, state in zip(weights.unbind(), layer_states, strict=True):
        mixed = mixed + weight * state
    return mixed


def feedback_transformer(oracle: Oracle, embeddings: list[Tensor], schedule: Any) -> list[Tensor]:
    """Section 3.3, Feedback Transformer: every layer of token t attends to m_{t-S}, ..., m_{t-1}.

    With attend_self also to x_t^l itself, at distance 0, through the same projections.
    """
    memories: list[Tensor] = []
    outputs = []
    for token, embedding in enumerate(embeddings):
        layer_states = [embedding]
        for layer in range(oracle.core.num_layers):
            current = layer_states[-1]
            seen = {u: memories[u] for u in range(max(0, token - schedule.span), token)}
            if schedule.attend_self:
                seen[token] = current
            if schedule.share_keys_values:
                attended = [oracle.attended_shared(u, state) for u, state in seen.items()]
            else:
                attended = [oracle.attended(layer, u, state) for u, state in seen.items()]
            layer_states.append(oracle.layer(layer, token, current, attended))
        memories.append(feedback_memory(oracle, layer_states, schedule.memory))
        outputs.append(layer_states[-1])
    return outputs


def final_states(oracle: Oracle, embeddings: list[Tensor], schedule: Any) -> list[Tensor]:
    """h̄_t for every token, under the schedule that the class name gives."""
    match type(schedule).__name__:
        case "Staircase":
            return staircase(oracle, embeddings, schedule.chunk_size, schedule.num_passes)
        case "CachedStaircase":
            size, window = schedule.chunk_size, schedule.num_window_chunks
            return cached_staircase(oracle, embeddings, size, window, schedule.num_passes)
        case "GlobalCachedStaircase":
            size, window = schedule.chunk_size, math.inf
            return cached_staircase(oracle, embeddings, size, window, schedule.num_passes)
        case "Ladder" | "TransformerXL" | "UniversalTransformer" as name:
            if name == "UniversalTransformer" and oracle.core.num_layers != 1:
                raise ValueError("a Universal Transformer has one layer")
            num_passes, order = (
                getattr(schedule, "num_passes", 1),
                getattr(schedule, "order", "ABAB"),
            )
            span = schedule.span if schedule.span_includes_self else schedule.span + 1
            return ladder(oracle, embeddings, num_passes, span, order)
        case "ParallelLoop":
            return parallel_loop(oracle, embeddings, schedule.num_passes, schedule.span)
        case "FeedbackTransformer":
            return feedback_transformer(oracle, embeddings, schedule)
        case "MemoryNetwork":
            return memory_network(oracle, embeddings, schedule.span)
        case name:
            raise ValueError(f"no oracle for the schedule {name}")


def oracle_logits(
    parameters: Mapping[str, Tensor],
    core: Any,
    schedule: Any,
    tokens: Tensor,
    recurrence: Callable[[Oracle, list[Tensor], Any], list[Tensor]] = final_states,
    *,
    num_cut: int = 0,
    trace: dict[tuple[Any, ...], list[Tensor]] | None = None,
) -> Tensor:
    """The logits (batch, time, output_size) of all tokens (batch, time), from a fresh start."""
    if core.positions not in ("relative", "rotary"):
        raise ValueError(f"no oracle for the positions {core.positions}")
    oracle = Oracle(parameters, core, num_cut, {} if trace is None else trace)
    num_layers, num_before, num_after = core.depth
    first, last = num_layers + num_before, num_layers + num_before + num_after
    span = reach(schedule)
    entered = outside(oracle, oracle.embed(tokens), range(num_layers, first), span)
    left = recurrence(oracle, entered, schedule)
    states = outside(oracle, left, range(first, last), span)
    return torch.stack([oracle.read_out(state) for state in states], dim=1)
