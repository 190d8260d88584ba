"""Floor 6: the stages in order, and what is kept between calls."""
