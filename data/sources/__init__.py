"""Record sources, one file for each storage layout, all with random access (`data.records.RecordSource`)."""
