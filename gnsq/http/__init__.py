"""Parts of HTTPClient: connections, checks of its arguments, and the meaning of responses."""
