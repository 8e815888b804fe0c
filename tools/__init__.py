"""Tools of the repository: conventions, generated pages, the report on requirements. Not part of the package."""
