"""Floor 5: backends. What each can do, as reasons against; how each runs a plan."""
