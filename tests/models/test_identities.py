"""The paper's 'Relation to Existing Models', as equalities."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from building import EXACT, build, cores, small, tokens
from staircase_attention import (
    CachedStaircase,
    FeedbackTransformer,
    GlobalCachedStaircase,
    Ladder,
    MemoryNetwork,
    ParallelLoop,
    Staircase,
    TransformerXL,
    UniversalTransformer,
)


def assert_same_function(data, one, other):
    core = data.draw(cores(one))
    if core.positions == "relative" and (core.max_distance or 999) >= one.default_max_distance:
        # A table that is shorter than the first one's reach clips the distances of both.
        core = replace(core, max_distance=max(one.default_max_distance, other.default_max_distance))
    model = build(one, core)
    batch = data.draw(tokens())
    order = data.draw(st.sampled_from(["window", "chunk"]))
    expected, _ = model(batch, order=order)
    found, _ = model.with_schedule(other)(batch, order=order)
    torch.testing.assert_close(found, expected, **EXACT)


@given(data=st.data(), chunk=small(1, 4), passes=small(1, 4))
def test_cached_with_m_equal_to_n_is_the_staircase(data, chunk, passes):
    assert_same_function(
        data,
        Staircase(chunk_size=chunk, num_passes=passes),
        CachedStaircase(chunk_size=chunk, num_window_chunks=passes, num_passes=passes),
    )


@given(data=st.data(), chunk=small(1, 4), passes=small(0, 3))
def test_global_is_cached_with_a_window_wide_enough(data, chunk, passes):
    assert_same_function(
        data,
        GlobalCachedStaircase(chunk_size=chunk, num_passes=passes),
        CachedStaircase(chunk_size=chunk, num_window_chunks=25, num_passes=passes),
    )


@given(data=st.data(), span=small(1, 9), order=st.sampled_from(["ABAB", "AABB"]))
def test_a_ladder_with_one_pass_is_transformer_xl(data, span, order):
    assert_same_function(
        data, TransformerXL(span=span), Ladder(num_passes=1, span=span, order=order)
    )


@given(data=st.data(), span=small(1, 9))
def test_a_parallel_loop_with_one_pass_is_transformer_xl(data, span):
    assert_same_function(data, TransformerXL(span=span), ParallelLoop(num_passes=1, span=span))


@given(data=st.data(), span=small(1, 9))
def test_a_span_that_leaves_the_token_out_is_one_longer(data, span):
    assert_same_function(
        data, TransformerXL(span=span + 1), TransformerXL(span=span, span_includes_self=False)
    )


@given(data=st.data(), span=small(1, 9), passes=small(1, 3))
def test_a_ladder_over_one_layer_is_the_universal_transformer(data, span, passes):
    assert_same_function(
        data,
        UniversalTransformer(num_passes=passes, span=span),
        Ladder(num_passes=passes, span=span, order="AABB"),
    )


@given(data=st.data(), passes=small(1, 3))
def test_a_staircase_of_one_chunk_is_a_ladder_whose_span_covers_it(data, passes):
    model = build(Ladder(num_passes=passes, span=60))
    batch = data.draw(tokens(max_length=19))
    one_chunk = CachedStaircase(chunk_size=20, num_window_chunks=passes, num_passes=passes)
    torch.testing.assert_close(model.with_schedule(one_chunk)(batch)[0], model(batch)[0], **EXACT)


@given(data=st.data(), span=small(1, 6))
def test_cached_of_single_tokens_is_feedback_with_top_memory(data, span):
    assert_same_function(
        data,
        FeedbackTransformer(span=span, share_keys_values=False, memory="top", attend_self=True),
        CachedStaircase(chunk_size=1, num_window_chunks=span + 1, num_passes=1),
    )


@given(data=st.data())
def test_a_memory_network_is_the_global_model_of_single_tokens_that_never_pass(data):
    assert_same_function(
        data, MemoryNetwork(span=20), GlobalCachedStaircase(chunk_size=1, num_passes=0)
    )


@given(data=st.data(), span=small(1, 6))
def test_a_memory_network_sees_the_embeddings_of_its_span(data, span):
    assert_same_function(
        data,
        MemoryNetwork(span=span),
        CachedStaircase(chunk_size=1, num_window_chunks=span, num_passes=0),
    )


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_staircase_with_one_chunk_and_one_pass_is_a_plain_transformer(length):
    """Against PyTorch's own encoder layers, with the position table at zero."""
    model = build(Staircase(chunk_size=9, num_passes=1))
    with torch.no_grad():
        model.core.positions.table.zero_()
    batch = torch.arange(length)[None] % model.vocab_size
    hidden = model.embedding(batch)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    for layer in model.core.layers:
        hidden = _torch_layer(layer, width=8)(hidden, src_mask=causal)
    expected = model.output(model.output_norm(hidden))
    torch.testing.assert_close(model(batch)[0], expected, **EXACT)


def _torch_layer(layer, *, width):
    theirs = torch.nn.TransformerEncoderLayer(
        width, 2, 4 * width, norm_first=True, batch_first=True, activation=functional.relu
    )
    theirs = theirs.double().train()
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    theirs.self_attn.dropout = 0.0
    attention = layer.attention
    with torch.no_grad():
        projections = (attention.query.weight, attention.key.weight, attention.value.weight)
        theirs.self_attn.in_proj_weight.copy_(torch.cat(projections))
        theirs.self_attn.in_proj_bias.zero_()
        theirs.self_attn.out_proj.weight.copy_(attention.output.weight)
        theirs.self_attn.out_proj.bias.zero_()
    theirs.norm1.load_state_dict(layer.attention_norm.state_dict())
    theirs.norm2.load_state_dict(layer.feed_forward_norm.state_dict())
    theirs.linear1.load_state_dict(layer.feed_forward.expand.state_dict())
    theirs.linear2.load_state_dict(layer.feed_forward.contract.state_dict())
    return theirs
