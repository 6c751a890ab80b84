"""The U-Net of Stable Diffusion 2 alone, its inputs computed before: MosaicML on A100s, MLPerf Training on H100s."""

from benchmarks.validation.settings.frameworks import HalfPrecisionGradients
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.setting import Setting, generator_graph
from configs.clusters import CLUSTERS
from configs.modules.generator import UNetConfig

_MOSAICML = "mosaicml/diffusion, README (2023), and yamls/hydra-yamls/SD-2-base-*.yaml"
_MLPERF = "mlcommons/training_results_{}, NVIDIA/results/*/stable_diffusion, median of the logged steps"


def _unet(side: int, groups: int = 32) -> UNetConfig:
    """The U-Net for pictures of `side` pixels, whose latents have an eighth of that."""
    return UNetConfig(
        image_size=side // 8,
        channels=4,
        patch=1,
        widths=(320, 640, 1280, 1280),
        blocks=2,
        attention_levels=(0, 1, 2),
        head_width=64,
        groups=groups,
        pooled="none",
        conditions=77,
        condition_width=1024,
    )


def _run(name: str, source: str, seconds: float, cluster: str, unet: UNetConfig, **fields: int) -> PublishedRun:
    setting = Setting(
        graph=generator_graph(unet),
        costs=HalfPrecisionGradients(CLUSTERS[cluster]),
        loads=((0.0, 0.0, 1.0, 0.0),),
        **fields,
    )
    return PublishedRun(name=name, family="diffusion", source=source, width=1280, seconds=seconds, setting=setting)


# (devices, pictures of 256 pixels a second, of 512 pixels)
_PICTURES = ((8, 1100, 290), (16, 2180, 585), (32, 4080, 1195), (64, 8530, 2340), (128, 11600, 4590))


def mosaicml_runs() -> tuple[PublishedRun, ...]:
    """Steps of 2,048 pictures in microbatches of 16; FSDP divides gradients and optimizer state alone."""
    return tuple(
        _run(
            f"Stable Diffusion 2, {side} pixels, {devices} A100s",
            _MOSAICML,
            2048 / rate,
            "a100",
            _unet(side),
            microbatch=16,
            microbatches=2048 // (16 * devices),
            dp=devices,
        )
        for devices, *rates in _PICTURES
        for side, rate in zip((256, 512), rates, strict=True)
    )


# (version, cluster, devices, pictures of each device, seconds)
_STEPS = (
    ("v4.0", "h100", 8, 64, 0.509),
    ("v4.0", "h200", 8, 64, 0.498),
    ("v4.0", "h100", 64, 16, 0.1448),
    ("v4.0", "h100", 512, 4, 0.0544),
    ("v4.0", "h100", 1024, 2, 0.0411),
    ("v4.1", "h100", 8, 32, 0.234),
    ("v4.1", "h200", 8, 32, 0.2294),
    ("v4.1", "h100", 64, 16, 0.1287),
    ("v4.1", "h100", 512, 4, 0.0521),
)


def mlperf_runs() -> tuple[PublishedRun, ...]:
    """Pictures of 512 pixels, float16, compiled kernels in CUDA graphs, optimizer state divided over the devices."""
    return tuple(
        _run(
            f"MLPerf {version} Stable Diffusion 2, {devices} {cluster.upper()}s of {pictures}",
            _MLPERF.format(version),
            seconds,
            cluster,
            _unet(512, groups=16),
            microbatch=pictures,
            dp=devices,
        )
        for version, cluster, devices, pictures, seconds in _STEPS
    )
