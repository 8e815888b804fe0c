"""The replicas on this node: which groups run here, leadership transfer, reassignment."""
