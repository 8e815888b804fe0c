"""Published results about Chord."""
