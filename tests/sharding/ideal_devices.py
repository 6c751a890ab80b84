"""Devices whose kernels reach the roofline exactly, for tests that compute seconds by hand."""

from configs.device_generations import AttentionRate, DeviceGeneration

IDEAL = DeviceGeneration(
    multiprocessors=1,
    tiles=((1, 1),),
    inner_step=1,
    l2_bandwidth=1e30,
    multicast=1,
    tile_latency=0.0,
    loop_share=1.0,
    power_share=1.0,
    overlaps_tiles=True,
    attention=(AttentionRate(1, 1.0, 1.0),),
    attention_block=0,
)
"""One multiprocessor with tiles of a single element, and no latency."""
