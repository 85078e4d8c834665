"""One module per format. A writer is a generator that writes to a stream and yields now and then; a reader makes a
record of one row. None knows the database or the web."""
