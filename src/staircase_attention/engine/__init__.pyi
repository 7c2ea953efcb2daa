from staircase_attention.engine.backend import accelerate as accelerate
from staircase_attention.engine.backend import plain as plain
from staircase_attention.engine.capture import CapturedUpdates as CapturedUpdates
from staircase_attention.engine.decoding import Decoder as Decoder
