"""Parts of HTTPClient: its options, its connections, and results from responses."""
