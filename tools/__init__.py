"""Tools of the repository: the house rules and the report on requirements. No part of the package."""
