"""Plans: what they cover, what they mean, that they are verified."""
