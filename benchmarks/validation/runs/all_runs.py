"""All published runs and bands, in the order in which they are reported."""

from benchmarks.validation.runs import (
    data_parallel,
    diffusion_transformers,
    experts,
    fully_sharded,
    lmms_engine,
    megascale,
    megatron,
    megatron_core,
    nemo_pipelines,
    stable_diffusion,
    veomni,
    vision_language,
    vision_transformers,
)
from benchmarks.validation.settings.published import PublishedRun
from benchmarks.validation.settings.published_band import PublishedBand


def all_runs() -> tuple[PublishedRun, ...]:
    """Every run once."""
    return (
        *megatron.layer_runs(),
        *megatron.step_runs(),
        *megascale.runs(),
        *data_parallel.flash_attention_runs(),
        *data_parallel.internlm_runs(),
        *megatron_core.runs(),
        *nemo_pipelines.runs(),
        *data_parallel.mpt_runs(),
        *fully_sharded.runs(),
        *veomni.runs(),
        *experts.runs(),
        *stable_diffusion.mosaicml_runs(),
        *stable_diffusion.mlperf_runs(),
        *diffusion_transformers.runs(),
        *vision_transformers.runs(),
        *vision_language.llava_runs(),
        *vision_language.internvl_runs(),
    )


def all_bands() -> tuple[PublishedBand, ...]:
    """Every published MFU that is a band, or whose setting is open."""
    return (*lmms_engine.bands(), *veomni.bands())
