"""The fused core is the plain one: logits, states, gradients; and no copy of a window per step.

The kernels run through Triton's interpreter.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from building import WithoutSelf, random_tokens
from examples.alternate import AlternateCached
from staircase_attention import (
    CachedStaircase,
    CoreConfig,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    SequenceModel,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)
from staircase_attention.engine import accelerate, plain
from staircase_attention.engine.backend import FusedBackend
from staircase_attention.engine.fused.core import FusedCore
from staircase_attention.inspect import inspect
from staircase_attention.layers import Cache

VOCAB_SIZE = 7
CACHED = {
    "once": CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=1),
    "twice": CachedStaircase(chunk_size=2, num_window_chunks=4, num_passes=2),
    "as it came": CachedStaircase(chunk_size=2, num_window_chunks=3, num_passes=0),
    "global": GlobalCachedStaircase(chunk_size=3, num_passes=1),
    "global, twice": GlobalCachedStaircase(chunk_size=2, num_passes=2),
    "feedback": FeedbackTransformer(span=4),
    "feedback, own keys": FeedbackTransformer(span=4, share_keys_values=False),
    "feedback, itself": FeedbackTransformer(
        span=3, share_keys_values=False, memory="top", attend_self=True
    ),
    "memory network": MemoryNetwork(span=4),
    "without itself": WithoutSelf(chunk_size=2, num_window_chunks=3, num_passes=1),
}
UNCACHED = {
    "staircase": Staircase(chunk_size=3, num_passes=3),
    "ladder": Ladder(num_passes=2, span=5),
    "ladder, AABB": Ladder(num_passes=2, span=5, order="AABB"),
    "transformer-xl": TransformerXL(span=5),
    "universal": UniversalTransformer(num_passes=2, span=5),
    "gaps": AlternateCached(chunk_size=2, num_window_chunks=4, num_passes=2),
}
SCHEDULES = CACHED | UNCACHED
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
pytestmark = pytest.mark.usefixtures("with_kernels")


def build(name, *, dropout=0.0, **settings):
    """Several heads where there is nothing cached, else several rows: the interpreter is slow."""
    torch.manual_seed(0)
    schedule, heads = SCHEDULES[name], 1 if name in CACHED else 2
    core = CoreConfig(
        width=16 * heads,
        num_layers=1 if name == "universal" else 2,
        num_heads=heads,
        feed_forward_width=8,
        dropout=dropout,
    )
    core = replace(core, **settings)
    model = SequenceModel(vocab_size=VOCAB_SIZE, core=core, schedule=schedule)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return accelerate(model)


def tensors(state):
    """What a state holds; banks in their order."""
    return [
        part
        for stream in state.streams
        for held in (*(pair for _, pair in sorted(stream.banks.items())), *stream.cache)
        for part in held
    ]


def weighed(outcomes):
    """A number on which all of these have their own influence."""
    generator = torch.Generator().manual_seed(1)
    return sum((one * torch.randn(one.shape, generator=generator)).sum() for one in outcomes)


def run(model, lengths, *, batch_size=2, state=None, change=lambda state: state, **options):
    """Logits of some segments, and the last state; `change` is made to states between them."""
    tokens = random_tokens(batch_size, sum(lengths))
    outcomes = []
    for segment in torch.split(tokens, lengths, dim=1):
        logits, state = model(segment, None if state is None else change(state), **options)
        outcomes.append(logits)
    return [*outcomes, *tensors(state)], state


def results(model, lengths, **options):
    outcomes, _ = run(model, lengths, **options)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(weighed(outcomes), parameters, materialize_grads=True)
    return [*(one.detach() for one in outcomes), *gradients]


def joined(monkeypatch):
    """Let the fused core join, as it does where no gradients are kept."""
    monkeypatch.setattr(
        FusedCore,
        "new_cache",
        lambda self, held, positions, *, num_new: Cache(held, positions),
    )


def assert_equals_plain_core(model, lengths, **options):
    found = results(model, lengths, **options)
    expected = results(plain(model).double(), lengths, **options)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)


@pytest.mark.parametrize("name", SCHEDULES)
def test_gradients_flow_through_states_until_one_is_detached(name):
    states = []

    def detach_second(state):
        states.append(state)
        return state.detach() if len(states) % 2 == 0 else state

    rows = 2 if name in CACHED else 1
    assert_equals_plain_core(build(name), [4, 2, 3], batch_size=rows, change=detach_second)


@pytest.mark.parametrize("name", ["twice", "global, twice"])
def test_gradients_flow_through_states_beside_passes_that_are_cut(name):
    model = build(name)
    model.gradient_passes = 1
    assert_equals_plain_core(model, [4, 3])


MODERN = {
    "norm": "rms",
    "feed_forward": "swiglu",
    "positions": "rotary",
    "num_key_value_heads": 2,
    "bias": False,
}
OUTER = {"num_prelude_layers": 1, "num_coda_layers": 1, "injection": "gated"}
WIDE = {"width": 64, "num_heads": 4, "num_layers": 1}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("staircase", MODERN | WIDE),
        ("twice", MODERN | WIDE | OUTER),
        ("transformer-xl", MODERN | WIDE | {"num_key_value_heads": 1, "bias": True}),
        ("ladder", {"feed_forward": "gelu", "norm": "rms"} | OUTER | {"injection": "normed"}),
        ("once", {"bias": False, "positions": "rotary"}),
        ("feedback", {"norm": "rms", "feed_forward": "swiglu"}),
    ],
)
def test_modern_cores_equal_the_plain_core(name, settings):
    masks = iter(2 * [[False, False], [True, False]])
    model = build(name, **settings)
    fused = FusedBackend().runner(model.core, torch.zeros(1, 1, 16), recompute=False)
    assert isinstance(fused, FusedCore)
    assert_equals_plain_core(model, [3, 1, 2], change=lambda state: state.reset(next(masks)))


@pytest.mark.parametrize("name", ["twice", "feedback"])
def test_chunk_order_equals_the_plain_core(name):
    assert_equals_plain_core(build(name), [3, 2], order="chunk")


@pytest.mark.parametrize("name", ["once", "feedback"])
def test_rows_that_are_reset_equal_the_plain_core(name):
    masks = iter(2 * [[True, False], [False, True]])

    def reset(state):
        """One row, and then the other one too: older tokens belong to nobody."""
        return state.reset(next(masks))

    assert_equals_plain_core(build(name), [4, 1, 2], change=reset)


def test_a_cache_without_tokens_equals_the_plain_core():
    def reset(state):
        (stream,) = state.reset([True, False]).reset([False, True]).streams
        assert stream.cache
        assert len(stream.cached) == 0
        return replace(state, streams=(stream,))

    assert_equals_plain_core(build("once"), [4, 3], change=reset)


@pytest.mark.parametrize("name", ["twice", "global", "feedback", "feedback, itself"])
def test_logits_and_states_are_those_of_joining_bit_for_bit(name, monkeypatch):
    model = build(name)
    found, _ = run(model, [5, 4])
    joined(monkeypatch)
    expected, _ = run(model, [5, 4])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["twice", "feedback"])
def test_backward_passes_over_one_graph_leave_nothing_to_the_next(name):
    model = build(name)
    parameters = list(model.parameters())
    outcomes, _ = run(model, [4, 2])
    total = weighed(outcomes)
    expected = torch.autograd.grad(total, parameters, retain_graph=True)
    torch.autograd.grad(total, model.embedding.weight, retain_graph=True)
    torch.autograd.grad(outcomes[0].sum(), model.output.weight, retain_graph=True)
    # From the middle: what comes later takes no part.
    torch.autograd.grad(outcomes[0][:, :2].sum(), parameters, retain_graph=True)
    found = torch.autograd.grad(total, parameters)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["twice", "feedback", "memory network"])
def test_a_state_that_is_given_gets_its_gradients(name):
    model = build(name)
    with torch.no_grad():
        _, state = run(model, [7])

    def gradients():
        given = state.to(dtype=next(model.parameters()).dtype).detach()
        asked = [part.requires_grad_() for part in tensors(given)]
        logits, _ = model(random_tokens(2, 3), given)
        return torch.autograd.grad(weighed([logits]), asked, materialize_grads=True)

    found = gradients()
    model = plain(model).double()
    for one, other in zip(found, gradients(), strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)
    assert any(one.any() for one in found)


def test_frozen_parameters_are_no_hindrance():
    model = build("once")
    for parameter in model.core.parameters():
        parameter.requires_grad_(False)
    found, _ = run(model, [5, 4])
    (gradient,) = torch.autograd.grad(weighed(found), model.embedding.weight)
    expected, _ = run(plain(model), [5, 4])
    (other,) = torch.autograd.grad(weighed(expected), model.embedding.weight)
    torch.testing.assert_close(gradient, other, **CLOSE)


def test_tied_parameters_get_the_gradients_of_all_their_places():
    model = build("once")
    first, second = (layer.attention for layer in model.core.typed_layers)
    first.value.weight = first.key.weight
    second.query.weight = second.key.weight = first.output.weight
    assert_equals_plain_core(model, [4, 3])


@pytest.mark.parametrize("name", ["once", "feedback"])
def test_a_state_of_another_dtype_is_continued_as_by_joining(name, monkeypatch):
    model = build(name)
    with torch.no_grad():
        _, state = run(model, [6])

    def outcomes():
        with torch.autocast("cpu", torch.bfloat16):
            found, after = run(model, [2, 1], state=state)
        assert {part.dtype for part in after.streams[0].cache[0]} == {torch.float32}
        return found, torch.autograd.grad(weighed(found), list(model.parameters()))

    found, gradients = outcomes()
    joined(monkeypatch)
    expected, others = outcomes()
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    for one, other in zip(gradients, others, strict=True):
        error = (one - other).norm().item()
        assert error <= 2e-2 * max(other.norm().item(), 0.1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ladder", {}),
        ("twice", {"dropout": 0.3}),
        ("feedback", {"dropout": 0.3}),
        ("twice", {"dropout": 0.3, "num_prelude_layers": 1} | MODERN | WIDE),
    ],
)
def test_recomputation_changes_not_a_bit(name, settings):
    model = build(name, **settings)
    twice = []
    for model.recompute in (False, True):
        torch.manual_seed(0)
        twice.append(results(model, [3, 2], batch_size=1))
    for one, other in zip(*twice, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("twice", {}),
        ("feedback", {}),
        ("twice", {"attention_dropout": 0.0}),
        ("twice", MODERN | WIDE),
    ],
)
def test_gradients_with_dropout_are_slopes(name, settings):
    model = build(name, dropout=0.3, **settings)
    tokens = random_tokens(2, 5)

    def loss():
        """With the same units and weights dropped each time."""
        torch.manual_seed(5)
        logits, _ = model(tokens)
        return logits.log_softmax(-1)[:, :, 0].mean()

    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss(), parameters)
    length = sum(one.square().sum() for one in gradients).sqrt()
    ends = []
    with torch.no_grad():
        for step in (1e-3, -2e-3):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter += step * gradient / length
            ends.append(loss())
    slope = (ends[0] - ends[1]) / 2e-3
    torch.testing.assert_close(slope, length, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("engine", [accelerate, plain])
@pytest.mark.parametrize("dropped", ["feed-forward units", "attention weights"])
def test_attention_has_a_dropout_of_its_own(engine, dropped):
    has_units = dropped == "feed-forward units"
    rates = {"dropout": 0.5 * has_units, "attention_dropout": 0.5 * (not has_units)}
    model, tokens = engine(build("ladder", **rates)), random_tokens(2, 9)
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    for layer in model.core.typed_layers:
        sublayer = layer.feed_forward.contract if has_units else layer.attention.output
        for parameter in sublayer.parameters():
            torch.nn.init.zeros_(parameter)
    # Where nothing comes of what is dropped, nothing is random.
    torch.testing.assert_close(model(tokens)[0], model.eval()(tokens)[0], **CLOSE)


def test_layers_in_evaluation_drop_nothing_beside_others_in_training():
    model, tokens = build("ladder", dropout=0.5), random_tokens(2, 9)
    first, second = model.core.typed_layers
    first.eval()
    second.feed_forward.dropout = second.attention.dropout = 0.0
    torch.testing.assert_close(model(tokens)[0], model.eval()(tokens)[0], **CLOSE)


def test_second_derivatives_are_refused():
    model = build("transformer-xl")
    logits, _ = model(random_tokens(1, 4))
    (gradient,) = torch.autograd.grad(logits.sum(), model.embedding.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("name", ["ladder", "twice", "feedback"])
def test_inspection_and_losses_of_every_pass_see_what_the_plain_core_computes(name):
    settings = {"num_coda_layers": 1} if name == "ladder" else {}
    batch, found = random_tokens(1, 5), []
    for change in (accelerate, plain):
        model = change(build(name, **settings))
        seen = inspect(model, batch)
        passes = range(1, seen.num_passes + 1)
        loss = sum(seen.logits_after(number).square().sum() for number in passes)
        weights = [one for one in model.parameters() if one.requires_grad]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        values = [read(*at) for at in seen.path for read in (seen.hidden, seen.attention)]
        values += [seen.keys(*at) for at in seen.cells if name != "feedback" or at[0] == "cached"]
        zero = torch.zeros(())
        found.append([*values, *(zero if one is None else one for one in gradients)])
    for fused, other in zip(*found, strict=True):
        torch.testing.assert_close(fused, other, **CLOSE)


def test_hooks_and_replaced_modules_are_honoured_by_the_plain_core():
    model = build("transformer-xl")
    hidden = torch.zeros(1, 2, 32)

    def is_fused():
        return isinstance(FusedBackend().runner(model.core, hidden, recompute=False), FusedCore)

    assert is_fused()
    for module in (model.core.layers[0], model.core.layers[0].attention.query):
        called = []
        handle = module.register_forward_hook(lambda *_, called=called: called.append(1))
        assert not is_fused()
        model(random_tokens(1, 2))
        assert called
        handle.remove()
    assert is_fused()
    # As libraries do that move weights to a device when they are used.
    expand = model.core.layers[0].feed_forward.expand
    expand.forward = expand.forward
    assert not is_fused()
    del expand.forward
    assert is_fused()
    torch.nn.utils.parametrizations.weight_norm(model.core.layers[1].feed_forward.expand)
    assert not is_fused()


@pytest.mark.parametrize("name", ["staircase", "feedback"])
def test_weights_that_changed_since_the_forward_pass_are_an_error(name):
    """As PyTorch raises where a tensor that it saved has changed."""
    model = build(name)
    optimizer = torch.optim.SGD(model.core.parameters(), lr=0.1)
    tokens = random_tokens(1, 6)
    first, state = model(tokens[:, :3])
    first.sum().backward(retain_graph=True)
    optimizer.step()
    second, _ = model(tokens[:, 3:], state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.sum().backward()


def test_micro_batches_and_accumulated_gradients_are_no_change_of_weights():
    model = build("transformer-xl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(2):
            model(random_tokens(1, 4))[0].sum().backward()
        optimizer.step()


def test_transformations_of_functions_take_the_plain_core():
    model = build("transformer-xl")
    # Not the model's own: these are in its place during a forward pass only.
    parameters = {
        name: (1.5 * one).detach().requires_grad_() for name, one in model.named_parameters()
    }

    def loss(parameters):
        logits, _ = torch.func.functional_call(model, parameters, (random_tokens(1, 4),))
        return logits.square().sum()

    found = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


WINDOW, NUM_ROWS = 16, 1


def is_window(tensor):
    """Whether these are keys, values or gradients of nearly all tokens of a window."""
    return tensor.dim() >= 4 and tensor.shape[-2] >= WINDOW - 4


class LargeResults(TorchDispatchMode):
    """Counts operations whose results are as large as the cache of a window."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # Triton's interpreter wraps the kernels' arguments by `set_`.
        is_made = isinstance(result, torch.Tensor) and not function.is_view
        is_made = is_made and function is not torch.ops.aten.set_.source_Storage_storage_offset
        self.count += is_made and is_window(result)
        return result


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("once", CachedStaircase(chunk_size=2, num_window_chunks=WINDOW // 2, num_passes=1)),
        ("feedback", FeedbackTransformer(span=WINDOW)),
    ],
)
def test_no_step_saves_or_makes_anything_of_the_size_of_a_window(name, schedule, monkeypatch):
    monkeypatch.setitem(SCHEDULES, name, schedule)
    model = plain(build(name))
    with torch.no_grad():
        _, state = run(model, [WINDOW + 2], batch_size=NUM_ROWS)
    accelerate(model)
    saved = []

    def counted(num_tokens):
        saved.clear()
        with LargeResults() as large:
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
            ):
                logits, _ = model(random_tokens(NUM_ROWS, num_tokens), state.detach())
            logits.sum().backward()
        return large.count

    assert counted(2) == counted(4)
    assert not any(is_window(tensor) for tensor in saved)
    joined(monkeypatch)
    assert counted(2) < counted(4)
    assert sum(is_window(tensor) for tensor in saved) >= 4
