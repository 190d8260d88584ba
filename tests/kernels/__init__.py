"""Every backend against dense attention."""
