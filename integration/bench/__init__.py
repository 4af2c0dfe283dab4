"""``make bench``: measure gnsq and fakensqd beside the NSQ clients that are installed; see __main__.py."""
