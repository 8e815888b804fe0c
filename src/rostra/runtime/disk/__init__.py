"""Files of the operating system, and the threads that sync and read them."""
