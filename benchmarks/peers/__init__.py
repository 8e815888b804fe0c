"""The peers, each at the best settings its documentation names."""
