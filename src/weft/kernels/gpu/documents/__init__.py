"""Documents whose lengths only the device knows: the tables of their tiles, made there."""
