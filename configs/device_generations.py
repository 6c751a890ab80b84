"""Properties of devices besides their peak that decide the speed of kernels: multiprocessors, tiles, caches, power.

Analytic costs of matmuls and attention (`sharding.costs`) read them through `ClusterConfig.generation`.
"""

import dataclasses
import itertools
import math

from configs.common.short_repr import short_repr
from configs.cost_effects import CostEffects


@dataclasses.dataclass(frozen=True)
class AttentionRate:
    """Share of the peak FLOP/s that fused attention reaches over long sequences without a mask.

    Attributes:
        head_width: Width of a head.
        forward: The share in the forward.
        backward: The share in the backward, which recomputes the scores: five products for the forward's two.
    """

    head_width: int
    forward: float
    backward: float

    def __post_init__(self) -> None:
        if not 0 < self.head_width < math.inf:
            raise ValueError(f"AttentionRate.head_width is {self.head_width}; it must be positive and finite")
        for name in ("forward", "backward"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"AttentionRate.{name} is {getattr(self, name)}; it must be above 0 and at most 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceGeneration:
    """A generation of devices, as far as it decides how near kernels come to the peak.

    Attributes:
        multiprocessors: Streaming multiprocessors; each computes one output tile of a matmul at a time.
        tiles: Output tiles (rows, columns) of the matmul kernels that the library chooses from.
        inner_step: Elements of the inner dimension that a tile's loop takes at a time.
        l2_bandwidth: Bytes per second from the level-2 cache to all multiprocessors.
        multicast: Multiprocessors that read one side of their tiles from the cache together.
        tile_latency: Seconds from the start of a tile to its first product: the first loads from memory.
        loop_share: Share of the peak FLOP/s that the loop of a tile reaches if nothing but its products takes time.
        power_share: Share of the peak FLOP/s that matmuls of normally distributed numbers sustain at the peak's clock
            within the power limit; with larger shares the clock falls.
        overlaps_tiles: Whether a multiprocessor loads and multiplies the next tile while it writes one.
        attention: Rates of fused attention, by increasing head width.
        attention_block: Keys that attention takes at a time, and queries of which a block of the mask is skipped.
        effects: Effects by which steps take longer than their kernels and transfers one by one.
        fp8_rate: Peak of FP8 matmuls in units of the peak of bfloat16 matmuls; 1 for devices that multiply no FP8.
    """

    multiprocessors: int
    tiles: tuple[tuple[int, int], ...]
    inner_step: int
    l2_bandwidth: float
    multicast: int
    tile_latency: float
    loop_share: float
    power_share: float
    overlaps_tiles: bool
    attention: tuple[AttentionRate, ...]
    attention_block: int
    effects: CostEffects = CostEffects()
    fp8_rate: float = 1.0

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name in ("multiprocessors", "inner_step", "l2_bandwidth", "multicast"):
            self._check(name, 0 < getattr(self, name) < math.inf, "be positive and finite")
        self._check("fp8_rate", 1 <= self.fp8_rate < math.inf, "be at least 1 and finite")
        for name in ("loop_share", "power_share"):
            self._check(name, 0 < getattr(self, name) <= 1, "be above 0 and at most 1")
        for name in ("tile_latency", "attention_block"):
            self._check(name, 0 <= getattr(self, name) < math.inf, "be finite and not negative")
        sides = [side for tile in self.tiles for side in tile]
        pairs = all(len(tile) == 2 for tile in self.tiles) and all(0 < side < math.inf for side in sides)
        self._check(
            "tiles", bool(sides) and pairs, "be one pair or several of rows and columns, all positive and finite"
        )
        widths = [rate.head_width for rate in self.attention]
        ascending = all(narrow < wide for narrow, wide in itertools.pairwise(widths))
        self._check("attention", bool(widths) and ascending, "have one rate or several, by increasing head_width")

    def _check(self, name: str, valid: bool, must: str) -> None:
        if not valid:
            raise ValueError(f"DeviceGeneration.{name} is {getattr(self, name)}; it must {must}")


# Tiles: the bfloat16 kernels of cuBLAS and CUTLASS with float32 sums. Multiprocessors, and the clocks at which the
# peaks are given (1.41 and 1.83 GHz): NVIDIA's white papers of A100 and H100. L2 bandwidth, and 400 cycles of latency
# of global memory: PMC10448217, table 3. Hopper's kernels run in clusters of two multiprocessors, to which one read of
# a tile's side is sent (CUTLASS 3, 2 x 1 clusters).
#
# An A100 multiplies 8192 x 8192 matrices of zeros at 295 TFLOP/s, and of normally distributed numbers at 257, since
# 400 W slow its clock (thonking.ai, "Strangely, matrix multiplications on GPUs run faster when given predictable
# data"). Without `loop_share` the tiles of the first would reach 308; the second gives `power_share`,
# 295 / 312 (257 / 295)^3. Hopper reaches 80.3% at the best of all shapes, 2048 x 2048 x 13312 (stas00/ml-engineering,
# "maximum achievable matmul FLOPS"); `loop_share` is assumed to be the same, and its tiles would reach 91.4%.
#
# FP8: the data sheets print twice the bfloat16 peak, such as 1,979 TFLOP/s without sparsity for an H100 SXM, 296 for an
# H20 and 4,500 for a B200; an A100 has none. Its tiles, loops and clock are taken to be bfloat16's.
#
# Attention: FlashAttention-2 (arXiv 2307.08691) and FlashAttention-3 (arXiv 2407.08608), figures 5 and 6 of both, for
# 16,384 positions without a mask. Both take keys and queries in blocks of about 128.
_LOOP_SHARE = 295 / 308.2

# Effects. Sources, and what was fitted to the calibration half of the runs of benchmarks/validation:
#
#   throttling      fitted. After its first hundred steps MLPerf's Stable Diffusion on eight H100s takes 1.08 times as
#                   long (logs of v4.0); Hopper's rates are those of the best shape in a short run.
#   slowdowns       fitted, 1.16 to 1.46 and 1.11 to 1.28. Beside collectives computation takes 1.19 times as long in
#                   the mean, 1.4 at most (arXiv 2507.03114), a matmul on an A100 1.76 times (NVIDIA/nccl issue 1428).
#   convolutions    fitted to U-Nets.
#   jitter          fitted, 0.015 to 0.024. MLPerf's logs vary by 1% on 64 devices, by 10% on 1,024 (steps of 41 ms).
#   contention      360, 345, 320, 300, 280 and 260 GB/s on 4 to 128 nodes of H100s (NVIDIA/nccl issue 1229) are 1.38
#                   times as long; these values give 1.29.
#   dispatch        assumed; no measurement of XLA's programs on a GPU was found.
#   imbalance       a step of Qwen3-235B takes 1.09 to 1.24 times as long with free routing (Megatron-MoE-ModelZoo).
AMPERE_EFFECTS = CostEffects(
    throttling=1.07,
    compute_slowdown=1.25,
    transfer_slowdown=1.2,
    convolution_share=0.3,
    jitter=0.015,
    dispatch=30e-6,
    contention=0.065,
    imbalance=1.2,
)
HOPPER_EFFECTS = dataclasses.replace(AMPERE_EFFECTS, throttling=1.19, convolution_share=0.7)
AMPERE = DeviceGeneration(
    multiprocessors=108,
    tiles=((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)),
    inner_step=32,
    l2_bandwidth=7.219e12,
    multicast=1,
    tile_latency=400 / 1.41e9,
    loop_share=_LOOP_SHARE,
    power_share=295 / 312 * (257 / 295) ** 3,
    overlaps_tiles=False,
    attention=(AttentionRate(64, 192 / 312, 170 / 312), AttentionRate(128, 227 / 312, 196 / 312)),
    attention_block=128,
    effects=AMPERE_EFFECTS,
)
HOPPER = DeviceGeneration(
    multiprocessors=132,
    tiles=((256, 128), (128, 256), (128, 192), (192, 128), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128)),
    inner_step=64,
    l2_bandwidth=8.986e12,
    multicast=2,
    tile_latency=400 / 1.83e9,
    loop_share=_LOOP_SHARE,
    power_share=0.803**3 / 0.914**2,
    overlaps_tiles=True,
    attention=(AttentionRate(64, 497 / 989, 474 / 989), AttentionRate(128, 648 / 989, 561 / 989)),
    attention_block=128,
    effects=HOPPER_EFFECTS,
    fp8_rate=2.0,
)
# H20 and Blackwell are assumptions, for want of published measurements: Hopper's tiles, latencies and shares. An H20
# has 78 of the same multiprocessors, each with as much of the cache's bandwidth. A B200 has 148 whose peak is higher;
# their cache is assumed to be faster by as much as the peak of a GB200 is (2,500 TFLOP/s for 989). With Hopper's bytes
# per second for each multiprocessor, its tiles would multiply 8192 x 8192 matrices at 51% of that peak.
H20 = dataclasses.replace(HOPPER, multiprocessors=78, l2_bandwidth=78 / 132 * HOPPER.l2_bandwidth)
BLACKWELL = dataclasses.replace(HOPPER, multiprocessors=148, l2_bandwidth=2500 / 989 * HOPPER.l2_bandwidth)
PUBLISHED = (AMPERE, HOPPER)
"""Generations whose costs are compared with published runs (`sharding.costs.published_errors`)."""

# Two cores, each with a small tile in its registers: only the emulation of several devices on a CPU runs on it.
EMULATED = DeviceGeneration(
    multiprocessors=2,
    tiles=((16, 16),),
    inner_step=1,
    l2_bandwidth=100e9,
    multicast=1,
    tile_latency=0.0,
    loop_share=0.65,
    power_share=1.0,
    overlaps_tiles=True,
    attention=(AttentionRate(64, 0.5, 0.5),),
    attention_block=0,
)


def ampere() -> DeviceGeneration:
    """A100 and A800, for gin files: `generation = @device_generations.ampere()`."""
    return AMPERE


def hopper() -> DeviceGeneration:
    """H100, H800 and H200, for gin files: `generation = @device_generations.hopper()`."""
    return HOPPER


def h20() -> DeviceGeneration:
    """H20, for gin files: `generation = @device_generations.h20()`."""
    return H20


def blackwell() -> DeviceGeneration:
    """B200 and GB200, for gin files: `generation = @device_generations.blackwell()`."""
    return BLACKWELL
