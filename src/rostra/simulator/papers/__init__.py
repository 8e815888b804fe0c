"""Published results, reproduced with the protocols of the product on virtual time.

`registry.PAPERS` lists them. A paper is a function that measures and returns rows: the published figure, ours, and the
range within which ours passes.
"""
