"""Records where they lie: one file a layout, all with random access; see `data.sources.record_source.RecordSource`."""
