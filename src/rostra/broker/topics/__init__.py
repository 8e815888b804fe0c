"""The topics that a broker knows, and the requests about them."""
