"""One module a format. A writer is a generator that writes to a stream and yields now and then, so that what it wrote
can leave; a reader makes a record of one row. None knows the database or the web."""
