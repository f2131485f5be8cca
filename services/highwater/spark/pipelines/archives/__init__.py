"""Archives: what `archive` writes and `replay` reads, as a Delta table or as plain Parquet files."""
