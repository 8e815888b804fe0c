"""Chord: a ring of keys, successor lists, fingers, and the union of rings that were apart.

The protocol is Chord as corrected by Zave ("Reasoning about Identifier Spaces", 2017), with the ring unification of
Shafaat, Ghodsi and Haridi (2007). Plain functions act on the state of one node (`state.Overlay`): an input and the
time go in, packets and events come out (`node.take`). A real node, the simulator of seeds and the experiments with
100,000 nodes run this code; none of them has a protocol of its own.
"""
