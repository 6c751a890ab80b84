"""Data sets: records or files turned into samples of one or several kinds, which `data.packing` makes batches of."""
