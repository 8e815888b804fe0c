"""All parts of one seed put together, for each fabric."""
