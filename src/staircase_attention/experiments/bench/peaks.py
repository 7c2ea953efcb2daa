"""What the machine itself can do: a large matrix product and a large copy, measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from staircase_attention.experiments.bench.stopwatch import Laps, Stopwatch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PRODUCT_SIZE = {"cuda": 8192, "cpu": 1024}
"""Rows and columns of the matrices, by kind of device."""
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}
"""Bytes of what is copied."""
NUM_WARM_UP = {"cuda": 10, "cpu": 2}
NUM_LAPS = {"cuda": 30, "cpu": 7}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductPeak:
    """A product of two square matrices of random numbers."""

    size: int
    laps: Laps

    @property
    def flops_per_second(self) -> float:
        """By the median."""
        return 2 * self.size**3 / self.laps.median

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "size": self.size,
            "flops_per_second": self.flops_per_second,
            **self.laps.to_plain(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyPeak:
    """A copy from one place of the device's memory to another."""

    num_bytes: int
    laps: Laps

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and bytes written, by the median."""
        return 2 * self.num_bytes / self.laps.median

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "num_bytes": self.num_bytes,
            "bytes_per_second": self.bytes_per_second,
            **self.laps.to_plain(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """All that was measured of the machine."""

    products: dict[str, ProductPeak]
    """By precision."""
    copy: CopyPeak

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        products = {name: product.to_plain() for name, product in self.products.items()}
        return {"products": products, "copy": self.copy.to_plain()}


def measure_peaks(stopwatch: Stopwatch, precisions: Iterable[str]) -> Peaks:
    """Products in these precisions, and a copy."""
    products = {name: measure_product(stopwatch, name) for name in dict.fromkeys(precisions)}
    return Peaks(products=products, copy=measure_copy(stopwatch))


def measure_product(stopwatch: Stopwatch, precision: str) -> ProductPeak:
    """A matrix product in one precision."""
    kind = stopwatch.device.type
    size = PRODUCT_SIZE[kind]
    left, right = (
        torch.randn(size, size, device=stopwatch.device).to(DTYPES[precision]) for _ in range(2)
    )
    result = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=result)

    stopwatch.laps(multiply, NUM_WARM_UP[kind])
    return ProductPeak(size=size, laps=stopwatch.laps(multiply, NUM_LAPS[kind]))


def measure_copy(stopwatch: Stopwatch) -> CopyPeak:
    """A copy too large for any cache."""
    kind = stopwatch.device.type
    source = torch.ones(COPY_BYTES[kind], dtype=torch.uint8, device=stopwatch.device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    stopwatch.laps(copy, NUM_WARM_UP[kind])
    return CopyPeak(num_bytes=COPY_BYTES[kind], laps=stopwatch.laps(copy, NUM_LAPS[kind]))
