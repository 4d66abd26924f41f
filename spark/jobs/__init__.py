"""Ready pipeline jobs over the data source: archive, replay, etl, audit, trace, lag."""
