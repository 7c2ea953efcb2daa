"""Updates of a GPT-2 of Hugging Face Transformers, at the size of `benchmarks/bench.py relative`.

    python benchmarks/gpt2.py

Width 1024, 8 layers, 8 heads, segments of 256, 32 lanes, 8,008 symbols, no dropout, bfloat16 under
autocast, Adam: as a user of that library would train it, on random tokens.
"""

import argparse

import torch
from bench import laps
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    """Build, warm up, time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--segment", type=int, default=256)
    parser.add_argument("--updates", type=int, default=60)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = GPT2Config(
        vocab_size=8008,
        n_positions=options.segment,
        n_embd=options.width,
        n_layer=8,
        n_head=8,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    shape = (options.lanes, options.segment)
    inputs, targets = (torch.randint(8008, shape, device=device) for _ in range(2))

    def update() -> None:
        # Nothing is read back, so that the GPU never waits.
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(input_ids=inputs).logits
        functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    laps(update, 5, device)
    found = laps(update, options.updates, device)
    speed = inputs.numel() / found["mean_seconds"]
    millions = sum(one.numel() for one in model.parameters()) / 1e6
    milliseconds = 1e3 * found["mean_seconds"]
    print(f"{millions:.1f}M parameters, {milliseconds:.2f} ms, {speed:,.0f} tokens/s")


if __name__ == "__main__":
    main()
