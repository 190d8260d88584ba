"""The tuner and its evidence, on a device that is made up."""
