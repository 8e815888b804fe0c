"""The main job shown with real processes: records flow, the node is killed, nothing is lost."""
